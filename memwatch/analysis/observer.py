"""The observer effect: what recording itself changed in the memory of the program, op by op."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.analysis.lives import BY_OP, UNOBSERVED, WORKSPACE
from memwatch.analysis.mode_formulas import BACKWARD, FORWARD
from memwatch.analysis.places import forward_op_of
from memwatch.capture.schema import NONE, PHASES
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.frames import Frames
    from memwatch.capture.packed import IntArray

_NUMBER_BYTES = 8
_ADD = "aten.add.Tensor"
_CLONE = "aten.clone.default"
_MAKES_SPARSE = "aten._sparse_coo_tensor_with_dims_and_tensors.default"


class ObserverEffect(NamedTuple):
    """Ops that ran in another way because they were observed."""

    ops: tuple[str, ...]
    nbytes: int  # bytes that these ops allocated: the difference is at most this
    text: str


def observer_effects(frames: Frames) -> list[ObserverEffect]:
    """Tell where observing a block may have changed its peak.

    A Python number given to an op lies in a tensor of 8 bytes, which interception by Python keeps until the
    op returns; the native recorder behind the key leaves it alone. A dispatch mode, besides, makes ATen avoid
    in-place ops; a dispatch key does not.

    Args:
        frames: the tables of a capture.

    Returns:
        One entry per effect that occurred, none if the peak is the plain program's to the byte.
    """
    meta = frames.capture.meta
    by_mode = meta.get("intercept") == "mode"
    effects = [] if meta.get("recorder") == "native" and not by_mode else _numbers(frames)
    if by_mode and frames.capture.rows("ops"):
        effects += _formulas(frames) + _gradient_sums(frames) + _sparse_gradients(frames)
    return effects


def unrecorded(frames: Frames) -> ObserverEffect | None:
    """Tell what only the allocator saw: memory made outside every recorded op, as by compiled code."""
    lives = frames.lives
    unseen = (lives.origin == UNOBSERVED) & (lives.op == NONE) & (lives.nbytes > _NUMBER_BYTES)
    if not unseen.any():
        return None
    nbytes = int(lives.nbytes[unseen].sum())
    text = (
        f"{int(unseen.sum())} blocks, {format_bytes(nbytes)} in all, were allocated outside every recorded op, as "
        "compiled code and C++ do: only the allocator saw them"
    )
    return ObserverEffect((), nbytes, text)


def not_memory(frames: Frames) -> ObserverEffect | None:
    """Tell that the figures leave out tensors without memory, as fake and meta ones, or are of nothing else."""
    if frames.capture.meta.get("estimate"):
        text = (
            "an estimate: the block was entered under a FakeTensorMode, so the figures are what its tensors would "
            "take, without the workspace of kernels"
        )
        return ObserverEffect((), 0, text)
    lives = frames.lives
    fake = (lives.origin == BY_OP) & (lives.address == 0) & (lives.nbytes > 0)
    if not fake.any():
        return None
    nbytes = int(lives.nbytes[fake].sum())
    text = (
        f"{int(fake.sum())} storages of fake or meta tensors, {format_bytes(nbytes)} in all were they real, take no "
        "memory and are not counted; enter a FakeTensorMode before the block to have an estimate"
    )
    return ObserverEffect((), nbytes, text)


def _numbers(frames: Frames) -> list[ObserverEffect]:
    lives, peak = frames.lives, frames.curve.peak_event
    alive = (lives.birth_event != NONE) & (lives.birth_event <= peak)
    alive &= (lives.death_event == NONE) | (lives.death_event > peak)
    wrapped = alive & (lives.origin == WORKSPACE) & (lives.nbytes == _NUMBER_BYTES)
    nbytes = int(lives.nbytes[wrapped].sum())
    if not nbytes:
        return []
    ops = frames.capture.tables["ops"]
    made_by = lives.op[wrapped]
    names = _unique(frames.strings[ops["name"][made_by[made_by != NONE]]])
    text = (
        f"{format_bytes(nbytes)} at the peak are Python numbers in tensors of 8 bytes, kept until their op "
        "returned because it was observed"
    )
    return [ObserverEffect(names, nbytes, text)]


def _formulas(frames: Frames) -> list[ObserverEffect]:
    """Name the recorded ops whose backward, or forward, ATen computes in another way under a mode."""
    ops = frames.capture.tables["ops"]
    packets = np.array(
        [name.rpartition(".")[0] for name in frames.strings[ops["name"]].tolist()], dtype=object
    )
    forward = forward_op_of(ops)
    of_backward = np.where(forward != NONE, packets[np.maximum(forward, 0)], "")
    is_forward = ops["phase"] != PHASES.index("backward")
    found = []
    for affected, where, told in (
        (np.isin(of_backward, list(BACKWARD)), of_backward, BACKWARD),
        (is_forward & np.isin(packets, list(FORWARD)), packets, FORWARD),
    ):
        for packet in _unique(where[affected]):
            nbytes = _born_in(frames, affected & (where == packet))
            phase = "backward" if told is BACKWARD else "forward"
            text = (
                f"under a dispatch mode the {phase} of {packet} {told[packet]} "
                f"(it allocated {format_bytes(nbytes)}); intercept='key' leaves it alone"
            )
            found.append(ObserverEffect((packet,), nbytes, text))
    return sorted(found, key=lambda effect: -effect.nbytes)


def _gradient_sums(frames: Frames) -> list[ObserverEffect]:
    """Find the sums of gradients that autograd would have added in place.

    A tensor used more than once gets as many gradients. Autograd adds each to the last after the node that
    made it has run, so the sum is the last op of its node, and one of its terms came from an earlier node.
    """
    ops, uses = frames.capture.tables["ops"], frames.capture.tables["uses"]
    backward = ops["phase"] == PHASES.index("backward")
    is_last = np.append(ops["sequence"][1:] != ops["sequence"][:-1], True)
    sums = backward & is_last & (frames.strings[ops["name"]] == _ADD)
    sums &= np.bincount(uses["op"], minlength=len(sums))[: len(sums)] > 1
    if not sums.any():
        return []
    nbytes = _born_in(frames, sums)
    text = (
        f"under a dispatch mode autograd adds gradients out of place: {int(sums.sum())} sums for tensors used "
        f"more than once allocated {format_bytes(nbytes)}; intercept='key' lets it add in place"
    )
    return [ObserverEffect((_ADD,), nbytes, text)]


def _sparse_gradients(frames: Frames) -> list[ObserverEffect]:
    """Find the copies of sparse gradients that a leaf would have taken as they are.

    A leaf takes a sparse gradient over only if nobody else owns its indices and values, and the Python
    objects that a mode makes of them are owners.
    """
    ops = frames.capture.tables["ops"]
    names, backward = frames.strings[ops["name"]], ops["phase"] == PHASES.index("backward")
    if not (backward & (names == _MAKES_SPARSE)).any():
        return []
    copies = backward & (ops["sequence"] == NONE) & (names == _CLONE)
    nbytes = _born_in(frames, copies)
    if not nbytes:
        return []
    text = (
        f"under a dispatch mode leaves copy their sparse gradients: {int(copies.sum())} copies allocated "
        f"{format_bytes(nbytes)}; intercept='key' lets them take the gradients over"
    )
    return [ObserverEffect((_CLONE,), nbytes, text)]


def _born_in(frames: Frames, chosen: NDArray[np.bool_]) -> int:
    """Sum the bytes that the chosen ops allocated."""
    op: IntArray = frames.lives.op
    made = op != NONE
    return int(frames.lives.nbytes[made][chosen[op[made]]].sum())


def _unique(names: NDArray[np.object_]) -> tuple[str, ...]:
    return tuple(sorted({str(name) for name in names.tolist() if name}))
