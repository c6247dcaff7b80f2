"""The class `Database`: the native one with the methods of a mapping."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from typing import Any, TypeVar

from . import _stemmadb
from ._document import Document
from ._errors import Conflict
from ._stemmadb import Transaction
from ._types import Written

T = TypeVar("T")


class _Values(ValuesView[Document]):
    _mapping: Database

    def __iter__(self) -> Iterator[Document]:
        return iter(self._mapping._rows())


class _Items(ItemsView[str, Document]):
    _mapping: Database

    def __iter__(self) -> Iterator[tuple[str, Document]]:
        return ((document.id, document) for document in self._mapping._rows())


class Database(_stemmadb.Database, MutableMapping[str, Document]):
    """A database: a mapping of ids to documents, with queries, transactions, feeds and history.

    Open one with `stemmadb.open`. Every method may be called from any thread, and waits without the interpreter's
    lock. It is closed by `close()`, at the end of `with`, or when nothing refers to it any more.
    """

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __enter__(self) -> Database:
        return self

    def __iter__(self) -> Iterator[str]:
        return self._ids()

    def values(self) -> ValuesView[Document]:
        """The documents, which are read as the view is iterated over."""
        return _Values(self)

    def items(self) -> ItemsView[str, Document]:
        """The ids and documents, which are read as the view is iterated over."""
        return _Items(self)

    def clear(self) -> None:
        """Deletes all documents, in one transaction."""
        self.find().delete()

    def update(self, *arguments: Any, revision: str | None = None, **documents: Any) -> Written | None:  # type: ignore[override]
        """Changes parts of a document: `update(id, patch)`. Returns its id and revision.

        A patch has new values of fields, or operators such as `{"$inc": {"reads": 1}}`. With `revision`, it must be
        the current one. As in other mappings, `update(mapping)` sets whole documents.

        >>> db.update("dune", {"$inc": {"reads": 1}, "$set": {"genre": "novel"}}).id
        'dune'
        """
        if len(arguments) == 2 and isinstance(arguments[0], str):
            return self._update(arguments[0], arguments[1], revision)
        MutableMapping.update(self, *arguments, **documents)
        return None

    def transact(self, function: Callable[[Transaction], T], attempts: int = 100) -> T:
        """Runs a function as a transaction, again while other writes change what it reads. Returns its result.

        It may run several times, so it must have no other effects.

        >>> db.transact(lambda tx: tx.update("dune", {"$inc": {"reads": 1}})).id
        'dune'
        """
        for attempt in range(attempts):
            transaction = self.transaction()
            transaction.__enter__()
            try:
                result = function(transaction)
            except BaseException:
                transaction.__exit__(*sys.exc_info())
                raise
            # Only the end finds that others changed what was read; a conflict within is the function's own.
            try:
                transaction.__exit__(None, None, None)
            except Conflict:
                if attempt + 1 == attempts:
                    raise
                continue
            return result
        raise ValueError("attempts is a number from 1")


def open(
    location: str | os.PathLike[str],
    *,
    durability: str = "sync",
    interval: float = 0.1,
    create: bool = True,
    read_only: bool = False,
    key: str | bytes | None = None,
    cache_bytes: int | None = None,
    timeout: float = 30.0,
) -> Database:
    """Opens a database: a directory, which is created if it doesn't exist, `:memory:`, or one of a server by a URL such
    as `stemma://user:password@host/database`.

    `durability` says when a write returns: flushed to disk (`"sync"`), flushed at most `interval` seconds later
    (`"interval"`), or left to the operating system (`"none"`). `key` is the passphrase, or the 32 bytes of the key, of
    an encrypted database. `timeout` is that of requests to a server.

    Raises `Locked` if the database is open elsewhere, `Invalid` if the directory is none, `Corrupt` if it is damaged,
    and `Unavailable` if it can't be read or written, or the server can't be reached.

    >>> with stemmadb.open(":memory:") as other:
    ...     other["a"] = {"n": 1}
    """
    return Database(
        location,
        durability=durability,
        interval=interval,
        create=create,
        read_only=read_only,
        key=key,
        cache_bytes=cache_bytes,
        timeout=timeout,
    )
