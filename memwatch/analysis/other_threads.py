"""Report the memory of other threads than the block's: the part that was recorded, and the part that was not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwatch.analysis.facts.allocations import EXTERNAL
from memwatch.capture.schema import NONE
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts


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
    """Return True if such code ran before the first recorded use of an allocation, or after the last one.

    It may have used the memory then.
    """
    allocations, ops = facts.allocations, facts.capture.tables["ops"]
    first, last = (int(bound[allocation]) for bound in facts.use_bounds)
    if first == NONE:
        return unrecorded_code_ran(facts, allocation)
    birth_ns, death_ns = int(allocations.birth_ns[allocation]), int(allocations.death_ns[allocation])
    waits = _ran_within(facts, birth_ns, int(ops["start_ns"][first]))
    return waits or _ran_within(facts, int(ops["end_ns"][last]), death_ns)


def _ran_within(facts: Facts, start_ns: int, end_ns: int) -> bool:
    """Return True if another thread allocated, or a compiled call began, in a time which may have no end."""
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
    """Describe the unrecorded threads.

    Threads from before the block have storages, or they may run the program's code.
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
    """Describe when memwatch notices the frees of an unrecorded thread late.

    Frees of the block's storages are known at once.

    The Python recorder notes them before the next op of the block's thread. Memory of a recorded thread has no known
    storage, so such a block ends only with the next allocation at its address.
    """
    at_peak = _at_peak_bytes(facts)
    if at_peak:
        return f"; they may have freed some of the {format_bytes(at_peak)} of other threads that count at the peak"
    is_late = facts.capture.meta.get("recorder") == "python"
    return "; memory that they free counts until the next op of the block's thread" if is_late else ""


def _noun(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
