"""The capture file: one SQLite database, one table per table of the schema, written while the program runs.

Rows are committed in short transactions with a rollback journal and without fsync: a process that is killed
loses what was not committed, never what was, and a reader may open the file at any time.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
import sqlite3
import tempfile
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.capture.capture import INTEGER_TABLES, Capture, Note
from memwatch.capture.schema import FORMAT_VERSION, RECORDED, RECORDED_BY_NAME
from memwatch.errors import MemwatchError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    from memwatch.capture.packed import IntArray

_APPLICATION_ID: Final = 0x6D656D77  # "memw", distinguishes a capture from other databases
_BUSY_S: Final = 10.0
_READ_S: Final = 60.0  # how long a reader may keep the writer waiting
_SURROGATES: Final = re.compile("[\\ud800-\\udfff]")


class CaptureError(MemwatchError):
    """A capture file that cannot be written or read."""


class CaptureWriter:
    """Write recorded rows to a new file, from any thread."""

    def __init__(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        self.path = pathlib.Path(path)
        self._lock = threading.Lock()
        if self.path.exists():
            if not force:
                raise CaptureError(
                    f"{self.path} exists; choose another name or overwrite it (-f, force=True)"
                )
            self.path.unlink()
        if not self.path.parent.is_dir():
            raise CaptureError(
                f"cannot write {self.path}: {self.path.parent} is not a directory; create it first"
            )
        try:
            self._database = sqlite3.connect(
                self.path, timeout=_READ_S, check_same_thread=False, isolation_level=None
            )
        except sqlite3.Error as error:
            raise CaptureError(f"cannot write {self.path}: {error}; choose a writable place") from error
        try:
            self._create()
        except sqlite3.Error as error:
            self.discard()
            raise CaptureError(f"cannot write {self.path}: {error}; choose a writable place") from error

    def _create(self) -> None:
        run = self._database.execute
        run("PRAGMA journal_mode = DELETE")
        run("PRAGMA synchronous = OFF")
        run("BEGIN")
        run(f"PRAGMA application_id = {_APPLICATION_ID}")
        run(f"PRAGMA user_version = {FORMAT_VERSION}")
        for table in RECORDED:
            columns = ", ".join(
                f'"{column.name}" {"TEXT" if column.kind == "text" else "INTEGER"}'
                for column in table.columns
            )
            run(f'CREATE TABLE "{table.name}" ({columns})')
        run("COMMIT")

    def write(self, tables: dict[str, Iterable[tuple[Any, ...]]]) -> None:
        """Append rows to tables in one transaction.

        Raises:
            CaptureError: nothing of it could be written: the disk is full, or the file is gone.
        """
        with self._transaction() as database:
            for name, rows in tables.items():
                marks = ", ".join("?" * len(RECORDED_BY_NAME[name].columns))
                insert = f'INSERT INTO "{name}" VALUES ({marks})'  # noqa: S608  # the schema's own name
                database.executemany(insert, map(_storable, rows))

    def write_meta(self, meta: dict[str, Any]) -> None:
        """Replace the rows of `meta`.

        Raises:
            CaptureError: as `write` does.
        """
        with self._transaction() as database:
            database.execute("DELETE FROM meta")
            rows = [(key, json.dumps(value)) for key, value in meta.items()]
            database.executemany("INSERT INTO meta VALUES (?, ?)", map(_storable, rows))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._database.execute("BEGIN IMMEDIATE")
                yield self._database
                self._database.execute("COMMIT")
            except BaseException as error:
                with contextlib.suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise CaptureError(f"cannot write {self.path}: {error}; make room for it") from error
                raise

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    def discard(self) -> None:
        """Close and delete the file of a recording that did not begin."""
        self.close()
        self.path.unlink(missing_ok=True)


def _storable(row: Iterable[Any]) -> tuple[Any, ...]:
    """Return a row that SQLite accepts: a file name may hold bytes that are no text; they are stored as a blob."""
    row = tuple(row)
    if not any(isinstance(value, str) and not value.isascii() for value in row):
        return row
    return tuple(
        value.encode("utf-8", "surrogatepass")
        if isinstance(value, str) and _SURROGATES.search(value)
        else value
        for value in row
    )


def _text(value: object) -> str:
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else str(value)


def save(capture: Capture, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write a capture to a file, whole or not at all.

    Args:
        capture: what was recorded.
        path: the file to make.
        force: overwrite an existing file.

    Raises:
        CaptureError: the file exists and `force` is not given, or it cannot be written.
    """
    target = pathlib.Path(path)
    if target.exists() and not force:
        raise CaptureError(f"{target} exists; choose another name or overwrite it (-f, force=True)")
    if not target.parent.is_dir():
        raise CaptureError(f"cannot write {target}: {target.parent} is not a directory; create it first")
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".memwatch-") as folder:
            writer = CaptureWriter(pathlib.Path(folder) / target.name)
            tables: dict[str, Iterable[tuple[Any, ...]]] = {
                name: zip(*(column.tolist() for column in capture.tables[name].values()), strict=True)
                for name in INTEGER_TABLES
            }
            writer.write(
                {
                    **tables,
                    "strings": list(enumerate(capture.strings)),
                    "notes": [_row(note) for note in capture.notes],
                }
            )
            writer.write_meta(capture.meta)
            writer.close()
            writer.path.replace(target)
    except (OSError, sqlite3.Error) as error:
        raise CaptureError(f"cannot write {target}: {error}; choose a writable place") from error


