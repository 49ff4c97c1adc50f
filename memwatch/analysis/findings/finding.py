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
        kind: ``drag`` (held after the last use), ``iteration`` (the same, from one pass of a loop into the next),
            ``stale`` (an object keeps it from one iteration into the next, and nothing reads it there), ``lag`` (made
            long before the first use), ``void`` (never used), ``gradient`` (alive in the next forward), ``graph``
            (saved for a backward that never runs), ``retained`` (for one that ran), ``set_to_none`` (gradients filled
            with zeros instead of freed), ``output`` (a model's result, kept through backward), ``optimizer``
            (temporaries of a foreach step), ``fused`` (temporaries of a step for one parameter), ``workspace`` (of
            one op), ``recompute`` (of a large checkpointed region, all at once), ``twice`` (a saved tensor and a
            converted copy of it), ``buckets`` (gradients that DDP keeps beside its buckets), ``autocast`` (converted
            weights that autocast's cache keeps), ``growth`` (every step leaves more behind) or ``float32`` (float32
            copies that autograd saves). A `FindingKind`, which is equal to its text.
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
