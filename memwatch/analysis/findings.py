"""Findings: what would lower the peak if one reference were cut or one thing were done at another time.

At the highest event, every storage that is not in use then and that a variable of the program holds is a
candidate; taking those away shows the next highest event, and so on. What the peak would fall to is computed
by replaying the events without the bytes; what would not lower the peak is no finding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.biographies import DRAG, LAG, PHASE_NAMES
from memwatch.analysis.holders import Holder
from memwatch.capture.schema import ACCESSES, NONE
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from memwatch.analysis.frames import Frames
    from memwatch.capture.packed import IntArray

_LEAST_RATIO: Final = 0.02
_MAX_ROUNDS: Final = 64
_LEAST_WAITING: Final = 2
_KEPT_ON_PURPOSE: Final = ("parameter", "buffer", "optimizer state", "gradient")


@dataclass(frozen=True)
class Finding:
    """One thing to change, and what it would bring.

    Attributes:
        kind: ``drag`` (held after the last use), ``lag`` (made long before the first use), ``void`` (never
            used), ``gradient`` (alive in the next forward) or ``graph`` (saved for a backward that never ran).
        nbytes: bytes at the peak that it is about.
        holder: who holds them.
        site: `file:line` to edit, empty if there is none.
        advice: one sentence.
        path: the retention path, one edge per line.
        predicted_peak_bytes: what the peak would fall to if this alone were done.
        together_peak_bytes: what the peak would fall to if all findings were.
        storages: the storages concerned, by index of `prof.storages`.
    """

    kind: str
    nbytes: int
    holder: str
    site: str
    advice: str
    path: str
    predicted_peak_bytes: int
    together_peak_bytes: int
    storages: tuple[int, ...] = field(repr=False)

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.kind}: {format_bytes(self.nbytes)} held by {self.holder}; {self.advice}"


@dataclass
class _Group:
    phase: str
    holder: Holder
    others: tuple[Holder, ...]
    event: int
    lives: list[int] = field(default_factory=list)
    nbytes: int = 0


def find(frames: Frames) -> list[Finding]:
    """Find what would lower the peak, largest first."""
    return _Search(frames).run()


class _Search:
    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._lives, self._curve = frames.lives, frames.curve
        self._biographies = frames.biographies
        self._category = frames.storages["category"].to_numpy()
        self._event_op = frames.timeline["op"].to_numpy()
        self._least = max(int(self._curve.peak_increase_bytes * _LEAST_RATIO), 1)
        self._never_read = _never_read(frames)
        self._computed = _computed(frames)

    def run(self) -> list[Finding]:
        live = self._curve.live_bytes.astype(np.int64)
        groups: dict[tuple[str, str], _Group] = {}
        taken: set[int] = set()
        for _ in range(_MAX_ROUNDS):
            event = int(np.argmax(live))
            if not event:
                break
            fresh = self._candidates(event, taken)
            fresh = [found for found in fresh if sum(self._lives.nbytes[found.lives]) * 8 >= self._least]
            if not fresh:
                break
            for found in fresh:
                group = groups.setdefault((found.phase, _variable(found.holder.words)), found)
                if group is not found:
                    group.lives += found.lives
                group.nbytes = max(group.nbytes, int(self._lives.nbytes[found.lives].sum()))
                taken.update(found.lives)
                live = live - self._bytes_saved(found.phase, found.lives)
        return self._worth_telling(list(groups.values()), live)

    def _candidates(self, event: int, taken: set[int]) -> list[_Group]:
        lives, op = self._lives, int(self._event_op[event])
        alive = (
            lives.counted
            & (lives.birth_event <= event)
            & ((lives.death_event == NONE) | (lives.death_event > event))
        )
        alive &= (lives.storage != NONE) & (lives.birth_event > 0)
        phase = self._biographies.phase_at(event)
        groups: dict[tuple[str, str], _Group] = {}
        for life in np.flatnonzero(alive & (phase != PHASE_NAMES.index("use"))).tolist():
            if life in taken:
                continue
            verdict = self._verdict(life, int(phase[life]), op)
            if verdict is not None:
                kind, holders = verdict
                key = (kind, holders[0].words)
                group = groups.setdefault(key, _Group(kind, holders[0], tuple(holders[1:]), event))
                group.lives.append(life)
        for group in groups.values():
            group.nbytes = int(lives.nbytes[group.lives].sum())
        return list(groups.values())

    def _verdict(self, life: int, phase: int, op: int) -> tuple[str, list[Holder]] | None:
        category = str(self._category[life])
        holders = self._frames.holders
        if category == "gradient" and phase == DRAG and self._is_forward(op):
            return "gradient", [Holder("attribute", "attribute .grad of the parameters", "", "")]
        if category in _KEPT_ON_PURPOSE:
            return None
        packs = holders.packs_at(life, op)
        if packs:
            if phase != LAG and all(self._never_read[pack] for pack in packs):
                return "graph", [
                    Holder(
                        "autograd node",
                        "the autograd graph of a forward without backward",
                        self._line(life),
                        "",
                    )
                ]
            return None
        variables = holders.variables(life, op)
        if not variables or (phase == LAG and not (self._computed[life] and "\n" in variables[0].path)):
            return None  # what waits is told of only where a container of the program holds computed results
        return PHASE_NAMES[phase], variables

    def _is_forward(self, op: int) -> bool:
        return op >= 0 and self._frames.ops["phase"].iloc[op] == "forward"

    def _line(self, life: int) -> str:
        return str(self._frames.storages["line"].iloc[life])

    def _bytes_saved(self, phase: str, lives: list[int]) -> IntArray:
        """Give, per event, the bytes that would not be live if these lives were cut back to their use."""
        change = np.zeros(len(self._curve.live_bytes) + 1, dtype=np.int64)
        told = self._lives
        for life in lives:
            birth = int(told.birth_event[life])
            death = int(told.death_event[life]) if told.death_event[life] != NONE else len(change) - 1
            if phase in ("drag", "gradient"):
                birth = max(birth, int(self._biographies.last_event[life]))
            elif phase == "lag":
                death = min(death, int(self._biographies.first_event[life]))
            elif phase == "graph":
                birth = max(birth, self._last_read_event(life))
            if birth < death:
                change[birth] += told.nbytes[life]
                change[death] -= told.nbytes[life]
        return np.cumsum(change)[:-1]

    def _last_read_event(self, life: int) -> int:
        return int(self._biographies.last_event[life])

    def _worth_telling(self, groups: list[_Group], together: IntArray) -> list[Finding]:
        live = self._curve.live_bytes
        peak, lowest = int(live.max()), int(together.max())
        found = []
        for group in groups:
            saved = self._bytes_saved(group.phase, group.lives)
            alone = int((live - saved).max())
            without = int((together + saved).max())
            if group.phase == "lag" and len(group.lives) < _LEAST_WAITING:
                continue
            if max(peak - alone, without - lowest) >= self._least:
                found.append(self._finding(group, alone, lowest))
        return sorted(found, key=lambda finding: -finding.nbytes)

    def _finding(self, group: _Group, alone: int, together: int) -> Finding:
        holder = group.holder
        also = [other.words for other in group.others if not other.in_torch]
        words = holder.words + (f" (also by {', '.join(dict.fromkeys(also))})" if also else "")
        return Finding(
            group.phase,
            group.nbytes,
            words,
            holder.site,
            _advice(group, alone, together),
            holder.path,
            alone,
            together,
            tuple(group.lives),
        )


def _never_read(frames: Frames) -> list[bool]:
    """Tell of each saved tensor whether autograd let go of it without ever reading it."""
    saved = frames.saved
    return [bool(row) for row in (saved["used_op"] == NONE) & (saved["released_op"] != NONE)]


def _computed(frames: Frames) -> list[bool]:
    """Tell of each life whether an op computed it from other tensors, so that it could be computed later."""
    uses = frames.capture.tables["uses"]
    reads = np.zeros(max(frames.capture.rows("ops"), 1), dtype=bool)
    reads[uses["op"][uses["access"] == ACCESSES.index("read")]] = True
    op = frames.lives.op
    return [bool(row) for row in (op != NONE) & reads[np.maximum(op, 0)]]


def _variable(words: str) -> str:
    """Leave the line out of a holder: the same variable is seen from several lines."""
    head, separator, _ = words.rpartition(":")
    return head if separator else words


_ADVICE: Final = {
    "drag": "never used again after its last use; drop the reference there (del it, or pass a list and clear it)",
    "lag": "made long before its first use; make each one right before it is used (a generator in place of a list)",
    "void": "never used by any op; do not make it or drop it at once",
    "gradient": "alive in forward though the optimizer is done with them; call zero_grad() before forward",
    "graph": "saved for a backward that never ran; run this forward under torch.no_grad()",
}


def _advice(group: _Group, alone: int, together: int) -> str:
    text = f"{_ADVICE[group.phase]}; the peak would fall to {format_bytes(alone)}"
    return text if together >= alone else f"{text}, and to {format_bytes(together)} with all findings mended"
