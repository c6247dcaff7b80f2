"""Stemma beside other embedded databases of Python, in one run: `just bench-python`.

Each database gets the same 100,000 documents of ten fields, in a file, flushed as it does by default, and answers the
same questions; the answers are compared. Databases that are not installed are left out. `--rust` takes the figures of
`examples/figures.rs` as JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import stemmadb

CITIES = ["Oslo", "Lima", "Rome", "Kyiv", "Cairo", "Delhi", "Quito", "Paris", "Tunis", "Hanoi"]


def document(n: int) -> dict[str, Any]:
    """A document of ten fields. `examples/figures.rs` makes the same."""
    return {
        "number": n,
        "name": f"name {n * 7919 % 1_000_003}",
        "city": CITIES[n * 31 % 10],
        "price": (n * 37 % 10_000) / 100,
        "year": 1900 + n * 13 % 126,
        "active": n % 3 == 0,
        "tags": [f"t{n % 50}", f"u{n % 7}"],
        "address": {"street": f"street {n % 1000}", "zip": n % 90_000},
        "note": None if n % 5 else "a short note",
        "score": n * 97 % 1000,
    }


class Stemma:
    name = "stemma"

    def __init__(self, directory: str) -> None:
        self.db = stemmadb.open(os.path.join(directory, "db"))

    def insert_many(self, documents: list[dict[str, Any]]) -> None:
        self.db.insert_many({"_id": f"{n:08}", **document} for n, document in enumerate(documents))

    def get(self, n: int) -> Any:
        return self.db[f"{n:08}"]

    def find(self, number: int) -> list[Any]:
        return self.db.find(number=number).to_list()

    def group(self) -> dict[str, int]:
        return dict(self.db.find().group_by("city").counts())

    def frame(self) -> Any:
        return self.db.find().to_pandas()

    def close(self) -> None:
        self.db.close()


class Sqlite:
    """JSON text in a table, with an index on each expression that is asked for."""

    name = "sqlite3, JSON indexes"

    def __init__(self, directory: str) -> None:
        self.db = sqlite3.connect(os.path.join(directory, "db"))
        self.db.execute("CREATE TABLE docs (id TEXT PRIMARY KEY, body TEXT) WITHOUT ROWID")
        for path in ("number", "city"):
            self.db.execute(f"CREATE INDEX by_{path} ON docs (json_extract(body, '$.{path}'))")

    def insert_many(self, documents: list[dict[str, Any]]) -> None:
        with self.db:
            rows = ((f"{n:08}", json.dumps(document)) for n, document in enumerate(documents))
            self.db.executemany("INSERT INTO docs VALUES (?, ?)", rows)

    def get(self, n: int) -> Any:
        (body,) = self.db.execute("SELECT body FROM docs WHERE id = ?", (f"{n:08}",)).fetchone()
        return json.loads(body)

    def find(self, number: int) -> list[Any]:
        query = "SELECT body FROM docs WHERE json_extract(body, '$.number') = ?"
        return [json.loads(body) for (body,) in self.db.execute(query, (number,))]

    def group(self) -> dict[str, int]:
        city = "json_extract(body, '$.city')"
        return dict(self.db.execute(f"SELECT {city}, count(*) FROM docs GROUP BY {city}"))

    def frame(self) -> Any:
        import pandas

        return pandas.DataFrame.from_records([json.loads(body) for (body,) in self.db.execute("SELECT body FROM docs")])

    def close(self) -> None:
        self.db.close()


class TinyDb:
    name = "TinyDB"

    def __init__(self, directory: str) -> None:
        import tinydb

        self.query = tinydb.Query()
        self.db = tinydb.TinyDB(os.path.join(directory, "db.json"))

    def insert_many(self, documents: list[dict[str, Any]]) -> None:
        self.db.insert_multiple(documents)

    def get(self, n: int) -> Any:
        return self.db.get(doc_id=n + 1)

    def find(self, number: int) -> list[Any]:
        return self.db.search(self.query.number == number)

    def group(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for row in self.db:
            counts[row["city"]] = counts.get(row["city"], 0) + 1
        return counts

    def frame(self) -> Any:
        import pandas

        return pandas.DataFrame.from_records(self.db.all())

    def close(self) -> None:
        self.db.close()


class SqliteUtils:
    """Columns for scalars, JSON text for the rest, and indexes on both columns that are asked for."""

    name = "sqlite-utils"

    def __init__(self, directory: str) -> None:
        import sqlite_utils

        self.db = sqlite_utils.Database(os.path.join(directory, "db"))
        self.table = self.db["docs"]

    def insert_many(self, documents: list[dict[str, Any]]) -> None:
        self.table.insert_all(({"id": f"{n:08}", **document} for n, document in enumerate(documents)), pk="id")
        self.table.create_index(["number"])
        self.table.create_index(["city"])

    @staticmethod
    def _row(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "tags": json.loads(row["tags"]), "address": json.loads(row["address"])}

    def get(self, n: int) -> Any:
        return self._row(self.table.get(f"{n:08}"))

    def find(self, number: int) -> list[Any]:
        return [self._row(row) for row in self.table.rows_where("number = ?", [number])]

    def group(self) -> dict[str, int]:
        return {row["city"]: row["n"] for row in self.db.query("SELECT city, count(*) AS n FROM docs GROUP BY city")}

    def frame(self) -> Any:
        import pandas

        return pandas.DataFrame.from_records([self._row(row) for row in self.table.rows])

    def close(self) -> None:
        self.db.conn.close()


class Dataset:
    """As sqlite-utils; nested values are given as JSON text, which dataset does not do itself."""

    name = "dataset"

    def __init__(self, directory: str) -> None:
        import dataset

        self.db = dataset.connect(f"sqlite:///{directory}/db")
        self.table = self.db.create_table("docs", primary_id="id", primary_type=self.db.types.string(8))

    def insert_many(self, documents: list[dict[str, Any]]) -> None:
        def flat(n: int, document: dict[str, Any]) -> dict[str, Any]:
            nested = {"tags": json.dumps(document["tags"]), "address": json.dumps(document["address"])}
            return {"id": f"{n:08}", **document, **nested}

        self.table.insert_many([flat(n, document) for n, document in enumerate(documents)])
        self.table.create_index(["number"])
        self.table.create_index(["city"])

    @staticmethod
    def _row(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "tags": json.loads(row["tags"]), "address": json.loads(row["address"])}

    def get(self, n: int) -> Any:
        return self._row(self.table.find_one(id=f"{n:08}"))

    def find(self, number: int) -> list[Any]:
        return [self._row(row) for row in self.table.find(number=number)]

    def group(self) -> dict[str, int]:
        return {row["city"]: row["n"] for row in self.db.query("SELECT city, count(*) AS n FROM docs GROUP BY city")}

    def frame(self) -> Any:
        import pandas

        return pandas.DataFrame.from_records([self._row(row) for row in self.table])

    def close(self) -> None:
        self.db.close()


class Mongita:
    name = "mongita"

    def __init__(self, directory: str) -> None:
        import mongita

        self.client = mongita.MongitaClientDisk(host=directory)
        self.docs = self.client.db.docs

    def insert_many(self, documents: list[dict[str, Any]]) -> None:
        self.docs.insert_many([{"_id": f"{n:08}", **document} for n, document in enumerate(documents)])
        self.docs.create_index("number")

    def get(self, n: int) -> Any:
        return self.docs.find_one({"_id": f"{n:08}"})

    def find(self, number: int) -> list[Any]:
        return list(self.docs.find({"number": number}))

    def group(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for row in self.docs.find({}):
            counts[row["city"]] = counts.get(row["city"], 0) + 1
        return counts

    def frame(self) -> Any:
        import pandas

        return pandas.DataFrame.from_records(list(self.docs.find({})))

    def close(self) -> None:
        self.client.close()


def per_call(call: Callable[[int], Any], count: int, rounds: int, calls: int) -> float:
    """The median, over rounds, of the microseconds of a call, whose argument is always another."""
    times, state = [], 1
    for _ in range(rounds):
        numbers = []
        for _ in range(calls):
            state = state * 1_103_515_245 + 12_345 & 0x7FFF_FFFF
            numbers.append(state % count)
        begun = time.perf_counter()
        for number in numbers:
            call(number)
        times.append((time.perf_counter() - begun) / calls * 1e6)
    return statistics.median(times)


def measure(kind: Any, count: int, budget: float) -> dict[str, float] | None:
    directory = tempfile.mkdtemp(prefix="stemma-bench-")
    try:
        documents = [document(n) for n in range(count)]
        try:
            database = kind(directory)
        except ImportError:
            return None
        gc.collect()
        begun = time.perf_counter()
        database.insert_many(documents)
        figures = {"insert_many, documents/s": count / (time.perf_counter() - begun)}

        for n in (0, count // 2, count - 1):
            got, found = dict(database.get(n)), database.find(n)
            assert all(got[name] == value for name, value in documents[n].items()), (kind.name, n, got)
            assert len(found) == 1 and found[0]["name"] == documents[n]["name"], (kind.name, n, found)
        expected = {city: sum(row["city"] == city for row in documents) for city in CITIES}
        assert database.group() == expected, kind.name
        assert len(database.frame()) == count, kind.name

        def calls(call: Callable[[int], Any]) -> float:
            begun = time.perf_counter()
            call(1)
            once = time.perf_counter() - begun
            number = max(1, min(20_000, int(budget / 5 / max(once, 1e-6))))
            return per_call(call, count, 5, number)

        figures["get, µs"] = calls(database.get)
        figures["find by index, µs"] = calls(database.find)
        figures["group by, µs"] = calls(lambda _: database.group())
        figures["to DataFrame, ms"] = per_call(lambda _: database.frame(), 1, 3, 1) / 1000
        database.close()
        return figures
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row of calls")
    parser.add_argument("--only", nargs="*", help="names of databases")
    parser.add_argument("--rust", default="{}", help="figures of the Rust library, as JSON")
    arguments = parser.parse_args()
    kinds = [Stemma, Sqlite, SqliteUtils, Dataset, TinyDb, Mongita]
    load = os.getloadavg()[0]
    results: dict[str, dict[str, float]] = {}
    for kind in kinds:
        if arguments.only and kind.name not in arguments.only:
            continue
        figures = measure(kind, arguments.count, arguments.seconds)
        print(f"{kind.name}: {'not installed' if figures is None else 'measured'}", file=sys.stderr)
        if figures is not None:
            results[kind.name] = figures
    rust = json.loads(arguments.rust)
    if rust:
        results["Rust library"] = rust
    print(f"Python {platform.python_version()}, {arguments.count:,} documents, load {load:.1f} at the beginning\n")
    names = list(results)
    print("| | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for row in next(iter(results.values())):
        cells = [f"{results[name][row]:,.{0 if results[name][row] >= 100 else 1}f}" if row in results[name] else "" for name in names]
        print(f"| {row} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
