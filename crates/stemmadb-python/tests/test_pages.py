"""The samples of the package's documentation, of its README, and of the guide."""

import doctest
import importlib
import pathlib
import re

import pytest

import stemmadb

PACKAGE = pathlib.Path(__file__).parents[1]
PAGES = [PACKAGE / "README.md", PACKAGE.parents[1] / "docs/guide/python.md"]


def _blocks(page):
    """The Python blocks of a page, each with its line."""
    for block in re.finditer(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        yield page.read_text()[: block.start()].count("\n") + 1, block.group(1)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_samples_of_pages(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, count = {"__name__": page.stem}, 0
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    parser = doctest.DocTestParser()
    for line, block in _blocks(page):
        count += 1
        if ">>>" not in block:
            exec(compile("\n" * line + block, str(page), "exec"), names)
            continue
        test = parser.get_doctest(block, names, page.name, str(page), line)
        runner.run(test, clear_globs=False)
        names.update(test.globs)
    assert count > 0 and runner.summarize(verbose=False).failed == 0


MODULES = ["", "._convert", "._database", "._document"]


@pytest.mark.parametrize("module", MODULES)
def test_samples_of_docstrings(module):
    checked = importlib.import_module(f"stemmadb{module}")
    results = doctest.testmod(checked, extraglobs={"stemmadb": stemmadb, "db": _books()})
    assert results.failed == 0


def test_samples_of_native_classes():
    runner = doctest.DocTestRunner()
    count = 0
    for kind in (stemmadb._stemmadb.Database, stemmadb.Find, stemmadb.Transaction):
        names = [name for name, member in vars(kind).items() if ">>>" in (getattr(member, "__doc__", None) or "")]
        for target in [kind] * (">>>" in (kind.__doc__ or "")) + [getattr(kind, name) for name in names]:
            db = _books()
            globs = {"db": db, "stemmadb": stemmadb}
            if target is stemmadb.Transaction:
                db["ada"] = {"balance": 100}
            test = doctest.DocTestParser().get_doctest(target.__doc__, globs, str(target), None, 0)
            runner.run(test)
            count += 1
    assert count >= 6 and runner.summarize(verbose=False).failed == 0


def test_public_names_are_documented():
    bare = []
    for name in stemmadb.__all__:
        public = getattr(stemmadb, name)
        members = [] if not isinstance(public, type) else [
            member
            for member in vars(public)
            if not member.startswith("_") and callable(getattr(public, member)) and not getattr(public, member).__doc__
        ]  # fmt: skip
        bare += [f"{name}.{member}" for member in members] + ([] if public.__doc__ else [name])
    assert bare == []


def _books():
    db = stemmadb.open(":memory:")
    db["solaris"] = {"title": "Solaris", "year": 1961}
    db["dune"] = {"title": "Dune", "year": 1965}
    return db
