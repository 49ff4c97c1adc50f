"""Read a capture from an unknown source: open its database so that nothing in it runs, and check its rows.

SQLite's page "Defense Against The Dark Arts" lists the dangers of a hostile file. A view or a virtual table under the
name of a table computes rows without end. Pages that refer to each other yield the same rows again and again. A
journal beside the file names another file, which SQLite removes after a rollback. So memwatch opens the file
read-only, and accepts only the tables of a capture. It stops reading when there are more rows than a file of this
length can hold.

The schema has the table that each column refers to, and the possible values of the metadata. A capture may break
these rules. Another program may have written it, or a disk may have failed. The last rows of a killed program may
refer to an op that was never written.

`checked` repairs the capture as far as it can. A reference that may be missing becomes -1. A row that has lost its
meaning is left out. A metadata entry with an impossible value is left out too, and then counts as not known. A note
gives the number of changes. The capture is refused if a table has lost its row numbers, because then no reference to it
can be resolved.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import sqlite3
import tempfile
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.capture.columns import Capture, Note
from memwatch.capture.schema import NONE, RECORDED_BY_NAME
from memwatch.errors import CaptureError, DamagedCaptureError, MemwatchError
from memwatch.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from memwatch.capture.columns import ChunkedTable, Columns
    from memwatch.capture.schema import Column, Table

MAGIC: Final = b"SQLite format 3\0"
"""The first bytes of every file of SQLite."""
_LIMIT_LENGTH: Final = 0
_LIMIT_ATTACHED: Final = 7
"""SQLite's numbers of limits, SQLITE_LIMIT_LENGTH and SQLITE_LIMIT_ATTACHED."""
_HEAD_BYTES: Final = 100  # the header of a file of SQLite
_VERSIONS: Final = slice(18, 20)
"""Bytes of the head that say how the file is written: 1 with a rollback journal, 2 with a write-ahead log."""
_PAGE_BYTES: Final = slice(16, 18)
_CHANGES: Final = slice(24, 28)
_PAGES: Final = slice(28, 32)
_PAGES_VALID_FOR: Final = slice(92, 96)
"""Bytes of the head: page size, number of changes, number of pages, and the change for which this number is valid."""
_CUT_OFF: Final = "it is cut off: it has {} of {} bytes"
_ROLLBACK_JOURNAL: Final = b"\1\1"
_SUPER_JOURNAL: Final = bytes.fromhex("d9d505f920a163d7")
"""The last bytes of a journal that names another file."""
_LONGEST_SCHEMA_BYTES: Final = 1 << 16
"""Bytes. A longer value in the schema is refused. A guess: memwatch's own are far shorter."""
_LONGEST_VALUE_BYTES: Final = 64 << 20
"""A full chunk has 8 MiB. The longest text is JSON about segments of an allocator: megabytes. A guess."""
_SCHEMA_STEPS: Final = 100_000
"""Steps of SQLite's machine to read the schema. A capture needs about a hundred. A guess."""
_STEPS_PER_CALL: Final = 1_000
"""Steps of SQLite's machine between two checks of their number. A guess."""
_BATCH_ROWS: Final = 256
"""Rows that are fetched together. A guess."""
_CELL_BYTES: Final = 5
"""Bytes that SQLite needs at least for a row, besides a byte for each column and the text in it."""
_MOST_SPARSE: Final = 32
"""A file that is so many times longer than its space on the disk is mostly holes. A guess.

File systems that compress shrink captures, which are deflated already, far less.
"""
_MOST: Final = 1 << 62  # a count or a time in metadata must be smaller
_LATEST_S: Final = 253_402_300_799
"""The end of the year 9999, in unix seconds. Later times have no date."""
_READ_COLUMNS: Final = 5  # file, function, method, line, and a list of lines
_PAIR: Final = 2  # numbers of an extent: a first and a last one
_EXPRESSION: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*|\[\d+\]|\['[\w -]*'\])*")
"""The expression of a variable, an attribute or an item. Printed code contains it, so it must not run anything else."""
_FUNCTION: Final = re.compile(r"[\w.<>]*")
_LONGEST_EXPRESSION: Final = 200  # a guess
NUMBERED: Final = {"ops": "op", "births": "storage", "packs": "pack"}
"""Tables with one row for each number from 0, and the column that has it."""
_GROUPED: Final = {"modules": "module", "stacks": "stack"}
"""Tables with any number of rows for each number, even none. For example, a stack has one row for each frame."""
_MOST_WITHOUT_ROWS: Final = 1 << 16
"""In a table of `_GROUPED`, the largest number may exceed the number of rows by this. A guess."""
_LATEST_NS: Final = 1 << 62  # nanoseconds, 146 years
_MOST_BYTES: Final = 1 << 50  # 1 PiB, more than any device has
_NOTE: Final = (
    "The capture disagrees with itself: {} rows of `{}` were changed or left out, for `{}` holds {}. "
    "Its data about them is incomplete."
)
_NOTE_OF_META: Final = (
    "The capture disagrees with itself: its value `{}` about the run is {}, which is impossible. "
    "memwatch ignores it."
)
_NOTE_OF_MODULES: Final = (
    "{} rows of `modules` are of modules within more than {} others; they are read as modules of their own."
)
_MOST_LEVELS: Final = 64
"""Levels of modules within modules. Models have about ten, and a chain of wrappers has some dozen. A guess."""
_NOTE_OF_TEXTS: Final = (
    "{} texts of the capture are longer than {:,} characters; the rest of each is left out."
)
_LONGEST_NAME: Final = 4096
"""Characters of a name: as many bytes as a path may have on Linux. Names of objects are a few dozen."""
_SHOWN: Final = 40
"""Characters of a value in a note. A guess."""


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
    with contextlib.ExitStack() as stack:
        try:
            connection = _connected(source, "ro", busy_s)
        except sqlite3.Error:
            if os.path.exists(_beside(source, "journal")):
                connection = _rolled_back(source, busy_s, stack)
            else:
                _require_whole(source)
                raise
        yield stack.enter_context(contextlib.closing(connection))


