"""Write and read the capture file: one SQLite database, written while the program runs.

The rows of integer tables are stored in the table `chunks`. Each of its rows holds many rows of one column
(`columns.py`). One SQLite row per row would take ten times the space and the time. Each flush is one commit, with a
rollback journal and without fsync. A killed process loses only the rows since its last commit. A reader may open the
file at any time.

A job of thousands of ranks reads only the metadata and the summary of each file (`read_head`). They can be read from
files of any format, because `meta` is a table of keys and JSON in all formats, and summaries have a version of their
own.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import sqlite3
import tempfile
import threading
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from memwatch.capture.check import (
    checked,
    damage_of,
    length_of,
    opened,
    require_tables,
    rows_within,
    split_by_validity,
)
from memwatch.capture.columns import (
    INTEGER_TABLES,
    MOST_ROWS,
    Capture,
    Chunk,
    Note,
    deflated,
    empty_tables,
    encoded,
)
from memwatch.capture.schema import FORMAT_VERSION, OLDEST_FORMAT, RECORDED_BY_NAME
from memwatch.errors import CaptureError, DamagedCaptureError
from memwatch.output_files import FileIdentity, OutputError, check_outputs, remove_if_same, whole_file
from memwatch.text import read_json, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memwatch.capture.columns import ChunkedTable

APPLICATION_ID: Final = 0x6D656D77  # "memw", distinguishes a capture from other databases
_BUSY_S: Final = 10.0  # seconds to wait while another process writes; a guess
_LOCKED_S: Final = 10.0
"""How long the program waits for others that have locked its file. Readers lock it while they copy it to memory. Rows
that cannot be written in this time are kept in memory, and are written at the end. A guess."""
_LOCKED: Final = (5, 6)
"""The codes SQLITE_BUSY and SQLITE_LOCKED."""
_EXISTS: Final = "{} exists; choose another name, or remove it first"
_EXISTS_SAVED: Final = "{} exists; choose another name, or pass force=True to replace it"
_ALONE: Final = "leave a capture alone while its program runs"
_SURROGATES: Final = re.compile("[\\ud800-\\udfff]")
_COLUMNS: Final = (
    'chunks ("table" TEXT, "column" TEXT, rows INTEGER, low INTEGER, high INTEGER, checksum INTEGER, data BLOB)',
    "strings (id INTEGER, text TEXT)",
    "notes (op INTEGER, kind TEXT, text TEXT)",
    "meta (key TEXT, value TEXT)",
)
TABLES: Final = {columns.partition(" ")[0]: f"CREATE TABLE {columns}" for columns in _COLUMNS}
"""The tables by name, each with its CREATE TABLE statement. A reader refuses a file whose statements differ."""
_ROWS_PER_BYTE: Final = 2
"""The most rows per byte of a file: three times the densest file that we measured.

