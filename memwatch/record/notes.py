"""The notes of a recorder: the running op, the kind, and the sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memwatch._torch import missing
from memwatch.capture.capture import Note
from memwatch.signal_handlers import suppress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.record.tables.rows import OpCounter

_LOST_EVENTS: Final = (
    "memory ran out, and {count} events of the allocator are lost. From the first one until the next write, live "
    "bytes and the peak come from tensors only. Workspace from before may count for too long"
)
_LOST_ROWS: Final = (
    "memory ran out, and the recorder could not write {count} rows. Tensors may be missing from the report or count as "
    "live for too long. Live bytes and the peak are not exact from there on"
)


class Notes:
    """The notes of one block.

    Args:
        op_counter: how many ops have started.
        remarks: kinds and texts of notes about the choice of the recorder.
    """

    def __init__(self, op_counter: OpCounter, remarks: Sequence[tuple[str, str]]) -> None:
        self._op_counter = op_counter
        self._remarks = remarks
        self._notes: list[Note] = []
        self._written = 0
        self._not_recorded: set[str] = set()
        self.losses = 0

    def note(self, kind: str, text: str) -> None:
        """Keep a sentence for the report."""
        self._notes.append(Note(self._op_counter[0], kind, text))

    def note_missing(self) -> None:
        """Note each name that torch lacks, once. Some names are looked up inside the block, when dynamo is loaded."""
        noted = {note.text for note in self._notes}
        for kind, sentence in [*(("torch", each) for each in missing()), *self._remarks]:
            if sentence not in noted:
                self.note(kind, sentence)

    def could_not_record(self, op: str, error: Exception) -> None:
        """Note once per op that its tensors could not be recorded. Without memory, count a loss."""
        if op in self._not_recorded:
            return
        try:
            self._not_recorded.add(op)
            with suppress(Exception):  # the text of the error may fail
                self.note("recorder", f"{op} is not recorded whole: {type(error).__name__}: {error}")
        except MemoryError:
            self.losses += 1

    def note_losses(self, lost_events: int, losses: int) -> None:
        """Note the records that were lost because memory had run out, and the figures that this affects.

        Args:
            lost_events: number of lost allocator events.
            losses: number of other lost records.
        """
        if lost_events:
            self.note("allocator", _LOST_EVENTS.format(count=lost_events))
        if losses + self.losses:
            self.note("recorder", _LOST_ROWS.format(count=losses + self.losses))

    def put_back(self, notes: Sequence[Note]) -> None:
        """Mark notes as unwritten again, because memory was too short to write them."""
        self._written -= len(notes)

    def unwritten(self) -> list[Note]:
        """Return the notes since the last call."""
        notes = self._notes[self._written :]
        self._written += len(notes)
        return notes
