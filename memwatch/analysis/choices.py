"""What raises the peak though no reference is at fault: an optimizer's temporaries, a workspace, a second copy.

Each is told of only when it is a large share of the peak, for there is something to choose then: how the
optimizer steps, in what pieces an op gets its input, where a tensor is converted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.holders import Holder
from memwatch.analysis.lives import WORKSPACE
from memwatch.capture.schema import ACCESSES, NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.frames import Frames

_OPTIMIZER_RATIO: Final = 0.2
_WORKSPACE_RATIO: Final = 0.5
_TWICE_RATIO: Final = 0.1
_CONVERSIONS: Final = ("aten._to_copy", "aten.clone", "aten.copy", "aten.contiguous")


@dataclass(frozen=True)
class Choice:
    """Pieces of memory, of the whole capture, that another choice would not have made."""

    phase: str
    holder: Holder
    lives: list[int]


class Choices:
    """The choices that a capture shows at an event of its live curve."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._ops = frames.ops
        self._op_name = frames.storages["op_name"].to_numpy()
        self._category = frames.storages["category"].to_numpy()

    def at(self, event: int, alive: NDArray[np.bool_]) -> list[tuple[Choice, int]]:
        """Give the choices that matter at an event, each with its bytes there.

        Args:
            event: row of the timeline.
            alive: which lives are live then.
        """
        frames = self._frames
        op = int(frames.timeline["op"].iloc[event])
        if op < 0:
            return []
        found = (self._optimizer(op), self._workspace(op), self._twice())
        least = (_OPTIMIZER_RATIO, _WORKSPACE_RATIO, _TWICE_RATIO)
        sizes = [
            int(frames.lives.nbytes[[life for life in choice.lives if alive[life]]].sum()) for choice in found
        ]
        increase = max(frames.curve.peak_increase_bytes, 1)
        return [
            (choice, nbytes)
            for choice, nbytes, ratio in zip(found, sizes, least, strict=True)
            if nbytes >= ratio * increase
        ]

    def _optimizer(self, op: int) -> Choice:
        """Find the temporaries of foreach steps: of each op all but the largest, for one is needed at a time."""
        lives = self._frames.lives
        words = "the optimizer's step, which works on all parameters at once,"
        holder = Holder("optimizer", words, str(self._ops["line"].iloc[op]), "")
        if self._ops["phase"].iloc[op] != "optimizer":
            return Choice("optimizer", holder, [])
        temporary = np.isin(self._category, ["temporary", "workspace"]) & (lives.op != NONE)
        by_op: dict[int, list[int]] = {}
        for life in np.flatnonzero(temporary).tolist():
            if "_foreach_" in self._op_name[life]:
                by_op.setdefault(int(lives.op[life]), []).append(life)
        many = (sorted(group, key=lambda life: -int(lives.nbytes[life]))[1:] for group in by_op.values())
        return Choice("optimizer", holder, [life for group in many for life in group])

    def _workspace(self, op: int) -> Choice:
        """Find the workspace of an op, each time that the same line runs it."""
        lives = self._frames.lives
        name, line = (str(self._ops[column].iloc[op]) for column in ("name", "line"))
        same = ((self._ops["name"] == name) & (self._ops["line"] == line)).to_numpy()
        found = np.flatnonzero(
            (lives.origin == WORKSPACE) & (lives.op != NONE) & same[np.maximum(lives.op, 0)]
        )
        return Choice("workspace", Holder("kernel", f"the kernel of {name}", line, ""), found.tolist())

    def _twice(self) -> Choice:
        """Find saved tensors that were made by converting another saved tensor."""
        frames, lives = self._frames, self._frames.lives
        saved = set(frames.saved["storage"].tolist()) - {NONE}
        uses = frames.capture.tables["uses"]
        reads = uses["access"] == ACCESSES.index("read")
        sources = dict(zip(uses["op"][reads].tolist(), uses["storage"][reads].tolist(), strict=True))
        found = []
        for life in saved:
            source = sources.get(int(lives.op[life]), NONE)
            converted = self._op_name[life].startswith(_CONVERSIONS)
            if converted and source in saved and self._category[source] == "activation":
                found.append(life)
        largest = max(found, key=lambda life: int(lives.nbytes[life]), default=NONE)
        line = str(frames.storages["line"].iloc[largest]) if found else ""
        words = "autograd, which saves a tensor and a converted copy of it,"
        return Choice("twice", Holder("autograd node", words, line, ""), found)
