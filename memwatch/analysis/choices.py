"""What raises the peak though no reference is at fault: an optimizer's temporaries, a workspace, a second copy.

Each is told of only when it is a large share of the peak, for there is something to choose then: how the
optimizer steps, in what pieces an op gets its input, where a tensor is converted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from memwatch.analysis.holders import Holder
from memwatch.analysis.lives import WORKSPACE
from memwatch.capture.schema import ACCESSES, NONE, PHASES

if TYPE_CHECKING:
    from memwatch.analysis.frames import Frames

_OPTIMIZER_RATIO: Final = 0.2
_WORKSPACE_RATIO: Final = 0.5
_TWICE_RATIO: Final = 0.1
_CONVERSIONS: Final = ("aten._to_copy", "aten.clone", "aten.copy", "aten.contiguous")


@dataclass(frozen=True)
class Choice:
    """Pieces of memory that another choice would not have made."""

    phase: str
    holder: Holder
    lives: list[int]


class Choices:
    """The choices that a capture shows at an event of its live curve."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._increase = frames.curve.peak_increase_bytes

    def at(self, event: int, alive: list[int]) -> list[Choice]:
        """Give the choices that matter at an event, of the lives that are live then."""
        op = int(self._frames.timeline["op"].iloc[event])
        if op < 0:
            return []
        found = (self._optimizer(op, alive), self._workspace(op, alive), self._twice(op, alive))
        least = (_OPTIMIZER_RATIO, _WORKSPACE_RATIO, _TWICE_RATIO)
        nbytes = self._frames.lives.nbytes
        return [
            choice
            for choice, ratio in zip(found, least, strict=True)
            if choice.lives and int(nbytes[choice.lives].sum()) >= ratio * self._increase
        ]

    def _optimizer(self, op: int, alive: list[int]) -> Choice:
        """Find the temporaries of a foreach step: of each op all but the largest, for one is needed at a time."""
        frames, lives = self._frames, self._frames.lives
        ops, storages = frames.ops, frames.storages
        holder = Holder(
            "optimizer",
            "the optimizer's step, which works on all parameters at once",
            str(ops["line"].iloc[op]),
            "",
        )
        if ops["phase"].iloc[op] != PHASES[2]:
            return Choice("optimizer", holder, [])
        temporary = storages["category"].isin(["temporary", "workspace"]).to_numpy()
        foreach = storages["op_name"].str.contains("_foreach_").to_numpy()
        by_op: dict[int, list[int]] = {}
        for life in alive:
            if temporary[life] and foreach[life]:
                by_op.setdefault(int(lives.op[life]), []).append(life)
        many = (sorted(group, key=lambda life: -int(lives.nbytes[life]))[1:] for group in by_op.values())
        return Choice("optimizer", holder, [life for group in many for life in group])

    def _workspace(self, op: int, alive: list[int]) -> Choice:
        frames = self._frames
        name, line = str(frames.ops["name"].iloc[op]), str(frames.ops["line"].iloc[op])
        found = [life for life in alive if int(frames.lives.origin[life]) == WORKSPACE]
        return Choice("workspace", Holder("kernel", f"the kernel of {name}", line, ""), found)

    def _twice(self, op: int, alive: list[int]) -> Choice:
        """Find saved tensors that were made by converting another saved tensor."""
        frames, lives = self._frames, self._frames.lives
        saved = {life for life in alive if frames.holders.packs_at(life, op)}
        uses, category = frames.capture.tables["uses"], frames.storages["category"]
        reads = uses["access"] == ACCESSES.index("read")
        found = []
        for life in saved:
            made, name = int(lives.op[life]), str(frames.storages["op_name"].iloc[life])
            if made == NONE or not name.startswith(_CONVERSIONS):
                continue
            sources = uses["storage"][reads & (uses["op"] == made)].tolist()
            if any(source in saved and category.iloc[source] == "activation" for source in sources):
                found.append(life)
        line = (
            str(frames.storages["line"].iloc[max(found, key=lambda life: int(lives.nbytes[life]))])
            if found
            else ""
        )
        words = "autograd, which saves a tensor and a converted copy of it,"
        return Choice("twice", Holder("autograd node", words, line, ""), found)
