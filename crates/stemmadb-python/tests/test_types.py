"""The type stubs, against the installed package."""

import pathlib
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("mypy")
PACKAGE = pathlib.Path(__file__).parents[1]


def test_stubs_agree_with_the_package():
    # Names that PyO3 adds to modules and classes.
    stubtest = [sys.executable, "-m", "mypy.stubtest", "stemmadb", "--ignore-disjoint-bases"]
    checked = subprocess.run(stubtest, capture_output=True, text=True, cwd="/")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_types_are_inferred(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            from dataclasses import dataclass
            from typing import Any, assert_type
            import stemmadb

            @dataclass
            class Book:
                title: str

            db = stemmadb.open(":memory:")
            assert_type(db, stemmadb.Database)
            assert_type(db["a"], stemmadb.Document)
            assert_type(db.get("a"), stemmadb.Document | None)
            assert_type(db.get("a", into=Book), Book | None)
            assert_type(db.get("a", 7), stemmadb.Document | int)
            assert_type(db.find(year=1).first(), stemmadb.Document | None)
            assert_type(db.find(into=Book).to_list(), list[Book])
            assert_type(db.find(fields="a").one(), dict[str, Any])
            for book in db.find(into=Book):
                assert_type(book.title, str)
            with db.transaction() as tx:
                assert_type(tx["a"].id, str)
            for change in db.changes():
                assert_type(change.id, str)
            assert_type(db.transact(lambda tx: 7), int)
            """
        )
    )
    mypy = [sys.executable, "-m", "mypy", "--strict", str(program)]
    checked = subprocess.run(mypy, capture_output=True, text=True, cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
