"""Documents as they are read."""

from __future__ import annotations

from typing import Any

from ._stemmadb import Meta


class Document(dict[str, Any]):
    """A document as it was read: a `dict` of its fields, with its id and revision as attributes.

    >>> book = db["solaris"]
    >>> book["year"], book.id
    (1961, 'solaris')

    Changing the dict changes nothing in the database: `db.put(book)` does, unless somebody else did in between.
    """

    __slots__ = ("_meta",)
    _meta: Meta

    @property
    def id(self) -> str:
        """The document's id."""
        return self._meta.id

    @property
    def revision(self) -> str:
        """The revision that was read."""
        return self._meta.revision

    @property
    def sequence(self) -> int:
        """The sequence of the document's last write."""
        return self._meta.sequence

    @property
    def deleted(self) -> bool:
        """Whether this revision is a deletion."""
        return self._meta.deleted