def damage_of(error: Exception) -> str:
    """Return what is wrong with a file, from the error that a reader of it got.

    Only memwatch's own errors and SQLite's have a text for users. Those of Python are about a value that has another
    type or number than memwatch writes.
    """
    if isinstance(error, MemwatchError):
        return visible(str(error))
    if not isinstance(error, sqlite3.Error):
        return "some of its values are not as memwatch writes them"
    text = visible(str(error))
    is_damage = isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
    return f"its bytes have changed since they were written (SQLite: {text})" if is_damage else text


def require_tables(database: sqlite3.Connection, tables: Mapping[str, str], *, others: bool = False) -> None:
    """Raise unless a file holds these tables as memwatch makes them, and nothing else.

    Args:
        database: from `opened`.
        tables: by name the text that makes the table.
        others: whether there may be other tables too. The caller must not read them.

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
    """Yield rows of a file, but not more than its bytes can hold.

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
    length = int(pages) * int(page_bytes)
    try:
        found = os.stat(_path_of(database))
    except FileNotFoundError:  # removed, and read on through the open file
        return length
    if found.st_size < length:
        raise DamagedCaptureError(_CUT_OFF.format(found.st_size, length))
    _require_stored(found, length)
    return length


def _path_of(database: sqlite3.Connection) -> str:
    """Return the path of a database. It may have bytes that are not UTF-8, or not text in the locale's encoding."""
    database.text_factory = bytes
    try:
        (_, _, path) = database.execute("PRAGMA database_list").fetchone()
    finally:
        database.text_factory = str
    return os.fsdecode(path)


def _require_stored(found: os.stat_result, length: int) -> None:
    on_disk = 512 * getattr(found, "st_blocks", 0)  # 0 where the file system does not say
    if on_disk and length > _MOST_SPARSE * on_disk:
        raise DamagedCaptureError(
            f"its length is {length:,} bytes, but only {on_disk:,} are stored; the rest is a hole"
        )


def _require_whole(source: pathlib.Path) -> None:
    """Raise if a file that SQLite cannot open is shorter than its head says."""
    with source.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        found = os.fstat(file.fileno())
    length = int.from_bytes(head[_PAGE_BYTES], "big") * int.from_bytes(head[_PAGES], "big")
    if head[_CHANGES] == head[_PAGES_VALID_FOR] and found.st_size < length:
        raise DamagedCaptureError(_CUT_OFF.format(found.st_size, length))


