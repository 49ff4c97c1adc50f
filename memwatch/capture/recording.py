"""Collect recorded rows while the program runs: as chunks in memory, or in the file if there is one.

If the file can no longer be written, for example because the disk is full, the program goes on and no row is lost. From
then on rows are kept in memory. At the end they are written to the file, if this is possible again. Another program may
remove the file or cut it off. So a copy of the written rows stays in memory while the recording is small. A longer
recording is read back from the file, which SQLite keeps open.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from memwatch.capture.columns import Capture, Note, as_rows, deflated, empty_tables, encoded
from memwatch.capture.file import CaptureWriter, load
from memwatch.capture.schema import RECORDED_BY_NAME
from memwatch.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memwatch.capture.columns import Chunk, ChunkedTable, Columns, IntArray

_MOST_COPIED_BYTES: Final = 16 << 20
"""Bytes. The copy of the written rows grows to this size. The chunks of half a million ops take about as much.

A guess.
"""
_CHUNK_BYTES: Final = 200
"""Bytes that Python needs for a chunk besides its data: a tuple, three integers, and the head of a bytes object."""


class Recording:
    """Collects rows of the recorded tables. With a writer, its memory is bounded.

    Attributes:
        failure: the reason why the file is incomplete, if it is.
        is_lost: whether the recording cannot be read at all, because another program has destroyed the file.
    """

    def __init__(self, writer: CaptureWriter | None) -> None:
        self._writer = writer
        # absolute, because the program may change its working directory
        self._path = writer.path.absolute() if writer is not None else None
        self._tables = empty_tables()
        self._strings: list[str] = []
        self._notes: list[Note] = []
        self._written_strings = self._written_notes = 0
        self._copies: list[Mapping[str, Sequence[Sequence[Chunk]]]] | None = (
            [] if writer is not None else None
        )
        self._copied_bytes = 0
        self._written: dict[str, ChunkedTable] | None = None
        self.meta: dict[str, Any] = {}
        self.failure: CaptureError | None = None
        self.is_lost = False

    def add(self, rows: dict[str, Sequence[int] | IntArray], strings: list[str], notes: list[Note]) -> None:
        """Store the data since the last call: rows of integer tables (flat or two-dimensional), strings and notes."""
        shaped = {name: as_rows(flat, len(RECORDED_BY_NAME[name].columns)) for name, flat in rows.items()}
        runs = {name: [self._chunks(table)] for name, table in shaped.items() if len(table)}
        self._strings += strings
        self._notes += notes
        if self._writer is None or self.failure is not None or not self._write(self._writer, runs):
            for name, (chunks,) in runs.items():
                self._tables[name].append_chunks(chunks)

    def _chunks(self, rows: IntArray) -> list[Chunk]:
        chunks = encoded(rows)
        return chunks if self._writer is None else [deflated(chunk) for chunk in chunks]

    @property
    def notes(self) -> Sequence[Note]:
        """The notes so far."""
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
        self._keep(runs)
        return True

    def _keep(self, runs: Mapping[str, Sequence[Sequence[Chunk]]]) -> None:
        """Keep a copy of the written rows while the recording is small."""
        if self._copies is None:
            return
        self._copies.append(runs)
        chunks = (chunk for each in runs.values() for run in each for chunk in run)
        self._copied_bytes += sum(len(chunk.data) + _CHUNK_BYTES for chunk in chunks)
        if self._copied_bytes > _MOST_COPIED_BYTES:
            self._copies = None

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

        No error is raised. `failure` has the reason if the file is incomplete.
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
        if self.failure is None:
            self._copies = None
        else:
            self._read_back(self._writer)
            text = f"{self.failure}; what the file lacks is in memory only"
            self._notes.append(Note(op, "file", text))
        self._writer.close()

    def _read_back(self, writer: CaptureWriter) -> None:
        """Copy the written rows into memory, because the file may be missing or damaged."""
        if self._copies is not None:
            self._written = empty_tables()
            for runs in self._copies:
                for name, each in runs.items():
                    for chunks in each:
                        self._written[name].append_chunks(chunks)
            self._copies = None
            return
        try:
            self._written = writer.tables()
        except CaptureError as error:
            self.failure = CaptureError(f"{self.failure}; what was written before is lost ({error})")
            self.is_lost = True

    def capture(self) -> Capture:
        """Return the recording, unpacked from memory or read from the file.

        Raises:
            CaptureError: the file is gone.
        """
        if self._path is not None and self.failure is None:
            return load(self._path)
        if self.failure is not None and self.is_lost:
            raise self.failure
        written = empty_tables() if self._written is None else self._written
        tables: dict[str, Columns] = {
            name: table.joined(self._tables[name]) for name, table in written.items()
        }
        return Capture(tables, self._strings, self.meta, self._notes)

    def so_far(self, meta: dict[str, Any]) -> Capture:
        """Return the recording until now, from memory or from the file.

        Raises:
            CaptureError: the file cannot be read.
        """
        if self.failure is not None:
            raise self.failure
        if self._path is not None:
            return load(self._path)
        tables: dict[str, Columns] = {
            name: table.joined(self._tables[name]) for name, table in empty_tables().items()
        }
        return Capture(tables, list(self._strings), meta, list(self._notes))

    def abandon(self) -> None:
        """Forget the file without closing it, because a forked child shares it with its parent."""
        with contextlib.suppress(AttributeError):
            self._writer = None


def _without_traceback(error: CaptureError) -> CaptureError:
    """Return a copy of an error without its traceback, which would keep the program's frames and tensors alive."""
    return CaptureError(str(error))
