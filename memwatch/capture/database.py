"""Open the database of a capture from an unknown source, so that no code in it runs and reading it ends soon.

SQLite's page "Defense Against The Dark Arts" lists the dangers of a hostile file. A view or a virtual table under the
name of a table computes rows without end. Pages that refer to each other yield the same rows again and again. A
journal beside the file names another file, which SQLite removes after a rollback. So memwatch opens the file
read-only, and accepts only the tables of a capture. It stops reading when there are more rows than a file of this
length can hold.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING, Any, Final

from memwatch.errors import CaptureError, DamagedCaptureError

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator, Mapping

MAGIC: Final = b"SQLite format 3\0"
"""How every file begins that SQLite wrote."""
_LIMIT_LENGTH: Final = 0
_LIMIT_ATTACHED: Final = 7
"""SQLite's numbers of limits, SQLITE_LIMIT_LENGTH and SQLITE_LIMIT_ATTACHED."""
_HEAD_BYTES: Final = 100  # the header of a file of SQLite
_VERSIONS: Final = slice(18, 20)
"""Where the head says how the file is written: 1 with a rollback journal, 2 with a write-ahead log."""
_ROLLBACK_JOURNAL: Final = b"\1\1"
_SUPER_JOURNAL: Final = bytes.fromhex("d9d505f920a163d7")
"""How a journal ends that names another file."""
_LONGEST_SCHEMA_BYTES: Final = 1 << 16
"""Bytes. A longer value in the schema is refused. A guess: memwatch's own are far shorter."""
_LONGEST_VALUE_BYTES: Final = 64 << 20
"""A full chunk has 8 MiB. The longest text is JSON about segments of an allocator: megabytes."""
_SCHEMA_STEPS: Final = 100_000
"""Steps of SQLite's machine to read the schema. A capture needs about a hundred."""
_STEPS_PER_CALL: Final = 1_000
"""Steps of SQLite's machine between two checks of their number. A guess."""
_BATCH_ROWS: Final = 256
"""Rows that are fetched together. A guess."""
_CELL_BYTES: Final = 5
"""Bytes that SQLite needs at least for a row, besides a byte for each column and the text in it."""
_MOST_SPARSE: Final = 32
"""A file that is so many times longer than its space on the disk is mostly holes.

File systems that compress shrink captures, which are deflated already, far less.
"""


@contextlib.contextmanager
def opened(source: pathlib.Path, *, busy_s: float) -> Iterator[sqlite3.Connection]:
    """Yield a connection that reads one snapshot of a file; call `require_tables` before any of its tables is read.

    Args:
        source: the file.
        busy_s: how long to wait for a program that writes it.

    Raises:
        CaptureError: memwatch cannot have written this database. sqlite3.Error: it is damaged.
    """
    check_is_database(source)
    try:
        connection = _connected(source, "ro", busy_s)
    except sqlite3.Error:
        if not os.path.exists(_beside(source, "journal")):
            raise
        _roll_back(source, busy_s)
        connection = _connected(source, "ro", busy_s)
    with contextlib.closing(connection) as database:
        yield database


def require_tables(database: sqlite3.Connection, tables: Mapping[str, str], *, others: bool = False) -> None:
    """Raise unless a file holds these tables as memwatch makes them, and nothing else.

    Args:
        database: from `opened`.
        tables: by name the text that makes the table.
        others: whether there may be more; the caller reads nothing of it.

    Raises:
        DamagedCaptureError: with the unexpected or missing table.
    """
    length, left = length_of(database), dict(tables)
    query = database.execute("SELECT type, name, tbl_name, sql FROM sqlite_master")
    for kind, name, table, sql in rows_within(query, length):
        if kind == "table" and name == table and name in left and left[name] == sql:
            del left[name]
        elif not others or name in tables:
            raise DamagedCaptureError(f"it holds the {kind} {str(name)[:60]!r}, which memwatch did not make")
    if left:
        raise DamagedCaptureError(f"it has no table {next(iter(left))}")
    _limit(database, _LONGEST_VALUE_BYTES, _SCHEMA_STEPS + 4 * length)


