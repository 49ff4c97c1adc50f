"""Findings: what would lower the peak if one reference were cut or one thing were done at another time.

At the highest event, every storage that is not in use then and that a variable of the program holds is a
candidate; taking those away shows the next highest event, and so on. What the peak would fall to is computed
by replaying the events without the bytes; what would not lower the peak is no finding.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.advice import advise
from memwatch.analysis.biographies import DRAG, LAG, PHASE_NAMES, VOID
from memwatch.analysis.choices import Choices
from memwatch.analysis.fates import Fates
from memwatch.analysis.holders import Holder
from memwatch.capture.schema import ACCESSES, NONE
from memwatch.own_code import CodeOwner

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.frames import Frames
    from memwatch.capture.packed import IntArray

LEAST_RATIO: Final = 0.05
_MAX_ROUNDS: Final = 64
_LEAST_WAITING: Final = 2
_MOST_TWINS: Final = 8
_KEPT_ON_PURPOSE: Final = ("parameter", "buffer", "optimizer state", "gradient")


@dataclass(frozen=True)
class Finding:
    """One thing to change, and what it would bring.

    Attributes:
        kind: ``drag`` (held after the last use), ``iteration`` (the same, from one pass of a loop into the
            next), ``lag`` (made long before the first use), ``void`` (never used), ``gradient`` (alive in the
            next forward), ``graph`` (saved for a backward that never runs), ``retained`` (for one that ran),
            ``optimizer`` (temporaries of a foreach step), ``workspace`` (of one op) or ``twice`` (a saved tensor
            and a converted copy of it).
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
        """Say it in one line: the variable, what it keeps, what to do and what that would bring."""
        return f"{self.holder}{f' at {_short(self.site)}' if self.site else ''}, {self.advice}"


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
        self._least = max(int(self._curve.peak_increase_bytes * LEAST_RATIO), 1)
        self._fates = Fates(frames)
        stacks = frames.capture.tables["stacks"]
        self._has_own_files = bool((stacks["owner"] == CodeOwner.PROGRAM).any())
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
                group = groups.setdefault(
                    (found.phase, "" if found.phase == "graph" else found.holder.words), found
                )
                if group is not found:
                    group.lives += found.lives
                group.nbytes = max(group.nbytes, int(self._lives.nbytes[found.lives].sum()))
                taken.update(found.lives)
                live = live - self._bytes_saved(found.phase, found.lives)
        event = self._curve.peak_event
        for choice, nbytes in Choices(self._frames).at(event, self._alive(event)):
            lives = [life for life in choice.lives if life not in taken]
            groups[choice.phase, ""] = _Group(choice.phase, choice.holder, (), event, lives, nbytes)
        return self._worth_telling(list(groups.values()))

    def _alive(self, event: int) -> NDArray[np.bool_]:
        lives = self._lives
        dead = (lives.death_event != NONE) & (lives.death_event <= event)
        alive: NDArray[np.bool_] = lives.counted & (lives.birth_event <= event) & ~dead
        return alive

    def _candidates(self, event: int, taken: set[int]) -> list[_Group]:
        lives, op = self._lives, int(self._event_op[event])
        alive = self._alive(event)
        alive &= (lives.storage != NONE) & (lives.birth_event > 0)
        phase = self._biographies.phase_at(event)
        groups: dict[tuple[str, str], _Group] = {}
        for life in np.flatnonzero(alive & (phase != PHASE_NAMES.index("use"))).tolist():
            if life in taken:
                continue
            verdict = self._verdict(life, int(phase[life]), op)
            if verdict is not None:
                kind, holders = verdict
                key = (kind, "" if kind == "graph" else holders[0].words)
                group = groups.setdefault(key, _Group(kind, holders[0], tuple(holders[1:]), event))
                if group.holder.kind == "autograd node" and holders[0].kind != "autograd node":
                    group.holder = holders[0]  # a variable tells more than that there is a graph
                group.lives.append(life)
        for group in groups.values():
            group.nbytes = int(lives.nbytes[group.lives].sum())
        return list(groups.values())

    def _verdict(self, life: int, phase: int, op: int) -> tuple[str, list[Holder]] | None:
        category = str(self._category[life])
        holders = self._frames.holders
        if category == "gradient" and phase == DRAG and self._is_forward(op):
            return "gradient", [Holder("attribute", "`.grad` of the parameters", "", "")]
        if category in _KEPT_ON_PURPOSE:
            return None
        packs = holders.packs_at(life, op)
        if packs:
            return self._verdict_on_saved(life, phase, op, packs)
        return self._verdict_on_variables(life, phase, op, holders.variables(life, op))

    def _verdict_on_variables(
        self, life: int, phase: int, op: int, variables: list[Holder]
    ) -> tuple[str, list[Holder]] | None:
        if not variables or (self._has_own_files and variables[0].foreign):
            return None
        on_stack = variables[0].kind == "evaluation stack"
        if phase == VOID and on_stack:
            return None  # a list that is being made
        if phase == LAG:
            return self._verdict_on_waiting(life, op, variables)
        if phase == DRAG and self._is_needed_in_another_pass(life, op):
            return None
        if phase == DRAG and self._is_made_anew(life, op):
            return "iteration", variables
        return PHASE_NAMES[phase], variables

    def _verdict_on_waiting(
        self, life: int, op: int, variables: list[Holder]
    ) -> tuple[str, list[Holder]] | None:
        """Tell of what waits only where a container or a half-made call, and nothing else, holds computed results."""
        if variables[0].kind == "evaluation stack":
            waits = [] if variables[0].path else variables
        else:
            waits = [holder for holder in variables if "\n" in holder.path and not holder.foreign]
        rest = [holder for holder in variables if holder not in waits]
        if rest and not any(holder.foreign for holder in rest) and not self._is_rebound(life, op):
            return None
        return ("lag", waits) if waits and self._computed[life] else None

    def _is_rebound(self, life: int, op: int) -> bool:
        """Tell whether the line that made a life made another since, so that its variable holds that one now."""
        made = self._lives.op
        stacks = self._frames.capture.tables["ops"]["stack"]
        rows = np.flatnonzero((made > made[life]) & (made < op))
        return made[life] != NONE and bool((stacks[made[rows]] == stacks[made[life]]).any())

    def _verdict_on_saved(
        self, life: int, phase: int, op: int, packs: list[int]
    ) -> tuple[str, list[Holder]] | None:
        fates = {self._fates.fate(pack, op) for pack in packs}
        if phase == LAG or not fates <= {"graph", "retained"}:
            return None
        roots = [root for root in self._frames.holders.graph_roots(life, op) if not root.foreign]
        retained = "retained" in fates
        words = (
            f"the autograd graph of a forward {'whose backward has run' if retained else 'without backward'}"
        )
        nameless = Holder("autograd node", words, self._line(life), "")
        return ("retained" if retained else "graph"), roots or [nameless]

    def _is_made_anew(self, life: int, op: int) -> bool:
        """Tell whether the same line makes the same again later, and this one dies no sooner."""
        lives = self._lives
        made = int(lives.op[life])
        if made == NONE:
            return False
        stacks = self._frames.capture.tables["ops"]["stack"]
        end = int(lives.death_event[life])
        later = (lives.op > max(op, made)) & (lives.nbytes == lives.nbytes[life]) & (lives.storage != NONE)
        later &= (lives.birth_event <= end) if end != NONE else True
        rows = np.flatnonzero(later)
        return bool(stacks[made] != NONE and (stacks[lives.op[rows]] == stacks[made]).any())

    def _is_needed_in_another_pass(self, life: int, op: int) -> bool:
        """Tell whether it, or another that the same calls made, was read both before and after this place of a loop.

        A memory bank or a replay buffer is read in each pass of a loop; that the recording ends after some
        pass does not make what it keeps useless in the last one.
        """
        lives, stacks = self._lives, self._frames.capture.tables["ops"]["stack"]
        made = int(lives.op[life])
        if made == NONE or op < 0 or stacks[op] == NONE:
            return False
        starts, ends = _runs(stacks[: op + 1] == stacks[op])  # the ops of one backward have one stack
        before = np.minimum(starts[:-1] + op - starts[-1], ends[:-1])
        same = np.flatnonzero((lives.op != NONE) & (lives.op <= made) & (lives.nbytes == lives.nbytes[life]))
        same = same[stacks[lives.op[same]] == stacks[made]]
        first, last = (bound[same] for bound in self._frames.use_bounds)
        spans = np.searchsorted(before, last) - np.searchsorted(before, first)
        return any(
            self._is_used_anew(int(lives.storage[other]), before)
            for other in same[(first != NONE) & (spans > 0)][-_MOST_TWINS:].tolist()
        )

    def _is_used_anew(self, storage: int, places: IntArray) -> bool:
        """Tell whether the same calls use a storage on both sides of one of some ops."""
        tables = self._frames.capture.tables
        made = tables["uses"]["access"] == ACCESSES.index("output")
        used = np.unique(tables["uses"]["op"][(tables["uses"]["storage"] == storage) & ~made])
        by = tables["ops"]["stack"][used]
        return any(
            not set(by[used < place].tolist()).isdisjoint(by[used > place].tolist())
            for place in places[-_MOST_TWINS:].tolist()
        )

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
            if phase in ("drag", "gradient", "iteration", "graph", "retained"):
                birth = max(birth, int(self._biographies.last_event[life]))
            elif phase == "lag":
                death = min(death, int(self._biographies.first_event[life]))
            if birth < death:
                change[birth] += told.nbytes[life]
                change[death] -= told.nbytes[life]
        return np.cumsum(change)[:-1]

    def _worth_telling(self, groups: list[_Group]) -> list[Finding]:
        """Keep what lowers the peak, alone or together with the others; what is not told of lowers nothing."""
        live = self._curve.live_bytes.astype(np.int64)
        told = [
            (group, self._bytes_saved(group.phase, group.lives))
            for group in map(self._without_gathered, groups)
            if not (group.phase == "lag" and len(group.lives) < _LEAST_WAITING and group.holder.path)
        ]
        mended, count = told, -1
        while len(told) != count:
            count = len(told)
            together = live - sum(saved for _, saved in mended)
            told = [(group, saved) for group, saved in told if self._matters(live, together, saved)]
            cut = {holder.words for group, _ in told for holder in (group.holder, *group.others)}
            mended = [(group, saved) for group, saved in mended if group.holder.words in cut]
        lowest = int((live - sum(saved for _, saved in mended)).max())
        found = [self._finding(group, int((live - saved).max()), lowest) for group, saved in _merged(told)]
        return sorted(found, key=lambda finding: -finding.nbytes)

    def _without_gathered(self, group: _Group) -> _Group:
        """Leave out what one op gathers, as torch.cat does a list: it needs them all, whenever they are made."""
        if group.phase != "lag" or not group.holder.path:
            return group
        first = self._frames.use_bounds[0][group.lives]
        lives = [life for life, op in zip(group.lives, first, strict=True) if (first == op).sum() == 1]
        nbytes = min(group.nbytes, int(self._lives.nbytes[lives].sum()))
        return dataclasses.replace(group, lives=lives, nbytes=nbytes)

    def _matters(self, live: IntArray, together: IntArray, saved: IntArray) -> bool:
        """Tell whether some bytes lower the peak by enough, alone or once all the others are gone."""
        alone = int(live.max()) - int((live - saved).max())
        last = int((together + saved).max()) - int(together.max())
        return max(alone, last) >= self._least

    def _finding(self, group: _Group, alone: int, together: int) -> Finding:
        holder = group.holder
        also = [other.words for other in group.others if not other.foreign and other.words != holder.words]
        words = holder.words + (f" (also held by {', '.join(dict.fromkeys(also))})" if also else "")
        last = int(self._frames.storages["last_use_op"].iloc[group.lives[-1]])
        last_used = str(self._frames.ops["line"].iloc[last]) if last != NONE else ""
        advice = advise(
            group.phase,
            group.nbytes,
            holder,
            _short(last_used),
            peak_bytes=int(self._curve.live_bytes.max()),
            alone_bytes=alone,
            together_bytes=together,
        )
        return Finding(
            group.phase,
            group.nbytes,
            words,
            holder.site,
            advice,
            holder.path,
            alone,
            together,
            tuple(group.lives),
        )