Loops of equal ops with only numbers have 0.63 rows in a byte, training steps 0.43.
"""
_MOST_ROWS_ALWAYS: Final = 1 << 18
"""Rows that a file may have, however small it is. A guess."""
_CHUNK: Final = ('"table"', '"column"', "rows", "low", "high", "checksum", "data")
_STARTED: Final = "started_s"
"""The key of `meta` whose value differs between two recordings."""
SUMMARY: Final = "summary"
"""The key of `meta` for the summary of a rank. A reader of the tables skips it, because they have the same data."""


class CaptureWriter:
    """Write recorded rows to a new file, from any thread.

    Before each transaction it checks that its path still leads to its own file, with at least the length of the last
    commit. SQLite would otherwise add rows to another capture that was copied over it, or write into a file that has
    lost its name.
    """

    def __init__(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        self.path = pathlib.Path(path)
        self._lock = threading.Lock()
        self._absolute = self.path.absolute()  # the program may change its working directory
        self._written_bytes = self._data_version = 0
        with contextlib.ExitStack() as opened:
            try:
                # The file gets its name with its tables. If two processes replace one name, both files are whole at
                # all times: the later one stays, and the process of the earlier one notices it at its next write.
                with whole_file(self.path, force=force, exists=_EXISTS) as part:
                    self._identity = _make_tables(part)
                    # until SQLite has it open: a file that lost its name would else leave its inode to another one
                    opened.enter_context(part.open("rb"))
                # SQLite would apply the journal that a killed writer left for an earlier file of this name
                pathlib.Path(f"{self._absolute}-journal").unlink(missing_ok=True)
                self._database = _opened_for_writing(self._absolute)
            except OutputError as error:
                raise CaptureError(str(error)) from error
            except (OSError, sqlite3.Error) as error:
                raise CaptureError(f"cannot write {self.path}: {error}; choose a writable place") from error
            try:
                # an unchanged name after the opening means that SQLite has this file: none gets its name twice
                self._require_unchanged()
                (self._data_version,) = self._database.execute("PRAGMA data_version").fetchone()
                self._written_bytes = self._absolute.stat().st_size
            except CaptureError:
                self.discard()
                raise
            except (OSError, sqlite3.Error) as error:
                self.discard()
                raise CaptureError(f"cannot write {self.path}: {error}; choose a writable place") from error

    def write(
        self,
        tables: Mapping[str, Iterable[Sequence[Chunk]]],
        strings: Iterable[tuple[int, str]] = (),
        notes: Iterable[Note] = (),
    ) -> None:
        """Append in one transaction.

        Args:
            tables: for each table by its name, a list of runs. A run of rows has one chunk per column, in the order
                of the schema.
            strings: texts with their numbers.
            notes: remarks, such as events that memwatch could not see.

        Raises:
            CaptureError: nothing was written, for example because the disk is full or the file is gone.
        """
        # compressed here, before the file is locked
        rows = [row for name, runs in tables.items() for run in runs for row in _rows_of(name, run)]
        with self._transaction() as database:
            database.executemany("INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            database.executemany("INSERT INTO strings VALUES (?, ?)", map(_storable, strings))
            texts = ((note.op, note.kind, note.text) for note in notes)
            database.executemany("INSERT INTO notes VALUES (?, ?, ?)", map(_storable, texts))

    def write_meta(self, meta: dict[str, Any]) -> None:
        """Replace the rows of `meta`.

        Raises:
            CaptureError: as `write` does.
        """
        with self._transaction() as database:
            database.execute("DELETE FROM meta")
            rows = [(key, json.dumps(value)) for key, value in meta.items()]
            database.executemany("INSERT INTO meta VALUES (?, ?)", map(_storable, rows))

    def make_long_enough(self, rows: int) -> None:
        """Add free pages, so that a reader accepts this many rows (`most_rows`). Equal rows take almost no bytes."""
        missing = (rows - most_rows(self._absolute.stat().st_size)) // _ROWS_PER_BYTE
        if missing > 0:
            for change in (
                "INSERT INTO meta SELECT '', zeroblob(?)",
                "DELETE FROM meta WHERE length(value) = ?",
            ):
                # one commit each, or SQLite would never write the pages
                with self._transaction() as database:
                    database.execute(change, (missing,))

    def tables(self) -> dict[str, ChunkedTable]:
        """Return the integer tables that were written so far, even if the file has lost its name.

        Raises:
            CaptureError: the rows so far cannot be read.
        """
        with self._lock, _with_clear_errors(self.path):
            return _tables_in(self._database)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            has_begun = False
            try:
                self._require_unchanged()
                self._database.execute("BEGIN IMMEDIATE")
                (data_version,) = self._database.execute("PRAGMA data_version").fetchone()
                if data_version != self._data_version:
                    raise CaptureError(
                        f"cannot write {self.path}: another program has written into it; {_ALONE}"
                    )
                has_begun = True
                yield self._database
                self._database.execute("COMMIT")
                with contextlib.suppress(OSError):  # if the file is gone, the next write reports it
                    self._written_bytes = self._absolute.stat().st_size
            except BaseException as error:
                _undo(self._database)
                with contextlib.suppress(sqlite3.Error):
                    if has_begun:  # SQLite may count the undone write as one of another program
                        (self._data_version,) = self._database.execute("PRAGMA data_version").fetchone()
                if isinstance(error, sqlite3.Error):
                    self._require_unchanged()
                    if _is_locked(error):
                        raise CaptureError(
                            f"cannot write {self.path}: another program has locked it for {_LOCKED_S:.0f} s; {_ALONE}"
                        ) from error
                    raise CaptureError(f"cannot write {self.path}: {error}; make room for it") from error
                raise

    def _require_unchanged(self) -> None:
        """Raise if another program has removed the file, put another in its place, or cut it off."""
        try:
            found = os.lstat(self._absolute)
        except FileNotFoundError:
            raise CaptureError(
                f"cannot write {self.path}: another program has removed it; {_ALONE}"
            ) from None
        except OSError as error:
            raise CaptureError(f"cannot write {self.path}: {error.strerror}; {_ALONE}") from error
        if (found.st_dev, found.st_ino) != self._identity:
            raise CaptureError(f"cannot write {self.path}: another file has taken its place; {_ALONE}")
        if found.st_size < self._written_bytes:
            raise CaptureError(
                f"cannot write {self.path}: another program has cut it off, to {found.st_size} of "
                f"{self._written_bytes} bytes; {_ALONE}"
            )

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    def discard(self) -> None:
        """Close and delete the file of a recording that did not begin."""
        self.close()
        remove_if_same(self._absolute, self._identity)


def _opened_for_writing(path: pathlib.Path) -> sqlite3.Connection:
    database = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=_LOCKED_S,
        check_same_thread=False,
        isolation_level=None,
    )
    database.execute("PRAGMA synchronous = OFF")
    return database


def _make_tables(path: pathlib.Path) -> FileIdentity:
    """Make an empty capture of an empty file; return the identity of the file."""
    with contextlib.closing(_opened_for_writing(path)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
        database.execute("BEGIN")
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        for text in TABLES.values():
            database.execute(text)
        database.execute("COMMIT")
    return FileIdentity.of(path.stat())


def _undo(database: sqlite3.Connection) -> None:
    """Roll back a transaction that failed, so that the file has its content from before, and no journal.

    If the disk is full after SQLite has written a part of the transaction into the file, ROLLBACK only drops SQLite's
    cache. The journal stays, and the next access to the file undoes the write with it.
    """
    for statement in ("ROLLBACK", "SELECT 1 FROM sqlite_master LIMIT 1"):
        with contextlib.suppress(sqlite3.Error):
            database.execute(statement).fetchone()


def _is_locked(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)  # new in Python 3.11
    return "locked" in str(error) if code is None else code & 0xFF in _LOCKED


def _rows_of(name: str, chunks: Sequence[Chunk]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of `chunks` for a run of rows."""
    for column, chunk in zip(RECORDED_BY_NAME[name].names, map(deflated, chunks), strict=True):
        yield name, column, *chunk[:3], zlib.crc32(chunk.data), chunk.data