def rows_within(rows: sqlite3.Cursor, most_bytes: int) -> Iterator[tuple[Any, ...]]:
    """Yield rows of a file as long as its bytes can hold them.

    Raises:
        DamagedCaptureError: there are more, because its pages refer to each other.
    """
    left = most_bytes
    while batch := rows.fetchmany(_BATCH_ROWS):
        left -= sum(
            len(value) for row in batch for value in row if value.__class__ is bytes or value.__class__ is str
        )
        left -= len(batch) * (_CELL_BYTES + len(batch[0]))
        if left < 0:
            raise DamagedCaptureError(f"its rows are more than its {most_bytes:,} bytes can hold")
        yield from batch


def length_of(database: sqlite3.Connection) -> int:
    """Return how many bytes of a file are its pages.

    Raises:
        DamagedCaptureError: its end is missing, which SQLite would read as zeros, or most of it is a hole.
    """
    (pages,), (page_bytes,) = (
        database.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size")
    )
    (_, _, path) = database.execute("PRAGMA database_list").fetchone()
    length = int(pages) * int(page_bytes)
    try:
        found = os.stat(path)
    except FileNotFoundError:  # removed, and read on through the open file
        return length
    if found.st_size < length:
        raise DamagedCaptureError(f"it is cut off: it has {found.st_size} of {length} bytes")
    on_disk = 512 * getattr(found, "st_blocks", 0)  # 0 where the file system does not say
    if on_disk and length > _MOST_SPARSE * on_disk:
        raise DamagedCaptureError(
            f"its length is {length:,} bytes, but only {on_disk:,} are stored; the rest is a hole"
        )
    return length


def check_is_database(source: pathlib.Path) -> None:
    """Raise unless a path is a file with a database of SQLite, as each capture is.

    Raises:
        CaptureError: with the reason and the next step.
    """
    if source.is_dir():
        raise CaptureError(f"{source} is a directory; name a capture, a file that `memwatch run` wrote")
    if not source.is_file():
        raise CaptureError(f"{source} is not a file; record one with `memwatch run -o {source} script.py`")
    with source.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head[: len(MAGIC)] not in (b"", MAGIC):  # empty until the first rows are written
        raise CaptureError(f"{source} is not a memwatch capture; record one with `memwatch run script.py`")
    if head and head[_VERSIONS] != _ROLLBACK_JOURNAL:
        raise CaptureError(
            f"{source} cannot be read as a capture: a program other than memwatch wrote it last; record it again"
        )
    if os.path.lexists(_beside(source, "wal")):  # SQLite would read rows from there
        raise CaptureError(
            f"{source} cannot be read as a capture: {source.name}-wal is next to it, and memwatch writes no such file; "
            "remove that file, or record it again"
        )


def _beside(source: pathlib.Path, what: str) -> str:
    """Return the name under which SQLite finds the journal of a file: links are followed first."""
    return f"{os.path.realpath(source)}-{what}"


def _connected(source: pathlib.Path, mode: str, busy_s: float) -> sqlite3.Connection:
    """Return a connection whose transaction has begun and whose schema is read."""
    database = sqlite3.connect(
        f"{source.absolute().as_uri()}?mode={mode}", uri=True, timeout=busy_s, isolation_level=None
    )
    try:
        for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON", "mmap_size = 0"):
            database.execute(f"PRAGMA {pragma}")
        _limit(database, _LONGEST_SCHEMA_BYTES, _SCHEMA_STEPS)
        database.execute("BEGIN")
        database.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    except BaseException:
        database.close()
        raise
    return database


def _limit(database: sqlite3.Connection, most_bytes: int, most_steps: int) -> None:
    """Limit the length of values and the number of further steps."""
    calls = iter(range(most_steps // _STEPS_PER_CALL))
    database.set_progress_handler(lambda: next(calls, None) is None, _STEPS_PER_CALL)
    set_limit: Any = getattr(database, "setlimit", None)
    if set_limit is not None:  # new in Python 3.11; before, a value is at most as long as the file
        set_limit(_LIMIT_LENGTH, most_bytes)
        set_limit(_LIMIT_ATTACHED, 0)


def _roll_back(source: pathlib.Path, busy_s: float) -> None:
    """Undo a half-made write of a killed program, with the file's journal.

    Raises:
        CaptureError: memwatch did not write this journal.
    """
    with open(_beside(source, "journal"), "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - len(_SUPER_JOURNAL)))
        end = file.read()
    if end == _SUPER_JOURNAL:
        raise CaptureError(
            f"{source} cannot be read as a capture: {source.name}-journal names another file, and memwatch writes "
            "no such journal; remove the journal, or record the program again"
        )
    _connected(source, "rw", busy_s).close()
