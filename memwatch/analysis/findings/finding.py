"""A finding: one change, and the peak after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from memwatch.text import ShownAsText
from memwatch.words import findings as words
from memwatch.words.places import short_place

if TYPE_CHECKING:
    from memwatch.kinds.findings import FindingKind

LEAST_RATIO: Final = 0.05
"""A finding lowers the peak by at least this share of the peak increase. A guess."""


@dataclass(frozen=True)
class Finding(ShownAsText):
    """One change, and the peak after it.

    Attributes:
        kind: why the bytes need not be there, such as ``drag``. It equals its text; `FindingKind` lists all kinds.
        nbytes: its bytes at the peak.
        holder: the holder of these bytes.
        site: `file:line` to edit; "" without a line.
        advice: one sentence.
        path: the retention path, one edge per line.
        predicted_peak_bytes: the peak after this change alone.
        together_peak_bytes: the peak after all findings' changes.
        storages: the storages concerned, by index of `prof.storages`.
        remark: the end of `holder`: its evidence, and other holders.
        change: `advice` without the peak, for a view that shows the peak elsewhere; "" if there is no such text.
    """

    kind: FindingKind
    nbytes: int
    holder: str
    site: str
    advice: str
    path: str
    predicted_peak_bytes: int
    together_peak_bytes: int
    storages: tuple[int, ...] = field(repr=False)
    remark: str = field(default="", repr=False)
    change: str = field(default="", repr=False)

    def __str__(self) -> str:
        """Return one line: the variable, the memory that it keeps, the change, and the peak after it."""
        held = words.holder_at(self.holder, short_place(self.site), self.remark)
        return words.FINDING.format(holder=held, advice=self.advice)