def _storable(row: Iterable[Any]) -> tuple[Any, ...]:
    """Return a row that SQLite accepts. A file name with bytes that are not text is stored as a blob."""
    row = tuple(row)
    if not any(isinstance(value, str) and not value.isascii() for value in row):
        return row
    return tuple(
        value.encode("utf-8", "surrogatepass")
        if isinstance(value, str) and _SURROGATES.search(value)
        else value
        for value in row
    )


def text_of(value: object) -> str:
    """Return a text of the file. Texts that cannot be encoded were stored as bytes."""
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else str(value)


def save(capture: Capture, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write a capture to a file, whole or not at all.

    Args:
        capture: the recording.
        path: the file to make.
        force: overwrite an existing file.

    Raises:
        CaptureError: the file exists and `force` is not given, or it cannot be written.
    """
    target = pathlib.Path(path)
    try:
        check_outputs([target], force=force, exists=_EXISTS_SAVED)
        with (
            whole_file(target, force=force, exists=_EXISTS_SAVED) as part,
            tempfile.TemporaryDirectory(dir=target.parent, prefix=".memwatch-") as folder,
        ):
            writer = CaptureWriter(pathlib.Path(folder) / "capture")
            try:
                tables = {name: _runs(capture, name) for name in INTEGER_TABLES}
                writer.write(tables, enumerate(capture.strings), capture.notes)
                writer.make_long_enough(sum(map(capture.rows, INTEGER_TABLES)))
                writer.write_meta(capture.meta)
            finally:
                writer.close()
            writer.path.replace(part)
    except (OutputError, OSError, sqlite3.Error) as error:
        raise CaptureError(
            str(error)
            if isinstance(error, OutputError)
            else f"cannot write {target}: {error}; choose a writable place"
        ) from error


def _runs(capture: Capture, name: str) -> Iterator[list[Chunk]]:
    """Yield the rows of a table in runs that a chunk can hold."""
    columns = capture.tables[name]
    for start in range(0, capture.rows(name), MOST_ROWS):
        yield encoded(np.stack([column[start : start + MOST_ROWS] for column in columns.values()], axis=1))


def load(path: str | os.PathLike[str]) -> Capture:
    """Read a capture file, finished or not; nothing in it is executed.

    Args:
        path: a file written by `memwatch.profile(path=...)`, `save` or `memwatch run`.

    Raises:
        CaptureError: the file is missing or damaged, is not a capture, or comes from another version of memwatch.
    """
    recorded = _Recorded()
    with _opened(path) as database:
        recorded.read_on(database)
    # the file is free again: a program that writes it waits no longer
    with _with_clear_errors(pathlib.Path(path)):
        parts = recorded.parts()
        del recorded  # so that each chunk is freed once its column is decoded
        return checked(*parts)


class GrowingCapture:
    """A capture file that is read again while a program writes it. Each time, only new rows are read.

    Args:
        path: the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = pathlib.Path(path)
        self._recorded = _Recorded()

    def read(self) -> Capture:
        """Return the current content of the file.

        Raises:
            CaptureError: as `load` does.
        """
        with _opened(self._path) as database:
            if not self._recorded.is_of(database):  # another recording has the name now
                self._recorded = _Recorded()
            self._recorded.read_on(database)
        with _with_clear_errors(self._path):
            return checked(*self._recorded.parts())


def read_tables(path: str | os.PathLike[str]) -> dict[str, ChunkedTable]:
    """Return the integer tables of a file, as they are in it.

    Raises:
        CaptureError: as `load` does.
    """
    with _opened(path) as database:
        return _tables_in(database)


def _tables_in(database: sqlite3.Connection) -> dict[str, ChunkedTable]:
    recorded = _Recorded()
    recorded.read_on(database)
    return recorded.parts()[0]


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[sqlite3.Connection]:
    source = pathlib.Path(path)
    with _with_clear_errors(source), opened(source, busy_s=_BUSY_S) as database:
        _check_format(database, source)
        require_tables(database, TABLES)
        yield database


@contextlib.contextmanager
def _with_clear_errors(source: pathlib.Path) -> Iterator[None]:
    """Turn the errors of a damaged file into one clear error.

    Raises:
        CaptureError: the file is damaged.
    """
    try:
        yield
    except CaptureError as error:
        if not isinstance(error, DamagedCaptureError):
            raise
        raise CaptureError(f"{source} cannot be read as a capture: {error}; record it again") from error
    except (sqlite3.Error, ValueError, TypeError, OverflowError, LookupError) as error:
        raise CaptureError(
            f"{source} cannot be read as a capture: {damage_of(error)}; record it again"
        ) from error


def _check_format(database: sqlite3.Connection, source: pathlib.Path) -> None:
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise CaptureError(f"{source} is not a memwatch capture; record one with `memwatch run script.py`")
    if version < OLDEST_FORMAT:
        raise CaptureError(
            f"{source} has format {version}, which an older memwatch wrote; this memwatch reads formats "
            f"{OLDEST_FORMAT} to {FORMAT_VERSION}: record it again"
        )
    if version > FORMAT_VERSION:
        raise CaptureError(
            f"{source} has format {version}, this memwatch reads formats {OLDEST_FORMAT} to {FORMAT_VERSION}; "
            "upgrade memwatch to read it"
        )


class _Recorded:
    """The rows of a file that were read so far. A program only appends rows to a file, except to `meta`."""

    def __init__(self) -> None:
        self._chunks: list[tuple[Any, ...]] = []
        self._strings: list[tuple[Any, ...]] = []
        self._notes: list[tuple[Any, ...]] = []
        self._meta: list[tuple[Any, ...]] = []
        self._length_bytes = 0

    def is_of(self, database: sqlite3.Connection) -> bool:
        """Return True if this file has the recording that the rows so far belong to, or if there are no rows."""
        known = [row for row in self._meta if row[0] == _STARTED]
        query = "SELECT key, value FROM meta WHERE key = ?"
        return not known or database.execute(query, (_STARTED,)).fetchall() == known

    def read_on(self, database: sqlite3.Connection) -> None:
        """Read the new rows. They are checked later, because a program that writes the file has to wait meanwhile."""
        self._length_bytes = length = length_of(database)
        for rows, columns in (
            (self._chunks, f"chunks.{', chunks.'.join(_CHUNK)}"),
            (self._strings, "strings.id, strings.text"),
            (self._notes, "notes.op, notes.kind, notes.text"),
        ):
            table = columns.partition(".")[0]
            # rowids are 1, 2, ... because nothing deletes rows of these tables
            query = f"SELECT {columns} FROM {table} WHERE rowid > ? ORDER BY rowid"  # noqa: S608  # names written above
            rows.extend(rows_within(database.execute(query, (len(rows),)), length))
        query = "SELECT key, value FROM meta WHERE key != ?"
        self._meta = list(rows_within(database.execute(query, (SUMMARY,)), length))

    def parts(self) -> tuple[dict[str, ChunkedTable], list[str], dict[str, Any], list[Note]]:
        """Return tables, texts, metadata and notes.

        Raises:
            DamagedCaptureError: they do not belong together.
        """
        strings = {int(number): text_of(text) for number, text in self._strings}
        if sorted(strings) != list(range(len(strings))):
            raise DamagedCaptureError("its string ids have gaps")
        texts = [strings[number] for number in range(len(strings))]
        meta = {text_of(key): read_json(text_of(value)) for key, value in self._meta}
        notes = [Note(op, text_of(kind), text_of(text)) for op, kind, text in self._notes]
        return _tables_of(self._chunks, most_rows(self._length_bytes)), texts, meta, notes


def most_rows(length_bytes: int) -> int:
    """Return how many rows the integer tables of a file may have.

    Rows of equal numbers take no bytes, so a small file could fill the memory.
    """
    return _MOST_ROWS_ALWAYS + _ROWS_PER_BYTE * length_bytes


def _tables_of(recorded: Iterable[Sequence[Any]], left: int) -> dict[str, ChunkedTable]:
    """Return the integer tables: unchanged chunks, with equally many rows in each column of a table.

    Args:
        recorded: rows of the table `chunks`.
        left: the most rows that the tables may have.
    """
    tables = empty_tables()
    waiting: dict[str, list[Chunk]] = {}
    for name, column, rows, low, high, checksum, data in recorded:
        if name not in RECORDED_BY_NAME:
            raise DamagedCaptureError(
                f"it holds rows of a table {visible(repr(name)[:60])}, which captures don't have"
            )
        run = waiting.setdefault(name, [])
        chunk = Chunk(int(rows), int(low), int(high), data)
        if RECORDED_BY_NAME[name].names[len(run)] != column or chunk.rows != (run or [chunk])[0].rows:
            raise DamagedCaptureError(f"the columns of its table {name} do not belong together")
        if not 0 < chunk.rows <= MOST_ROWS or zlib.crc32(data) != checksum:
            raise DamagedCaptureError(f"column {column} of its table {name} is damaged")
        run.append(chunk)
        if len(run) == len(RECORDED_BY_NAME[name].names):
            tables[name].append_chunks(waiting.pop(name))
            left -= chunk.rows
            if left < 0:
                raise DamagedCaptureError("it has more rows than its bytes can hold")
    if waiting:
        raise DamagedCaptureError(f"columns of its tables {', '.join(waiting)} are missing")
    return tables


class Head(NamedTuple):
    """The data of a file without its tables.

    Attributes:
        meta: the metadata.
        summary: the summary, or None for a file without a summary.
        format_version: the format of the file.
    """

    meta: dict[str, Any]
    summary: dict[str, Any] | None
    format_version: int

    @property
    def is_readable(self) -> bool:
        """Whether this memwatch can read the tables."""
        return OLDEST_FORMAT <= self.format_version <= FORMAT_VERSION


def read_head(path: str | os.PathLike[str]) -> Head:
    """Return the content of a capture of any format without its tables.

    Raises:
        CaptureError: the file is missing or is not a capture, or this part of it is damaged.
    """
    source = pathlib.Path(path)
    try:
        with opened(source, busy_s=_BUSY_S) as database:
            (application,) = database.execute("PRAGMA application_id").fetchone()
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if application != APPLICATION_ID:
                raise CaptureError(f"{source} is not a memwatch capture")
            require_tables(database, {"meta": TABLES["meta"]}, others=True)
            query = database.execute("SELECT key, value FROM meta")
            rows = list(rows_within(query, length_of(database)))
        meta = {text_of(key): read_json(text_of(value)) for key, value in rows}
    except (DamagedCaptureError, sqlite3.Error, ValueError, TypeError) as error:
        raise CaptureError(f"{source} cannot be read as a capture: {damage_of(error)}") from error
    summary = meta.pop(SUMMARY, None)
    return Head(split_by_validity(meta)[0], summary if isinstance(summary, dict) else None, int(version))


def add_summary(path: str | os.PathLike[str], summary: dict[str, Any]) -> None:
    """Write the summary into a capture that is finished.

    Raises:
        CaptureError: the file cannot be written.
    """
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)) as database:
            try:
                database.execute("PRAGMA synchronous = OFF")
                database.execute("BEGIN IMMEDIATE")
                database.execute("DELETE FROM meta WHERE key = ?", (SUMMARY,))
                database.execute("INSERT INTO meta VALUES (?, ?)", (SUMMARY, json.dumps(summary)))
                database.execute("COMMIT")
            except sqlite3.Error:
                _undo(database)
                raise
    except sqlite3.Error as error:
        raise CaptureError(f"cannot write the summary into {path}: {error}") from error
