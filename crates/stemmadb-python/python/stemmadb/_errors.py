"""Exceptions, one for each kind of error."""

from __future__ import annotations


class StemmaError(Exception):
    """Base of all exceptions of this package. `message` says what happened, `hint` what to do, if that is known."""

    message: str
    hint: str | None

    def __init__(self, message: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"


class Conflict(StemmaError):
    """The document changed since it was read, or exists: read it again and decide."""


class Duplicate(StemmaError):
    """Another document has a value that is declared unique: choose another value."""


class NotFound(StemmaError, KeyError):
    """The document or revision does not exist."""

    # `KeyError` shows the `repr` of its argument.
    __str__ = StemmaError.__str__


class Invalid(StemmaError, ValueError):
    """The request is wrong and will fail again: correct it."""


class Forbidden(StemmaError):
    """The user may not do this: authenticate, or have an administrator grant the right."""


class Unavailable(StemmaError):
    """The environment prevents it, such as a full disk or a server that can't be reached: fix it, then retry."""


class Stopped(StemmaError):
    """It exceeded a limit that was set for it, such as a timeout: ask for less, or raise the limit."""


class Locked(StemmaError):
    """The database is open elsewhere: retry when it is closed there."""


class Corrupt(StemmaError):
    """Stored bytes are damaged: run `stemma check`, then rebuild or restore."""


class KeyRequired(StemmaError):
    """The database is encrypted: open it with `key=`."""


class WrongKey(StemmaError):
    """The key is not that of the database."""


class Closed(StemmaError):
    """The database was closed, or refuses writes after a failed one: open it again."""


class Internal(StemmaError):
    """A bug in Stemma: please report it."""


class Forked(StemmaError):
    """The database was opened before this process forked from its parent: open it again here."""


def make(name: str, message: str, hint: str | None) -> StemmaError:
    """Makes the exception with this name. Called by the native part."""
    kind: type[StemmaError] = globals().get(name, Internal)
    return kind(message, hint)
