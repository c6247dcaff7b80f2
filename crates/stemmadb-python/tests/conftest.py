"""Databases for tests."""

import base64
import itertools
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import urllib.request

import pytest

import stemmadb


@pytest.fixture
def db():
    with stemmadb.open(":memory:") as database:
        yield database


@pytest.fixture
def books(db):
    db["solaris"] = {"title": "Solaris", "year": 1961, "tags": ["novel", "space"], "price": 9.5}
    db["dune"] = {"title": "Dune", "year": 1965, "tags": ["novel"], "price": 12}
    db["emma"] = {"title": "Emma", "year": 1815, "tags": ["novel"], "author": {"name": "Austen"}}
    return db


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The Unix socket of a server, which the command `stemma` runs; `STEMMA_BIN` is its path."""
    binary = os.environ.get("STEMMA_BIN")
    if not binary:
        pytest.skip("STEMMA_BIN does not name the command `stemma`")
    directory = tmp_path_factory.mktemp("server")
    socket = pathlib.Path(tempfile.mkdtemp(prefix="stemma-py-")) / "wire"
    process = subprocess.Popen(
        [binary, "serve", str(directory), "--listen", "127.0.0.1:0", "--wire-unix", str(socket)],
        env={**os.environ, "STEMMA_ADMIN_PASSWORD": "secret"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "listening on http" in line:
            break
    else:
        raise AssertionError("".join(lines))
    address = line.split("http://")[1].split()[0].strip("/,;")
    # The pipe must not fill up.
    threading.Thread(target=process.stdout.read, daemon=True).start()
    yield address, socket
    process.kill()
    process.wait()
    shutil.rmtree(socket.parent)


def _create(address, name):
    request = urllib.request.Request(f"http://{address}/{name}", method="PUT")
    request.add_header("Authorization", "Basic " + base64.b64encode(b"admin:secret").decode())
    urllib.request.urlopen(request).close()


@pytest.fixture(params=["embedded", "remote"])
def anywhere(request):
    """A database in this process, and one of a server."""
    if request.param == "embedded":
        with stemmadb.open(":memory:") as database:
            yield database
        return
    address, socket = request.getfixturevalue("server")
    name = f"db{next(_numbers)}"
    _create(address, name)
    with stemmadb.open(f"stemma+unix://admin:secret@{socket}?database={name}") as database:
        yield database


_numbers = itertools.count()