def _runs(mask: NDArray[np.bool_]) -> tuple[IntArray, IntArray]:
    """Give first and last place of each run of True."""
    edges = np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8))
    return np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1


def _merged(told: list[tuple[_Group, IntArray]]) -> list[tuple[_Group, IntArray]]:
    """Put what a variable holds in this pass of a loop to what it holds from the last: one `del` frees both."""
    drags = {group.holder.words: (group, saved) for group, saved in told if group.phase == "drag"}
    passes = {group.holder.words for group, _ in told if group.phase == "iteration"}
    merged = []
    for group, saved in told:
        words = group.holder.words
        if group.phase == "iteration" and words in drags:
            drag, saved_too = drags[words]
            nbytes = max(group.nbytes, drag.nbytes)
            both = dataclasses.replace(group, lives=group.lives + drag.lives, nbytes=nbytes)
            merged.append((both, saved + saved_too))
        elif group.phase != "drag" or words not in passes:
            merged.append((group, saved))
    return merged


def _computed(frames: Frames) -> list[bool]:
    """Tell of each life whether an op computed it from other tensors, so that it could be computed later."""
    uses = frames.capture.tables["uses"]
    reads = np.zeros(max(frames.capture.rows("ops"), 1), dtype=bool)
    reads[uses["op"][uses["access"] == ACCESSES.index("read")]] = True
    op = frames.lives.op
    return [bool(row) for row in (op != NONE) & reads[np.maximum(op, 0)]]


def _short(site: str) -> str:
    """Give `file:line` with the file relative to the current directory, if it lies inside."""
    return site.removeprefix(os.getcwd() + os.sep)