def check_is_database(source: pathlib.Path) -> None:
    """Raise unless a path is a file with a database of SQLite, as each capture is.

    Raises:
        CaptureError: with the reason and the next step.
    """
    if source.is_dir():
        raise CaptureError(f"{source} is a directory; name a capture, a file that `memwatch run` wrote")
    if os.path.lexists(source) and not source.is_file():  # a pipe, a device, a link to nothing
        raise CaptureError(f"{source} is not a regular file; name a capture, which `memwatch run` wrote")
    if not source.is_file():
        raise CaptureError(f"{source} is not a file; record one with `memwatch run -o {source} script.py`")
    with source.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head[: len(MAGIC)] != MAGIC[: len(head)]:  # empty until the first rows are written
        raise CaptureError(f"{source} is not a memwatch capture; record one with `memwatch run script.py`")
    if 0 < len(head) < _HEAD_BYTES:
        raise DamagedCaptureError(
            f"it is cut off: it has {len(head)} of the {_HEAD_BYTES} bytes of its header"
        )
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


def _rolled_back(source: pathlib.Path, busy_s: float, stack: contextlib.ExitStack) -> sqlite3.Connection:
    """Undo a half-made write of a killed program, with the file's journal, and return a connection.

    If you may not write the file, it is undone in a private copy.

    Args:
        source: the file.
        busy_s: how long to wait for a program that writes it.
        stack: removes the copy.

    Raises:
        CaptureError: memwatch did not write this journal, or the file cannot be copied.
    """
    journal = _beside(source, "journal")
    try:
        with open(journal, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - len(_SUPER_JOURNAL)))
            end = file.read()
    except FileNotFoundError:  # another reader has undone the write
        return _connected(source, "ro", busy_s)
    if end == _SUPER_JOURNAL:
        raise CaptureError(
            f"{source} cannot be read as a capture: {source.name}-journal names another file, and memwatch writes "
            "no such journal; remove the journal, or record the program again"
        )
    try:
        _connected(source, "rw", busy_s).close()
        return _connected(source, "ro", busy_s)
    except sqlite3.OperationalError as error:
        if "locked" in str(error):  # Python 3.10 has no code of the error
            raise
    _require_stored(os.stat(source), os.stat(source).st_size)
    try:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="memwatch-"))
        copy = pathlib.Path(folder) / "capture"
        shutil.copyfile(source, copy)
        shutil.copyfile(journal, _beside(copy, "journal"))
    except OSError as error:
        raise CaptureError(
            f"{source} cannot be read: its last write has to be undone with {source.name}-journal, you may not write "
            f"the file, and a temporary copy failed ({error.strerror}); copy both files to a folder that you may write"
        ) from error
    _connected(copy, "rw", busy_s).close()
    return _connected(copy, "ro", busy_s)


