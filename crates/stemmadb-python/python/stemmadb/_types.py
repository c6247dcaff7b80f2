"""Plain results."""

from __future__ import annotations

import datetime
from html import escape
from typing import Any, NamedTuple

from ._document import Document


class Written(NamedTuple):
    """The id of a document that was written, and its new revision.

    In a transaction of a remote database, revisions are not known before its end: `None`.
    """

    id: str
    revision: str | None


class Summary(NamedTuple):
    """Count, sum, smallest and largest of numbers."""

    count: int  # type: ignore[assignment]
    sum: int | float | None
    min: int | float | None
    max: int | float | None

    @property
    def average(self) -> float | None:
        """The sum divided by the count; `None` without numbers."""
        return None if self.sum is None or not self.count else self.sum / self.count


class Revision(NamedTuple):
    """A stored revision of a document: what it was from `sequence` and `time` on, and who wrote it, if known."""

    document: Document
    sequence: int
    time: datetime.datetime | None
    author: str | None


class Difference(NamedTuple):
    """A document in two states; `None` where it did not exist. `paths` are those whose values differ."""

    id: str
    before: Document | None
    after: Document | None
    paths: list[str]


class ViewRow(NamedTuple):
    """A row of a view: the id of the document that it is of, its key and its value."""

    id: str
    key: Any
    value: Any
    document: Document | None


class Plan:
    """How a query is run. `str()` gives a tree of lines, `tree` the same as dicts."""

    __slots__ = ("text", "tree")
    text: str
    tree: dict[str, Any] | None

    def __init__(self, text: str, tree: dict[str, Any] | None) -> None:
        self.text = text
        self.tree = tree

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.text)}</pre>"
