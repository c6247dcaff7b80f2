"""Conversions that are not between JSON types: models, times, decimals, bytes and others.

Stored as text: `datetime`, `date` and `time` in ISO 8601 (an aware `datetime` in UTC with six digits and `Z`, so that
text sorts by time), `Decimal` exactly, `bytes` in base64, `UUID`, `Path`. An `Enum` is stored as its value, a set as a
sorted list, a dataclass as its fields, and a pydantic model as `model_dump(mode="json")` gives it.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import json
import pathlib
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from ._errors import Invalid

T = TypeVar("T")

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_registered: dict[type, Callable[[Any], Any]] = {}


def register(kind: type[T], function: Callable[[T], Any]) -> None:
    """Stores objects of a class, and of its subclasses, as what a function makes of them.

    >>> stemmadb.register(complex, lambda number: [number.real, number.imag])
    """
    _registered[kind] = function


def datetime_of(microseconds: int) -> datetime.datetime:
    """The time so many microseconds after 1970."""
    return _EPOCH + datetime.timedelta(microseconds=microseconds)


def _datetime(value: datetime.datetime) -> str | None:
    if value != value:  # pandas.NaT
        return None
    if value.tzinfo is None:
        return value.isoformat(timespec="microseconds")
    return value.astimezone(datetime.timezone.utc).isoformat(timespec="microseconds")[:-6] + "Z"


def _set(value: Iterable[Any]) -> list[Any]:
    return sorted(value, key=lambda element: json.dumps(element, default=str))


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def encode(value: Any) -> Any:
    """What is stored for an object that is not of a JSON type; `NotImplemented` if nothing is known."""
    for kind in type(value).__mro__:
        if kind in _registered:
            return _registered[kind](value)
    # Enums come first: an `IntEnum` is an `int`.
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bool):
        return bool(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, datetime.datetime):
        return _datetime(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, uuid.UUID, pathlib.PurePath)):
        return str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, (set, frozenset)):
        return _set(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):  # arrays and scalars of numpy
        return value.tolist()
    return NotImplemented


def split(value: Any) -> tuple[str | None, dict[str, Any]]:
    """The id and the fields of a model. Its field `id` is the document's id."""
    body = encode(value)
    if not isinstance(body, dict):
        raise Invalid(f"a document is a dict or a model, not an object of the class `{type(value).__qualname__}`")
    identifier = None
    if not isinstance(value, Mapping) and isinstance(body.get("id"), str):
        identifier = body.pop("id")
    elif not isinstance(value, Mapping) and "id" in body and body["id"] is None:
        # A model whose id is chosen by the database.
        del body["id"]
    elif isinstance(value, Mapping) and isinstance(body.get("_id"), str):
        identifier = body.pop("_id")
    return identifier, body


def _parse_datetime(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)


_DECODERS: dict[Any, Callable[[Any], Any]] = {
    datetime.datetime: _parse_datetime,
    datetime.date: datetime.date.fromisoformat,
    datetime.time: datetime.time.fromisoformat,
    decimal.Decimal: decimal.Decimal,
    uuid.UUID: uuid.UUID,
    bytes: base64.b64decode,
    float: float,
}


def _same(value: Any) -> Any:
    return value


def _optional(decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else decode(value)


def _collection(make: Callable[[Iterable[Any]], Any], decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: make(decode(element) for element in value)


def _decoder(hint: Any) -> Callable[[Any], Any]:
    """The function that makes an object of a type hint of a stored value."""
    if hint in _DECODERS:
        return _DECODERS[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _decoder(arguments[0])
    if origin in (typing.Union, types.UnionType):
        kinds = [argument for argument in arguments if argument is not type(None)]
        decode = _decoder(kinds[0]) if len(kinds) == 1 else _same
        return _optional(decode) if len(kinds) < len(arguments) else decode
    if origin in (list, set, frozenset) and arguments:
        return _collection(origin, _decoder(arguments[0]))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _collection(tuple, _decoder(arguments[0]))
    if origin is tuple and arguments:
        decoders = [_decoder(argument) for argument in arguments]
        return lambda value: tuple(decode(element) for decode, element in zip(decoders, value, strict=True))
    if origin is dict and len(arguments) == 2:
        decode_value = _decoder(arguments[1])
        return lambda value: {name: decode_value(element) for name, element in value.items()}
    if hint in (set, frozenset, tuple):
        return typing.cast(Callable[[Any], Any], hint)
    if isinstance(hint, type):
        if issubclass(hint, enum.Enum) or issubclass(hint, pathlib.PurePath):
            return hint
        if hasattr(hint, "model_validate"):
            return typing.cast(Callable[[Any], Any], hint.model_validate)
        if dataclasses.is_dataclass(hint):
            return _dataclass_decoder(hint)
    return _same


def _dataclass_decoder(model: Any) -> Callable[[Any], Any]:
    hints = typing.get_type_hints(model, include_extras=True)
    decoders = {field.name: _decoder(hints[field.name]) for field in dataclasses.fields(model) if field.init}
    given_id = "id" in decoders

    def decode(document: Any) -> Any:
        values = {name: decode(document[name]) for name, decode in decoders.items() if name in document}
        if given_id and "id" not in values and hasattr(document, "_meta"):
            values["id"] = document.id
        return model(**values)

    return decode


# The functions of models that were used, forgotten when there are too many.
_converters: dict[type, Callable[[Any], Any]] = {}
_CONVERTERS_MAX = 256


def converter(model: Any) -> Callable[[Any], Any]:
    """The function that makes an object of a model of a document. Fields that the model lacks are left out."""
    if not isinstance(model, type):
        return _make_converter(model)
    made = _converters.get(model)
    if made is None:
        if len(_converters) >= _CONVERTERS_MAX:
            _converters.clear()
        made = _converters[model] = _make_converter(model)
    return made


def _make_converter(model: Any) -> Callable[[Any], Any]:
    if dataclasses.is_dataclass(model):
        return _dataclass_decoder(model)
    if hasattr(model, "model_validate"):
        validate, given_id = model.model_validate, "id" in model.model_fields

        def decode(document: Any) -> Any:
            if given_id and "id" not in document and hasattr(document, "_meta"):
                return validate({**document, "id": document.id})
            return validate(document)

        return decode
    if callable(model):
        return typing.cast(Callable[[Any], Any], model)
    raise Invalid(f"{model!r} is neither a dataclass nor a pydantic model nor a function")
