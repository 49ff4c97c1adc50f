"""Where recorded rows go while the program runs: packed in memory, or into the file when there is one."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from memwatch.capture.capture import INTEGER_TABLES, Capture, Note
from memwatch.capture.file import CaptureWriter, load
from memwatch.capture.packed import IntArray, PackedTable, as_rows
from memwatch.capture.schema import RECORDED_BY_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence


class Recording:
    """Collect rows of the recorded tables; bounded memory when a writer is given."""

    def __init__(self, writer: CaptureWriter | None) -> None:
        self._writer = writer
        self._path = (
            writer.path.absolute() if writer is not None else None
        )  # the program may change its folder
        self._tables = {name: PackedTable(len(RECORDED_BY_NAME[name].columns)) for name in INTEGER_TABLES}
        self._strings: list[str] = []
        self._notes: list[Note] = []
        self.meta: dict[str, Any] = {}

    def add(self, rows: dict[str, Sequence[int] | IntArray], strings: list[str], notes: list[Note]) -> None:
        """Take rows of integer tables (flat or shaped), the strings and the notes that are new since the last call."""
        shaped = {name: as_rows(flat, len(RECORDED_BY_NAME[name].columns)) for name, flat in rows.items()}
        first = len(self._strings)
        self._strings += strings
        self._notes += notes
        if self._writer is None:
            for name, table in shaped.items():
                self._tables[name].append(table)
            return
        self._writer.write(
            {
                **{name: table.tolist() for name, table in shaped.items() if len(table)},
                "strings": [(first + index, text) for index, text in enumerate(strings)],
                "notes": [(note.op, note.kind, note.text) for note in notes],
            }
        )

    def write_meta(self, meta: dict[str, Any]) -> None:
        """Keep the metadata, and put it into the file if there is one."""
        self.meta = meta
        if self._writer is not None:
            self._writer.write_meta(meta)

    def finish(self) -> None:
        """Close the file, if any."""
        if self._writer is not None:
            self._writer.close()

    def capture(self) -> Capture:
        """Unpack what was recorded, or read it from the file.

        Raises:
            CaptureError: the file is gone.
        """
        if self._path is not None:
            return load(self._path)
        columns = {name: table.columns() for name, table in self._tables.items()}
        return Capture.from_columns(columns, self._strings, self.meta, self._notes)

    def abandon(self) -> None:
        """Let go of the file without touching it (in a forked child, which shares it with its parent)."""
        with contextlib.suppress(AttributeError):
            self._writer = None
