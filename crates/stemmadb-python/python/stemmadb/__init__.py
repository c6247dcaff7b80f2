"""Stemma: an embeddable document database.

>>> import stemmadb
>>> db = stemmadb.open(":memory:")
>>> db["solaris"] = {"title": "Solaris", "year": 1961}
>>> db["dune"] = {"title": "Dune", "year": 1965}
>>> [book["title"] for book in db.find(year__gt=1960, sort="-year")]
['Dune', 'Solaris']

`open` returns a `Database`, which is also a `MutableMapping` of ids and documents. Documents are `Document` objects:
dicts that remember their id and revision. Every error is a `StemmaError`.
"""

import os as _os

from . import _stemmadb
from ._convert import register
from ._database import Database, open
from ._document import Document
from ._errors import (
    Closed,
    Conflict,
    Corrupt,
    Duplicate,
    Forbidden,
    Forked,
    Internal,
    Invalid,
    KeyRequired,
    Locked,
    NotFound,
    StemmaError,
    Stopped,
    Unavailable,
    WrongKey,
)
from ._stemmadb import Change, Changes, Delta, Find, Groups, Rows, Snapshot, Transaction, View, Watch
from ._types import Difference, Plan, Revision, Summary, ViewRow, Written

__all__ = [
    "Change",
    "Changes",
    "Closed",
    "Conflict",
    "Corrupt",
    "Database",
    "Delta",
    "Difference",
    "Document",
    "Duplicate",
    "Find",
    "Forbidden",
    "Forked",
    "Groups",
    "Internal",
    "Invalid",
    "KeyRequired",
    "Locked",
    "NotFound",
    "Plan",
    "Revision",
    "Rows",
    "Snapshot",
    "StemmaError",
    "Stopped",
    "Summary",
    "Transaction",
    "Unavailable",
    "View",
    "ViewRow",
    "Watch",
    "Written",
    "WrongKey",
    "open",
    "register",
]

__version__ = "0.1.0"

# What was opened before a fork belongs to the parent: in the child it raises `Forked`.
if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(after_in_child=_stemmadb._after_fork)
