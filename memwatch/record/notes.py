"""What a recorder has to say in sentences: which op was running, of what kind, and the words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch._torch import missing
from memwatch.capture.capture import Note
from memwatch.signal_handlers import suppress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.record.tables.op_counter import OpCounter


class Notes:
    """The notes of one block.

    Args:
        op_counter: how many ops have started.
        remarks: kind and words of what the choice of the recorder has to say, from the beginning.
    """

    def __init__(self, op_counter: OpCounter, remarks: Sequence[tuple[str, str]]) -> None:
        self._op_counter, self._remarks = op_counter, remarks
        self._notes: list[Note] = []
        self._written = 0
        self._not_recorded: set[str] = set()

    def note(self, kind: str, text: str) -> None:
        """Keep a sentence for the report."""
        self._notes.append(Note(self._op_counter[0], kind, text))

    def note_missing(self) -> None:
        """Note each name that torch lacks once; some are looked up when dynamo is loaded, within the block."""
        noted = {note.text for note in self._notes}
        for kind, sentence in [*(("torch", each) for each in missing()), *self._remarks]:
            if sentence not in noted:
                self.note(kind, sentence)

    def could_not_record(self, op: str, error: Exception) -> None:
        """Note once per op that its tensors could not be looked into."""
        if op not in self._not_recorded:
            self._not_recorded.add(op)
            with suppress(Exception):  # the text of the error may fail
                self.note("recorder", f"{op} is not recorded whole: {type(error).__name__}: {error}")

    def unwritten(self) -> list[Note]:
        """Return the notes since the last time."""
        notes = self._notes[self._written :]
        self._written += len(notes)
        return notes
