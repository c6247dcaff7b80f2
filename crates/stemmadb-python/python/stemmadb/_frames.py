"""DataFrames in and out, and tables for notebooks."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._stemmadb import Find

# Rows and columns that a notebook shows.
_ROWS_SHOWN = 20
_COLUMNS_SHOWN = 12
_CHARACTERS_SHOWN = 60


def _library(name: str) -> Any:
    """A library that is only loaded where it is used."""
    return importlib.import_module(name)


def rows(documents: Any) -> Any:
    """What `insert_many` is given, as an iterable of documents or an object that exports an Arrow stream.

    Missing values of frames are left out.
    """
    if isinstance(documents, Mapping):
        return ({**document, "_id": identifier} for identifier, document in documents.items())
    library = type(documents).__module__.partition(".")[0]
    if library == "pandas" and hasattr(documents, "to_dict"):
        return _pandas_rows(documents)
    if library == "polars" and hasattr(documents, "collect"):
        return documents.collect()
    return documents


def _pandas_rows(frame: Any) -> Iterator[dict[str, Any]]:
    # The index is made of row numbers unless somebody set one.
    if frame.index.name is not None:
        frame = frame.reset_index()
    names = [str(name) for name in frame.columns]
    columns = []
    for position in range(len(names)):
        column = frame.iloc[:, position]
        values, missing = column.astype(object).tolist(), column.isna().tolist()
        columns.append(zip(values, missing, strict=True))
    for row in zip(*columns, strict=True):
        yield {name: value for name, (value, is_missing) in zip(names, row, strict=True) if not is_missing}


def _row(document: Any) -> dict[str, Any]:
    return {"_id": document.id, **document} if hasattr(document, "_meta") else document


def to_arrow(find: Find[Any]) -> Any:
    return _library("pyarrow").table(find)


def to_pandas(find: Find[Any]) -> Any:
    numpy, pandas = _library("numpy"), _library("pandas")
    columns: dict[str, Any] = {}
    for name, kind, data, mask in find._columns():
        if kind == "object":
            columns[name] = data
            continue
        values = numpy.frombuffer(data, kind).copy()
        missing = None if mask is None else ~numpy.frombuffer(mask, "bool")
        if missing is None:
            columns[name] = values
        elif kind == "float64":
            values[missing] = numpy.nan
            columns[name] = values
        else:
            # Types that know missing values, so that integers stay integers.
            kinds = {"int64": pandas.arrays.IntegerArray, "bool": pandas.arrays.BooleanArray}
            columns[name] = kinds[kind](values, missing)
    return pandas.DataFrame(columns)


def to_polars(find: Find[Any]) -> Any:
    return _library("polars").DataFrame(find)


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return escape(text if len(text) <= _CHARACTERS_SHOWN else text[: _CHARACTERS_SHOWN - 1] + "…")


def find_html(find: Find[Any]) -> str:
    """The first rows of a query as an HTML table."""
    shown: list[Any] = list(islice(iter(find), _ROWS_SHOWN + 1))
    has_more, shown = len(shown) > _ROWS_SHOWN, [_row(row) for row in shown[:_ROWS_SHOWN]]
    columns = list(dict.fromkeys(name for row in shown for name in row))[:_COLUMNS_SHOWN]
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{_cell(row.get(name))}</td>" for name in columns) + "</tr>" for row in shown)
    more = f"<p>The first {_ROWS_SHOWN} rows of {find.count()}</p>" if has_more else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"
