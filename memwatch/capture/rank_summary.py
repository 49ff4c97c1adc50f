"""The small part of a capture file that a job needs from each rank: its metadata and its summary.

A job of thousands of ranks reads only this part. It can be read from files of any format, because `meta` is a table of
keys and JSON in all formats, and summaries have a version of their own.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import sqlite3
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from memwatch.capture.check import split_by_validity
from memwatch.capture.database import length_of, opened, require_tables, rows_within
from memwatch.capture.file import APPLICATION_ID, SUMMARY, TABLES, text_of
from memwatch.capture.schema import FORMAT_VERSION, OLDEST_FORMAT
from memwatch.errors import CaptureError, DamagedCaptureError
from memwatch.plain_json import read_json
from memwatch.text import visible

if TYPE_CHECKING:
    import os

_BUSY_S: Final = 10.0  # seconds to wait while another process writes; a guess


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
        raise CaptureError(f"{source} cannot be read as a capture: {visible(str(error))}") from error
    summary = meta.pop(SUMMARY, None)
    return Head(split_by_validity(meta)[0], summary if isinstance(summary, dict) else None, int(version))


def add_summary(path: str | os.PathLike[str], summary: dict[str, Any]) -> None:
    """Write the summary into a capture that is finished.

    Raises:
        CaptureError: the file cannot be written.
    """
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)) as database:
            database.execute("PRAGMA synchronous = OFF")
            database.execute("BEGIN IMMEDIATE")
            database.execute("DELETE FROM meta WHERE key = ?", (SUMMARY,))
            database.execute("INSERT INTO meta VALUES (?, ?)", (SUMMARY, json.dumps(summary)))
            database.execute("COMMIT")
    except sqlite3.Error as error:
        raise CaptureError(f"cannot write the summary into {path}: {error}") from error
