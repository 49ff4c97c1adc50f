"""Where recorded rows go while the program runs: as chunks in memory, or into the file when there is one.

When the file can no longer be written, as on a full disk or without memory, the program goes on and no row is lost:
from then on rows are kept in memory, and they are written to the file at the end if it has room again.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from memwatch.capture.capture import Capture, Note, empty_tables
from memwatch.capture.chunks import encoded
from memwatch.capture.errors import CaptureError
from memwatch.capture.file import CaptureWriter, load, read_tables
from memwatch.capture.packed import as_rows
from memwatch.capture.schema import RECORDED_BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memwatch.capture.chunks import Chunk
    from memwatch.capture.packed import Columns, IntArray


class Recording:
    """Collect rows of the recorded tables; bounded memory when a writer is given.

    Attributes:
        failure: why the file is not whole, if it is not.
    """

    def __init__(self, writer: CaptureWriter | None) -> None:
        self._writer = writer
        # absolute, because the program may change its working directory
        self._path = writer.path.absolute() if writer is not None else None
        self._tables = empty_tables()
        self._strings: list[str] = []
        self._notes: list[Note] = []
        self._written_strings = self._written_notes = 0
        self.meta: dict[str, Any] = {}
        self.failure: CaptureError | None = None

    def add(self, rows: dict[str, Sequence[int] | IntArray], strings: list[str], notes: list[Note]) -> None:
        """Store what is new since the last call: rows of integer tables (flat or shaped), strings and notes."""
        shaped = {name: as_rows(flat, len(RECORDED_BY_NAME[name].columns)) for name, flat in rows.items()}
        runs = {name: [encoded(table)] for name, table in shaped.items() if len(table)}
        self._strings += strings
        self._notes += notes
        if self._writer is None or self.failure is not None or not self._write(self._writer, runs):
            for name, (chunks,) in runs.items():
                self._tables[name].append_chunks(chunks)

    @property
    def notes(self) -> Sequence[Note]:
        """What was noted so far."""
        return self._notes

    def _write(self, writer: CaptureWriter, runs: Mapping[str, Sequence[Sequence[Chunk]]]) -> bool:
        first, notes = self._written_strings, self._notes[self._written_notes :]
        texts = list(enumerate(self._strings[first:], first))
        try:
            writer.write(runs, texts, notes)
        except CaptureError as error:
            self.failure = _without_traceback(error)
            return False
        except MemoryError:
            self.failure = CaptureError(f"cannot write {writer.path}: memory ran out")
            return False
        self._written_strings += len(texts)
        self._written_notes += len(notes)
        return True

    def begin(self, meta: dict[str, Any]) -> None:
        """Write the metadata of a recording that has just begun.

        Raises:
            CaptureError: the file cannot be written.
        """
        self.meta = meta
        if self._writer is not None:
            self._writer.write_meta(meta)

    def finish(self, meta: dict[str, Any], op: int) -> None:
        """Write the metadata of a recording that has ended after `op` ops, and close its file, if any.

        Does not raise: `failure` says why the file is not whole.
        """
        self.meta = meta
        if self._writer is None:
            return
        rest = {name: table.chunks() for name, table in self._tables.items()}
        if self.failure is not None and self._write(self._writer, rest):
            self.failure = None
        try:
            if self.failure is None:
                self._writer.write_meta(meta)
        except CaptureError as error:
            self.failure = _without_traceback(error)
        self._writer.close()
        if self.failure is not None:
            text = f"{self.failure}; the file lacks the end, which is in memory only"
            self._notes.append(Note(op, "file", text))

    def capture(self) -> Capture:
        """Return what was recorded, unpacked from memory or read from the file.

        Raises:
            CaptureError: the file is gone.
        """
        if self._path is not None and self.failure is None:
            return load(self._path)
        written = empty_tables() if self._path is None else read_tables(self._path)
        tables: dict[str, Columns] = {
            name: table.joined(self._tables[name]) for name, table in written.items()
        }
        return Capture(tables, self._strings, self.meta, self._notes)

    def abandon(self) -> None:
        """Forget the file without closing it: a forked child shares it with its parent."""
        with contextlib.suppress(AttributeError):
            self._writer = None


def _without_traceback(error: CaptureError) -> CaptureError:
    """Return an error that can be kept: a traceback holds the program's frames, and so its tensors."""
    return CaptureError(str(error))
