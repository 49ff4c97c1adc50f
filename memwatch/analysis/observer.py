"""Describe the effects of recording on the program's memory, and the memory that it missed.

memwatch misses ops in other threads and in code outside ops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.analysis.facts.allocations import BY_OP, EXTERNAL, UNOBSERVED, WORKSPACE
from memwatch.analysis.facts.forward_ops import maker_of_node
from memwatch.analysis.facts.places import lifts
from memwatch.capture.schema import BACKWARD as _BACKWARD
from memwatch.capture.schema import NONE
from memwatch.sizes import format_bytes
from memwatch.words.processes import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.capture.columns import IntArray

_NUMBER_BYTES = 8  # bytes of the largest number that Python hands to an op
_ADD = "aten.add.Tensor"
_CLONE = "aten.clone.default"
_MAKES_SPARSE = "aten._sparse_coo_tensor_with_dims_and_tensors.default"


class ObserverEffect(NamedTuple):
    """Ops that ran in another way because they were observed."""

    ops: tuple[str, ...]
    nbytes: int  # bytes that these ops allocated: the difference is at most this
    text: str


def observer_effects(facts: Facts) -> list[ObserverEffect]:
    """Return where observing a block may have changed its peak.

    If the program passes a Python number to an op, ATen wraps it in a tensor of 8 bytes. A recorder in Python keeps
    this tensor until the op returns; the native recorder does not. A dispatch mode also makes ATen avoid in-place ops;
    a dispatch key does not.

    Args:
        facts: what the capture shows.

    Returns:
        One entry per effect that occurred, none if the peak is the plain program's to the byte.
    """
    meta = facts.capture.meta
    by_mode = meta.get("intercept") == "mode"
    effects = [] if meta.get("recorder") == "native" and not by_mode else _numbers(facts)
    if by_mode and facts.capture.rows("ops"):
        effects += _formulas(facts) + _gradient_sums(facts) + _sparse_gradients(facts)
    return effects


def unrecorded(facts: Facts) -> ObserverEffect | None:
    """Return what only the allocator saw: memory made outside every recorded op, as by C++."""
    allocations = facts.allocations
    if facts.capture.lacks("ops"):
        return None  # no ops were recorded, which another note says
    unseen = (
        (allocations.origin == UNOBSERVED) & (allocations.op == NONE) & (allocations.nbytes > _NUMBER_BYTES)
    )
    unseen &= ~lifts(facts.capture, allocations.named).is_lift[allocations.storage]
    if not unseen.any():
        return None
    nbytes = int(allocations.nbytes[unseen].sum())
    text = (
        f"{format_bytes(nbytes)} in {counted(int(unseen.sum()), 'block')} were allocated outside every recorded op. "
        "Compiled code and C++ allocate like this. memwatch knows the sizes, but not the lines"
    )
    return ObserverEffect((), nbytes, text)


def unrecorded_steps(facts: Facts) -> str:
    """Return a sentence about the steps whose ops were not recorded, or "" if all were recorded."""
    count, lost = len(facts.steps), int((~facts.steps.recorded).sum())
    if not lost:
        return ""
    return (
        f"{lost:,} of {count:,} steps were not recorded because of the schedule or `keep`: their peaks are exact, and "
        "the tensors that they made and used are unknown"
    )


def not_memory(facts: Facts) -> ObserverEffect | None:
    """Return a note if there were fake or meta tensors: they take no memory; an estimate counts nothing else."""
    if _is_estimate(facts):
        text = (
            "the tensors are fake and take no memory: the tables count the bytes of real tensors of these sizes. They "
            "leave out the workspace of kernels"
        )
        return ObserverEffect((), 0, text)
    allocations = facts.allocations
    fake = (allocations.origin == BY_OP) & (allocations.address == 0) & (allocations.nbytes > 0)
    if not fake.any():
        return None
    nbytes = int(allocations.nbytes[fake].sum())
    text = (
        f"{int(fake.sum())} storages of fake or meta tensors take no memory and do not count; real ones would have "
        f"{format_bytes(nbytes)}. Enter a FakeTensorMode before the block to get an estimate"
    )
    return ObserverEffect((), nbytes, text)


def _numbers(facts: Facts) -> list[ObserverEffect]:
    allocations, peak = facts.allocations, facts.curve.peak_event
    alive = (allocations.birth_event != NONE) & (allocations.birth_event <= peak)
    alive &= (allocations.death_event == NONE) | (allocations.death_event > peak)
    wrapped = alive & (allocations.origin == WORKSPACE) & (allocations.nbytes == _NUMBER_BYTES)
    nbytes = int(allocations.nbytes[wrapped].sum())
    if not nbytes:
        return []
    ops = facts.capture.tables["ops"]
    made_by = allocations.op[wrapped]
    names = _unique(facts.strings[ops["name"][made_by[made_by != NONE]]])
    text = (
        f"{format_bytes(nbytes)} at the peak are Python numbers in tensors of 8 bytes, kept until their op "
        "returned because it was observed"
    )
    return [ObserverEffect(names, nbytes, text)]


def _formulas(facts: Facts) -> list[ObserverEffect]:
    """Return the recorded ops whose backward, or forward, ATen computes in another way under a mode."""
    ops = facts.capture.tables["ops"]
    packets = np.array([name.rpartition(".")[0] for name in facts.strings], dtype=object)[ops["name"]]
    forward = maker_of_node(facts.capture)
    of_backward = np.where(forward != NONE, packets[np.maximum(forward, 0)], "")
    is_forward = ops["phase"] != _BACKWARD
    found = []
    for affected, where, formulas in (
        (np.isin(of_backward, list(BACKWARD)), of_backward, BACKWARD),
        (is_forward & np.isin(packets, list(FORWARD)), packets, FORWARD),
    ):
        for packet in _unique(where[affected]):
            nbytes = _born_in(facts, affected & (where == packet))
            phase = "backward" if formulas is BACKWARD else "forward"
            if _is_estimate(facts):
                text = _too_high(
                    nbytes, f"torch computes the {phase} of {packet} in another way than in a real run"
                )
            else:
                text = (
                    f"under a dispatch mode the {phase} of {packet} {formulas[packet]} "
                    f"(it allocated {format_bytes(nbytes)}); intercept='key' leaves it alone"
                )
            found.append(ObserverEffect((packet,), nbytes, text))
    return sorted(found, key=lambda effect: -effect.nbytes)


def _gradient_sums(facts: Facts) -> list[ObserverEffect]:
    """Return the sums of gradients that autograd would have added in place.

    A tensor used more than once gets as many gradients. Autograd adds each to the last after the node that
    made it has run, so the sum is the last op of its node, and one of its terms came from an earlier node.
    """
    ops, uses = facts.capture.tables["ops"], facts.capture.tables["uses"]
    backward = ops["phase"] == _BACKWARD
    is_last = np.append(ops["sequence"][1:] != ops["sequence"][:-1], True)
    sums = backward & is_last & (facts.strings[ops["name"]] == _ADD)
    sums &= np.bincount(uses["op"], minlength=len(sums))[: len(sums)] > 1
    if not sums.any():
        return []
    nbytes = _born_in(facts, sums)
    if not nbytes:  # of sparse gradients, which have no storage
        return []
    if _is_estimate(facts):
        difference = "autograd makes a new tensor for each sum of gradients, and a real run adds in place"
        return [ObserverEffect((_ADD,), nbytes, _too_high(nbytes, difference))]
    text = (
        f"under a dispatch mode autograd adds gradients out of place: {int(sums.sum())} sums for tensors used "
        f"more than once allocated {format_bytes(nbytes)}; intercept='key' lets it add in place"
    )
    return [ObserverEffect((_ADD,), nbytes, text)]


def _sparse_gradients(facts: Facts) -> list[ObserverEffect]:
    """Return the copies of sparse gradients that a leaf would have taken as they are.

    A leaf takes a sparse gradient over only if nobody else owns its indices and values, and the Python
    objects that a mode makes of them are owners.
    """
    ops = facts.capture.tables["ops"]
    names, backward = facts.strings[ops["name"]], ops["phase"] == _BACKWARD
    if not (backward & (names == _MAKES_SPARSE)).any():
        return []
    copies = backward & (ops["sequence"] == NONE) & (names == _CLONE)
    nbytes = _born_in(facts, copies)
    if not nbytes:
        return []
    if _is_estimate(facts):
        difference = "a leaf copies its sparse gradient, and a real run takes it over"
        return [ObserverEffect((_CLONE,), nbytes, _too_high(nbytes, difference))]
    text = (
        f"under a dispatch mode leaves copy their sparse gradients: {int(copies.sum())} copies allocated "
        f"{format_bytes(nbytes)}; intercept='key' lets them take the gradients over"
    )
    return [ObserverEffect((_CLONE,), nbytes, text)]


def _is_estimate(facts: Facts) -> bool:
    return bool(facts.capture.meta.get("estimate"))


def _too_high(nbytes: int, difference: str) -> str:
    """Return the effect of the mode on an estimate. Only a mode sees the ops of fake tensors: no option helps."""
    return f"these figures can be up to {format_bytes(nbytes)} too high: in an estimate, {difference}"


def _born_in(facts: Facts, chosen: NDArray[np.bool_]) -> int:
    """Return the bytes that the chosen ops allocated."""
    op: IntArray = facts.allocations.op
    made = op != NONE
    return int(facts.allocations.nbytes[made][chosen[op[made]]].sum())


def _unique(names: NDArray[np.object_]) -> tuple[str, ...]:
    return tuple(sorted({str(name) for name in names.tolist() if name}))


# Data: the ops that ATen computes in another way while any TorchDispatchMode is on, torch 2.13.
#
# While a mode is on, ATen's `isTensorSubclassLike` is true for every tensor. Formulas that check it then avoid in-
# place ops and data-dependent shapes. The set was found with PyTorch's op database: every sample of its 702 entries
# ran forward and backward, once plainly and once under an empty mode. The ops of every autograd node were compared in
# the profiler's event tree (`reports/opinfo.py --formulas` repeats it).
BACKWARD: Final = {
    "aten._ctc_loss": "pads with the lengths as tensors",
    "aten._linalg_eigh": "scatters the diagonal into a copy",
    "aten.atan2": "masks a copy",
    "aten.binary_cross_entropy": "multiplies out of place",
    "aten.binary_cross_entropy_with_logits": "multiplies and subtracts out of place",
    "aten.clamp": "combines its masks out of place",
    "aten.cummax": "adds into a copy of the zeros",
    "aten.cummin": "adds into a copy of the zeros",
    "aten.cumprod": "takes the branch that allows for zeros",
    "aten.gather": "adds into a copy of the zeros",
    "aten.index": "puts into a copy of the zeros",
    "aten.index_select": "adds into a copy of the zeros",
    "aten.kthvalue": "scatters into a copy of the zeros",
    "aten.linalg_eig": "skips the check of the gauge",
    "aten.linalg_householder_product": "stacks its columns by cat",
    "aten.linalg_matrix_exp": "builds its blocks by cat",
    "aten.masked_fill": "fills by where",
    "aten.masked_select": "scatters into a copy of the zeros",
    "aten.max": "masks or scatters into a copy",
    "aten.median": "masks or scatters into a copy",
    "aten.min": "masks or scatters into a copy",
    "aten.mode": "scatters into a copy of the zeros",
    "aten.nanmedian": "masks or scatters into a copy",
    "aten.ormqr": "stacks its columns by cat",
    "aten.prod": "takes the branch that allows for zeros",
    "aten.sort": "scatters into a copy of the zeros",
    "aten.take": "puts into a copy of the zeros",
    "aten.topk": "scatters into a copy of the zeros",
    "aten.trace": "fills a copy of the zeros",
}
"""Ops whose backward differs: the op without its overload, and what its backward does instead."""

FORWARD: Final = {
    "aten._ctc_loss": "copies the lengths into tensors",
    "aten._safe_softmax": "adds the attention mask out of place",
}
"""Ops that are recorded where a composite forward differs."""


def other_threads(facts: Facts) -> list[str]:
    """Return a sentence about the recorded threads, and one about threads whose allocations may be missing."""
    return [*_recorded_threads(facts), *_unrecorded_threads(facts)]


def unrecorded_code_ran(facts: Facts, allocation: int) -> bool:
    """Return True if code whose ops are not recorded ran during the life of an allocation, or may have.

    Other threads and functions compiled by `torch.compile` are such code.
    """
    if facts.capture.meta.get("threads_unheard", 0):
        return True
    allocations = facts.allocations
    return _ran_within(facts, int(allocations.birth_ns[allocation]), int(allocations.death_ns[allocation]))


def unrecorded_code_ran_while_idle(facts: Facts, allocation: int) -> bool:
    """Return True if code whose ops are not recorded ran before an allocation's first recorded use or after its last.

    The code may have used the memory.
    """
    allocations, ops = facts.allocations, facts.capture.tables["ops"]
    first, last = (int(bound[allocation]) for bound in facts.use_bounds)
    if first == NONE:
        return unrecorded_code_ran(facts, allocation)
    birth_ns, death_ns = int(allocations.birth_ns[allocation]), int(allocations.death_ns[allocation])
    waits = _ran_within(facts, birth_ns, int(ops["start_ns"][first]))
    return waits or _ran_within(facts, int(ops["end_ns"][last]), death_ns)


def _ran_within(facts: Facts, start_ns: int, end_ns: int) -> bool:
    """Return True if another thread allocated, or a compiled call began, between two times. `end_ns` may be none."""
    for times_ns in (facts.births_in_other_threads_ns, facts.capture.tables["compiled_calls"]["start_ns"]):
        first = int(np.searchsorted(times_ns, start_ns))
        if first < len(times_ns) and (end_ns == NONE or int(times_ns[first]) <= end_ns):
            return True
    return False


def _theirs(facts: Facts) -> NDArray[np.bool_]:
    theirs: NDArray[np.bool_] = facts.allocations.counted & (facts.allocations.thread != NONE)
    return theirs


def _at_peak_bytes(facts: Facts) -> int:
    """Return how many bytes of the recorded other threads count at the peak."""
    alive = _theirs(facts) & facts.alive_at(facts.curve.peak_event)
    return int(facts.allocations.nbytes[alive].sum())


def _recorded_threads(facts: Facts) -> list[str]:
    allocations, theirs = facts.allocations, _theirs(facts)
    if not theirs.any():
        return []
    count, at_peak = len(np.unique(allocations.thread[theirs])), _at_peak_bytes(facts)
    text = (
        f"{count} other {_noun('thread', count)} allocated {format_bytes(int(allocations.nbytes[theirs].sum()))} in "
        f"all, and {format_bytes(at_peak)} of it were live at the peak: the bytes count, the ops were not recorded"
    )
    return [text]


def _unrecorded_threads(facts: Facts) -> list[str]:
    """Describe the unrecorded threads: those that started in the block, and those from before it.

    Threads from before the block are mentioned if storages appeared that they may have made, or if they may run the
    program's code.
    """
    meta, allocations = facts.capture.meta, facts.allocations
    started, before = int(meta.get("threads_unheard", 0)), int(meta.get("threads_before", 0))
    sentences = []
    if started:
        sentences.append(
            f"{started} other {_noun('thread', started)} started that memwatch could not observe: their allocations "
            f"do not count{_what_they_free(facts)}"
        )
    later = (allocations.origin == EXTERNAL) & (allocations.birth_ns > int(meta.get("start_ns", 0)))
    count = int(later.sum())
    if before and count and meta.get("allocator"):
        sentences.append(
            f"{count} {_noun('storage', count)}, {format_bytes(int(allocations.nbytes[later].sum()))} in all, first "
            f"seen inside the block were made outside torch, or by {before} other {_noun('thread', before)} that ran "
            f"before the block was entered. Allocations of such threads do not count{_what_they_free(facts)}"
        )
    elif at_work := int(meta.get("threads_at_work_before", 0)):
        sentences.append(
            f"{at_work} other {_noun('thread', at_work)} ran before the block was entered. Their allocations do not "
            "count; start these threads, or their pool, inside the block"
            f"{_what_they_free(facts)}"
        )
    return sentences


def _what_they_free(facts: Facts) -> str:
    """Describe which frees by an unrecorded thread memwatch notices late; "" if none.

    If the thread frees a storage of the block, the native recorder notices it at once, and the Python recorder before
    the next op of the block's thread. Memory of another recorded thread has no known storage. If the thread frees that,
    memwatch notices it only at the next allocation at this address.
    """
    at_peak = _at_peak_bytes(facts)
    if at_peak:
        return f"; they may have freed some of the {format_bytes(at_peak)} of other threads that count at the peak"
    is_late = facts.capture.meta.get("recorder") == "python"
    return "; memory that they free counts until the next op of the block's thread" if is_late else ""


def _noun(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