def split_by_validity(meta: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the entries with possible values, and the other entries. Unknown names are kept."""
    wrong = {name: value for name, value in meta.items() if not _KINDS.get(name, _is_any)(value)}
    return {name: value for name, value in meta.items() if name not in wrong}, wrong


def _is_any(value: Any) -> bool:
    return True


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < _LATEST_S


def _are_texts(value: Any) -> bool:
    return type(value) is list and all(map(_is_text, value))


def _are_texts_by_name(value: Any) -> bool:
    return type(value) is dict and all(map(_is_text, value.values()))


def _are_reads(value: Any) -> bool:
    """Return True for rows of file, function, method, line, and a list of lines."""
    return type(value) is list and all(
        type(row) is list
        and len(row) == _READ_COLUMNS
        and all(map(_is_text, row[:3]))
        and _is_whole(row[3])
        and type(row[4]) is list
        and all(map(_is_whole, row[4]))
        for row in value
    )


def _are_bytes(value: Any) -> bool:
    return type(value) is dict and all(map(_is_whole, value.values()))


def _are_extents(value: Any) -> bool:
    return type(value) is dict and all(
        type(extents) is list
        and all(type(each) is list and len(each) == _PAIR and all(map(_is_whole, each)) for each in extents)
        for extents in value.values()
    )


def _are_spans(value: Any) -> bool:
    return _are_extents({"": value})


def _is_expression(value: Any) -> bool:
    return _is_text(value) and len(value) <= _LONGEST_EXPRESSION and bool(_EXPRESSION.fullmatch(value))


def _are_expressions(value: Any) -> bool:
    """Check the program's expressions for its objects, as of the first step of the newest optimizer.

    `function` is the function in which they are valid. `optimizers` has an expression for each optimizer, or "".
    `later_optimizers` has expressions that are valid only when the training has begun. `made_in` has the function that
    makes a nameless optimizer, and `made_by_library` is true if a library makes it. `models` has the expressions of
    root modules, by number, and "" for a nameless one. A capture of an earlier memwatch lacks some of these keys.
    """
    if type(value) is not dict or not value:
        return type(value) is dict
    function, models = value.get("function"), value.get("models")
    optimizers: Any = value.get("optimizers")
    later, made_in = value.get("later_optimizers", []), value.get("made_in", [])
    by_library = value.get("made_by_library", [])
    return (
        _is_function(function)
        and all(type(each) is list for each in (optimizers, later, made_in, by_library))
        and all(each == "" or _is_expression(each) for each in [*optimizers, *later])
        and all(map(_is_function, made_in))
        and all(map(_is_flag, by_library))
        and type(models) is dict
        and all(each == "" or _is_expression(each) for each in models.values())
    )


def _is_function(value: Any) -> bool:
    return type(value) is str and len(value) <= _LONGEST_EXPRESSION and bool(_FUNCTION.fullmatch(value))


_NAMES_BY_KIND: Final[dict[Callable[[Any], bool], tuple[str, ...]]] = {
    _is_flag: ("complete", "estimate", "stacks", "holders", "allocator", "computes_in_bfloat16", "is_all_adagrad"),
    _is_text: (
        "memwatch", "torch", "python", "platform", "host", "intercept", "recorder", "process_group", "device",
        "ended_by",
    ),
    _is_whole: (
        "pid", "parent_pid", "rank", "world_size", "local_rank", "of_rank", "restart", "start_ns", "end_ns", "threads",
        "threads_before", "threads_at_work_before", "threads_unheard", "holder_samples", "holder_samples_cut",
        "holder_samples_ns",
    ),
    _is_time: ("started_s",),
    _are_texts: ("argv", "not_recorded"),
    _are_bytes: ("entry_allocated_bytes", "entry_reserved_bytes", "rounding_bytes", "reserved_bytes"),
    _are_extents: ("segments",),
    _are_spans: ("processes_started_ns",),
    _are_expressions: ("expressions",),
    _are_texts_by_name: ("changed_arguments", "grown_lists", "changed_attributes"),
    _are_reads: ("reads_in_python",),
}  # fmt: skip


_KINDS: Final = {name: kind for kind, names in _NAMES_BY_KIND.items() for name in names}


def checked(
    tables: Mapping[str, ChunkedTable], strings: list[str], meta: dict[str, object], notes: list[Note]
) -> Capture:
    """Return a capture whose numbers all refer to existing rows.

    Args:
        tables: the integer tables, as they were read.
        strings: the texts by number.
        meta: the metadata.
        notes: the notes; one is added for each column, and each entry of `meta`, that did not agree with the rest.

    Raises:
        DamagedCaptureError: the rows of a table have lost their own numbers.
    """
    counts = {"strings": len(strings), **{name: tables[name].rows for name in NUMBERED}}
    for name, column in _GROUPED.items():
        counts[name] = _count_of_groups(tables[name], name, column)
    for name, column in NUMBERED.items():
        _require_numbers(tables[name], name, column)
    found: dict[str, Columns] = dict(tables)
    meta, wrong = split_by_validity(meta)
    notes = [
        *notes,
        *(Note(0, "damaged", _NOTE_OF_META.format(name, repr(wrong[name])[:_SHOWN])) for name in wrong),
    ]
    is_whole = bool(meta.get("complete", True))
    for name in (*_GROUPED, *(name for name in tables if name not in _GROUPED)):
        found[name], problems = _agreeing(tables[name], RECORDED_BY_NAME[name], counts)
        notes += [
            Note(0, "damaged", _NOTE.format(f"{rows:,}", name, column.name, value))
            for column, rows, value in problems
            if is_whole
            or column.refers is None
            or column.refers.to != "ops"  # the last rows of a killed program
        ]
        if name in _GROUPED and problems:
            counts[name] = int(found[name][_GROUPED[name]].max(initial=NONE)) + 1
    found["modules"], deep = _without_deep_modules(found["modules"])
    notes += [Note(0, "damaged", _NOTE_OF_MODULES.format(deep, _MOST_LEVELS))] if deep else []
    strings, cut = _with_short_names(strings, found)
    notes += [Note(0, "damaged", _NOTE_OF_TEXTS.format(cut, _LONGEST_NAME))] if cut else []
    return Capture(found, strings, meta, notes)


def _without_deep_modules(modules: Columns) -> tuple[Columns, int]:
    """Return the modules and a count. A module too deep below the root, or in a ring, loses its parent and counts.

    The name of a module holds the names of all modules above it, so the names of a long chain fill the memory.
    """
    numbers, parents = modules["module"], modules["parent"]
    # the last entry means "no module"
    above = np.full(int(numbers.max(initial=NONE)) + 2, NONE, dtype=np.int64)
    above[numbers] = parents
    level = parents.astype(np.int64)
    for _ in range(_MOST_LEVELS):
        if not (level >= 0).any():
            return modules, 0
        level = above[level]
    is_deep = level >= 0
    return {**modules, "parent": np.where(is_deep, NONE, parents)}, int(is_deep.sum())


def _with_short_names(strings: list[str], tables: Mapping[str, Columns]) -> tuple[list[str], int]:
    """Return the texts with long names cut, and the number of cuts. Texts that are JSON are not cut.

    A reader repeats a name for each row that has it, and a small file may have many rows with the same long name.
    """
    long = {number for number, text in enumerate(strings) if len(text) > _LONGEST_NAME}
    if not long:
        return strings, 0
    for name, table in tables.items():
        for column in RECORDED_BY_NAME[name].columns:
            if column.refers is not None and column.refers.is_json:
                long -= set(np.unique(table[column.name]).tolist())
    texts = [text[:_LONGEST_NAME] if number in long else text for number, text in enumerate(strings)]
    return texts, len(long)


def _require_numbers(table: ChunkedTable, name: str, column: str) -> None:
    """Refuse a table that does not have each number from 0 once."""
    numbers = table[column]
    if (np.diff(numbers) == 1).all() and (not len(numbers) or numbers[0] == 0):
        return
    if not np.array_equal(np.sort(numbers), np.arange(len(numbers))):
        raise DamagedCaptureError(f"`{column}` of `{name}` does not number its {len(numbers):,} rows from 0")


def _count_of_groups(table: ChunkedTable, name: str, column: str) -> int:
    low, high = table.bounds(column)
    if low < 0 or high > table.rows + _MOST_WITHOUT_ROWS:
        raise DamagedCaptureError(f"`{column}` of `{name}` goes from {low} to {high} in {table.rows:,} rows")
    return high + 1 if table.rows else 0


def _agreeing(
    table: ChunkedTable, schema: Table, counts: Mapping[str, int]
) -> tuple[Columns, list[tuple[Column, int, int]]]:
    """Return the table without references to missing rows, and for each column that had some: count and example."""
    wrong = [] if not table.rows else [
        column for column in schema.columns if not _is_within(table.bounds(column.name), _range(column, counts))
    ]  # fmt: skip
    if not wrong:
        return table, []
    columns, kept, problems = dict(table), np.ones(table.rows, dtype=bool), []
    for column in wrong:
        low, high = _range(column, counts)
        values = columns[column.name].astype(np.int64)
        is_wrong = (values < low) | (values > high)
        problems.append((column, int(is_wrong.sum()), int(values[is_wrong][0])))
        if column.refers is not None and column.refers.is_count:
            columns[column.name] = np.clip(values, low, high)
        elif column.refers is not None and column.refers.or_none:
            columns[column.name] = np.where(is_wrong, NONE, values)
        else:
            kept &= ~is_wrong
            if schema.name in NUMBERED:
                raise DamagedCaptureError(
                    f"`{column.name}` of `{schema.name}` holds {problems[-1][2]}, which should be from {low} to {high}"
                )
    return {name: values[kept] for name, values in columns.items()}, problems


def is_capture(path: pathlib.Path) -> bool:
    """Return True if a file begins as captures do. A file that cannot be read does not."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _is_within(bounds: tuple[int, int], of_column: tuple[int, int]) -> bool:
    return of_column[0] <= bounds[0] and bounds[1] <= of_column[1]


def _range(column: Column, counts: Mapping[str, int]) -> tuple[int, int]:
    """Return the smallest and the largest value that a column may hold."""
    refers = column.refers
    if refers is not None and (refers.choices or refers.to in counts):
        count = refers.choices or counts[refers.to]
        return (NONE if refers.or_none else 0), (count if refers.is_count else count - 1)
    if column.name.endswith("_ns"):
        return NONE, _LATEST_NS
    if column.name == "nbytes" or column.name.endswith("_bytes"):
        return -_MOST_BYTES, _MOST_BYTES
    return np.iinfo(np.int64).min, np.iinfo(np.int64).max