def _row(note: Note) -> tuple[Any, ...]:
    return (note.op, note.kind, note.text)


def load(path: str | os.PathLike[str]) -> Capture:
    """Read a capture file, finished or not; nothing in it is executed.

    Args:
        path: a file written by `memwatch.profile(path=...)`, `save` or `memwatch run`.

    Raises:
        CaptureError: there is no such file, it is no capture, it is damaged, or another version of memwatch wrote it.
    """
    source = pathlib.Path(path)
    if not source.is_file():
        raise CaptureError(f"{source} is not a file; record one with `memwatch run -o {source} script.py`")
    try:
        with contextlib.closing(sqlite3.connect(source, timeout=_BUSY_S)) as database:
            _check_format(database, source)
            return _read(database)
    except (sqlite3.Error, ValueError, TypeError, OverflowError, LookupError) as error:
        raise CaptureError(f"{source} cannot be read as a capture: {error}; record it again") from error


def _check_format(database: sqlite3.Connection, source: pathlib.Path) -> None:
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION_ID:
        raise CaptureError(f"{source} is not a memwatch capture; record one with `memwatch run script.py`")
    if version < FORMAT_VERSION:
        raise CaptureError(
            f"{source} has format {version}, which an older memwatch wrote; this memwatch reads format "
            f"{FORMAT_VERSION}: record it again"
        )
    if version > FORMAT_VERSION:
        raise CaptureError(
            f"{source} has format {version}, this memwatch reads {FORMAT_VERSION}; upgrade memwatch to read it"
        )


def _check_length(database: sqlite3.Connection) -> None:
    """Refuse a file whose end is missing: SQLite reads a page that is cut off as zeros."""
    (pages,), (page_bytes,) = (
        database.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size")
    )
    (_, _, path) = database.execute("PRAGMA database_list").fetchone()
    length_bytes = pathlib.Path(path).stat().st_size
    if length_bytes < pages * page_bytes:
        raise ValueError(f"it has {length_bytes} of {pages * page_bytes} bytes")


def _read(database: sqlite3.Connection) -> Capture:
    database.execute("BEGIN")  # one snapshot for all tables, while the program may still be writing
    _check_length(database)
    columns: dict[str, list[IntArray]] = {}
    for name in INTEGER_TABLES:
        names = RECORDED_BY_NAME[name].names
        chosen = ", ".join(f'"{column}"' for column in names)
        select = f'SELECT {chosen} FROM "{name}" ORDER BY rowid'  # noqa: S608  # the schema's own names
        rows = database.execute(select).fetchall()
        columns[name] = list(np.array(rows, dtype=np.int64).reshape(-1, len(names)).T)
    strings: dict[int, str] = {
        int(number): _text(text) for number, text in database.execute("SELECT id, text FROM strings")
    }
    if max(strings, default=-1) >= len(strings):
        raise ValueError("its string ids have gaps")
    texts = [strings.get(number, "") for number in range(max(strings, default=-1) + 1)]
    meta = {
        _text(key): json.loads(_text(value)) for key, value in database.execute("SELECT key, value FROM meta")
    }
    notes = [
        Note(op, _text(kind), _text(text))
        for op, kind, text in database.execute("SELECT op, kind, text FROM notes ORDER BY rowid")
    ]
    return Capture.from_columns(columns, texts, meta, notes)
