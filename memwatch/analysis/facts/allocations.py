"""Join storages with the allocator's blocks: one row for each piece of memory, with or without a tensor.

The recorder numbers each storage that it sees. This module matches the storage to the block at its address. Memory
without a tensor is a block without a storage: workspace inside an op, or memory from code that memwatch did not
record. A storage without a block was alive at entry, lies in memory from another allocator, or was made while no
allocator events were recorded. Its birth and death come from the recorder.

The recorder may number one block twice: for a gradient that autograd wrapped again during backward, or for a second
storage over the same memory (DLPack). If two storages were first seen on one block, they are one storage and keep the
lower number. No allocator reports the resize of a fake storage, so the recorded resizes begin and end its blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.analysis.facts.blocks import (
    LIVES,
    Blocks,
    block_at,
    deaths_seen,
    end_blocks,
    last_deaths,
    pair_events,
    part_from_successors,
)
from memwatch.analysis.facts.step_curve import step_curve
from memwatch.capture.columns import Mapped
from memwatch.capture.schema import NONE, ORIGINS
from memwatch.device_names import CPU, META

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from memwatch.capture import Capture
    from memwatch.capture.columns import Columns, IntArray


def until_resized(resizes: Columns, births: Columns, died_ns: IntArray) -> tuple[IntArray, dict[str, Any]]:
    """Return when the first block of each storage ended, and the blocks that fake storages got by resizes.

    Args:
        resizes: the recorded table.
        births: the table, in the order of the storages.
        died_ns: when each storage died, nanoseconds, `LIVES` if that was not seen.

    Returns:
        The ends of the first blocks, shape (storages,), and the columns of the later blocks.
    """
    of_fakes = np.flatnonzero(births["address"][resizes["storage"]] == 0)
    storage, time_ns = resizes["storage"][of_fakes], resizes["time_ns"][of_fakes]
    order = np.lexsort((time_ns, storage))
    storage, time_ns, nbytes = storage[order], time_ns[order], resizes["nbytes"][of_fakes][order]
    is_first, is_last = np.ones(len(storage), dtype=bool), np.ones(len(storage), dtype=bool)
    is_first[1:] = is_last[:-1] = storage[1:] != storage[:-1]
    ends_ns = np.where(is_last, died_ns[storage], np.append(time_ns[1:], LIVES))
    first_ns = died_ns.copy()
    first_ns[storage[is_first]] = np.minimum(time_ns[is_first], died_ns[storage[is_first]])
    made = nbytes > 0
    count = int(made.sum())
    none = np.full(count, NONE, dtype=np.int32)
    storage, ends_ns = storage[made], ends_ns[made]
    return first_ns, {
        "storage": storage,
        "nbytes": nbytes[made],
        "device": births["device"][storage],
        "address": np.zeros(count, dtype=np.int64),
        "origin": births["origin"][storage],
        "thread": none,
        "op": none,
        "birth_ns": time_ns[made],
        "death_ns": np.where(ends_ns == LIVES, NONE, ends_ns),
        "counted": np.ones(count, dtype=bool),
        "birth_order": none,
        "death_order": none,
    }


_TABLES = ("uses", "deaths", "resizes", "packs", "roles", "role_ends", "holders", "recomputed")


def first_on_block(block_of: IntArray) -> IntArray:
    """Return, for each storage, the first storage that was seen on its block: itself, in most cases.

    Args:
        block_of: the block of each storage, -1 for none, shape (storages,).
    """
    canonical = np.arange(len(block_of), dtype=np.int32)
    matched = np.flatnonzero(block_of != NONE).astype(np.int32)
    block = block_of[matched]
    first = np.empty(int(block.max(initial=NONE)) + 1, dtype=np.int32)
    first[block[::-1]] = matched[::-1]  # the first storage on a block is written last and stays
    canonical[matched] = first[block]
    return canonical


def unify_storages(capture: Capture, canonical: IntArray) -> Capture:
    """Return the capture with every storage replaced by its canonical one in all tables but `births`."""
    if np.array_equal(canonical, np.arange(len(canonical))):
        return capture
    with_none = np.append(canonical, canonical.dtype.type(NONE))  # the last entry maps "none" (-1) to itself
    tables = {name: Mapped(capture.tables[name], "storage", with_none.__getitem__) for name in _TABLES}
    return replace(capture, tables={**capture.tables, **tables})


BY_OP, BASELINE, EXTERNAL, UNOBSERVED, BY_THREAD = range(len(ORIGINS))
WORKSPACE, UNRECORDED = len(ORIGINS), len(ORIGINS) + 1
"""Origins that this module finds, beside the recorded ones: memory that an op allocates and frees, and memory from a
step whose ops were not recorded."""
_NUMBER_BYTES: Final = 16
"""Bytes of a complex number, the largest number that ATen wraps."""
_DTYPES: Final[dict[str, Any]] = {
    **dict.fromkeys(("storage", "op", "birth_order", "death_order"), np.int32),
    "origin": np.int8,
}
"""Types of the columns of numbers. With wider types, half of an allocation's bytes would be zeros."""
_NAMES: Final = ("device", "thread")
"""Columns of string ids. These texts were among the first, so the ids mostly fit into 16 bits."""
_CLOCKS_APART_NS: Final = 1_000
"""The clock of ops and that of kineto's events differ by a fraction of a microsecond; C++ stamps both with one."""
_OF_BIRTHS: Final = ("op", "time_ns", "address", "nbytes", "device", "origin")


@dataclass(frozen=True)
class Allocations:
    """Every piece of memory as columns; the first `named` rows are the recorder's storages, by their number.

    `birth_event` and `death_event` are rows of the live curve, -1 until `trace_live_curve` has filled them in. It
    drops `birth_order` and `death_order`, which are all -1 from then on.
    """

    named: int
    storage: IntArray  # the recorder's storage that it belongs to; -1: no tensor named the memory
    nbytes: IntArray
    device: IntArray
    address: IntArray
    origin: IntArray
    thread: IntArray  # string id of the name of the thread that allocated it; -1: the thread that recorded
    op: IntArray  # the op that made it; -1: none
    birth_ns: IntArray
    death_ns: IntArray
    counted: NDArray[np.bool_]
    birth_order: IntArray  # position among the allocator's events, -1 if it is in none of them
    death_order: IntArray
    birth_event: IntArray
    death_event: IntArray

    def __len__(self) -> int:
        return len(self.nbytes)

    @property
    def is_later_block(self) -> NDArray[np.bool_]:
        """Whether an allocation is a block that a storage got by a resize, in place of its first one."""
        later: NDArray[np.bool_] = self.storage != NONE
        later[: self.named] = False
        return later

    def rows_of(self, storages: Sequence[int] | IntArray) -> IntArray:
        """Return all rows of some storages: their first blocks, and the blocks that resizes gave them."""
        return np.flatnonzero((self.storage != NONE) & np.isin(self.storage, storages))


@dataclass(frozen=True)
class _Match:
    """Which block is which storage's."""

    births: Columns  # the recorded table, in the order of the storages
    blocks: Blocks
    block_of: IntArray  # the block of each storage; -1: none
    owner: IntArray  # the storage of each block; -1: no tensor named the memory
    resized: IntArray  # blocks that a resize gave to a storage
    died_ns: IntArray  # when the memory of each storage was released; LIVES if the release was not recorded


def join_allocations(capture: Capture) -> tuple[Capture, Allocations]:
    """Join the storages of a capture with the allocator's events.

    Returns:
        The capture with a single number for all storages on the same memory, and every allocation.
    """
    capture, named, parts = _matched(in_order(capture))
    storages, unnamed = parts
    for part in parts:
        _mark_unrecorded(capture, part)
    none = np.full(named + len(unnamed["nbytes"]), NONE, dtype=np.int32)
    names = [int(part[name].max(initial=NONE)) for part in parts for name in _NAMES]
    narrow = np.int16 if max(names) <= np.iinfo(np.int16).max else np.int32
    columns: dict[str, Any] = {}
    for name in list(storages):  # free each part as soon as it is joined: a long run has millions of rows
        dtype = narrow if name in _NAMES else _DTYPES.get(name, storages[name].dtype)
        columns[name] = np.concatenate([storages.pop(name), unnamed.pop(name)], dtype=dtype, casting="unsafe")
    return capture, Allocations(named, **columns, birth_event=none, death_event=none)


def _matched(capture: Capture) -> tuple[Capture, int, tuple[dict[str, Any], dict[str, Any]]]:
    """Return the capture, the number of its storages, and the columns of the storages and of the other blocks."""
    recorded = capture.tables["births"]
    order = np.argsort(recorded["storage"], kind="stable").astype(np.int32)
    births: dict[str, IntArray] = {name: recorded[name][order] for name in _OF_BIRTHS}
    blocks = pair_events(capture)
    block_of = block_at(blocks, births["address"], births["time_ns"])
    block_of[(births["address"] == 0) | (births["nbytes"] == 0)] = NONE
    died_ns = deaths_seen(capture, len(order))
    block_of = part_from_successors(block_of, births["time_ns"], died_ns)
    canonical = first_on_block(block_of)
    died_ns = last_deaths(capture, births, canonical, died_ns)
    again = canonical != np.arange(len(order), dtype=np.int32)
    block_of[again] = NONE
    births["nbytes"] = np.where(again, 0, births["nbytes"])
    capture = unify_storages(capture, canonical)
    owner = np.full(len(blocks), NONE, dtype=np.int32)
    matched = block_of != NONE
    owner[block_of[matched]] = np.flatnonzero(matched)
    resized = _match_resizes(capture, blocks, owner)
    blocks = end_blocks(blocks, owner, capture.tables["resizes"], died_ns)
    match = _Match(births, blocks, block_of, owner, resized, died_ns)
    if capture.meta.get("estimate"):  # without the allocator's events, so all blocks have storages
        first_ns, later = until_resized(capture.tables["resizes"], births, died_ns)
        return capture, len(order), (_named_allocations(capture, replace(match, died_ns=first_ns)), later)
    return capture, len(order), (_named_allocations(capture, match), _unnamed_allocations(capture, match))


def in_order(capture: Capture) -> Capture:
    """Return the capture with its ops sorted by number; parallel ops of torch.jit.fork are written as they end."""
    ops = capture.tables["ops"]
    numbers = ops["op"]
    if (numbers[1:] > numbers[:-1]).all():
        return capture
    order = np.argsort(numbers, kind="stable")
    sorted_ops = {name: column[order] for name, column in ops.items()}
    return replace(capture, tables={**capture.tables, "ops": sorted_ops})


def _match_resizes(capture: Capture, blocks: Blocks, owner: IntArray) -> IntArray:
    """Assign each later block of a resized storage to that storage, in `owner`; return those blocks."""
    resizes = capture.tables["resizes"]
    found = block_at(blocks, resizes["address"], resizes["time_ns"])
    fresh = (found != NONE) & (resizes["nbytes"] > 0)
    fresh[fresh] = owner[found[fresh]] == NONE
    owner[found[fresh]] = resizes["storage"][fresh]
    return np.unique(found[fresh])


def _unnamed_allocations(capture: Capture, match: _Match) -> dict[str, Any]:
    """Return the columns of the blocks that are not the first of any storage."""
    blocks, ops = match.blocks, capture.tables["ops"]
    others = np.flatnonzero(match.owner == NONE).astype(np.int32)
    extra = np.concatenate([match.resized, others])
    op = _op_at(ops, blocks.birth_ns[extra])
    origin = np.full(len(extra), UNOBSERVED, dtype=np.int8)
    origin[: len(match.resized)] = BY_OP
    origin[blocks.birth_order[extra] == NONE] = BASELINE
    slack_ns = 0 if capture.meta.get("recorder") == "native" else _CLOCKS_APART_NS
    op, origin = _place_workspace(ops, blocks, extra, op, origin, slack_ns=slack_ns)
    by_thread = blocks.thread[extra] != NONE
    op, origin = np.where(by_thread, NONE, op), np.where(by_thread, BY_THREAD, origin)
    return {
        "storage": match.owner[extra],
        "nbytes": blocks.nbytes[extra],
        "device": blocks.device[extra],
        "address": blocks.address[extra],
        "origin": origin,
        "thread": blocks.thread[extra],
        "op": op,
        "birth_ns": np.where(origin == BASELINE, _start_ns(capture), blocks.birth_ns[extra]),
        "death_ns": blocks.death_ns[extra],
        "counted": np.ones(len(extra), dtype=bool),
        "birth_order": blocks.birth_order[extra],
        "death_order": blocks.death_order[extra],
    }


def _named_allocations(capture: Capture, match: _Match) -> dict[str, Any]:
    """Return the columns of the recorder's storages.

    They come from a storage's block, or from the recorder if it has none.
    """
    births, blocks = match.births, match.blocks
    named, matched = len(match.block_of), match.block_of != NONE
    start_ns = _start_ns(capture)
    logged = matched.copy()  # whether the log has the birth too
    logged[matched] = blocks.birth_order[match.block_of[matched]] != NONE
    columns = {name: births[name].copy() for name in ("nbytes", "device", "address", "op")}
    death_ns = np.where(match.died_ns == LIVES, NONE, match.died_ns)
    birth_ns = births["time_ns"].copy()
    birth_order, death_order, thread = (np.full(named, NONE, dtype=np.int32) for _ in range(3))
    if len(blocks):
        block = match.block_of[matched]
        birth_ns[matched], columns["nbytes"][matched] = blocks.birth_ns[block], blocks.nbytes[block]
        birth_order[matched], death_order[matched] = blocks.birth_order[block], blocks.death_order[block]
        death_ns[matched], thread[matched] = blocks.death_ns[block], blocks.thread[block]
        seen_late = matched & (columns["op"] == NONE) & (thread == NONE)
        columns["op"][seen_late] = _op_at(capture.tables["ops"], birth_ns[seen_late])
    at_entry = ~logged & (births["origin"] == BASELINE) & (births["time_ns"] <= start_ns)
    origin = np.where(logged & (births["origin"] == BASELINE), UNOBSERVED, births["origin"])
    origin = np.where((origin == UNOBSERVED) & (thread != NONE), BY_THREAD, origin)
    real = _is_real(births)
    reported = _covered(capture, births["time_ns"]) & real & (births["nbytes"] > 0)
    has_events = np.isin(births["device"], capture.tables["allocator"]["device"])
    reported &= has_events | np.isin(births["device"], _ids(capture, CPU))
    is_estimate = capture.meta.get("estimate")
    elsewhere = ~matched & ~at_entry & (reported | (births["origin"] == BASELINE))
    # No allocator reports the birth of a fake tensor. If an op met it first, it was made in the block.
    if is_estimate:
        origin = np.where(elsewhere & ~real, UNOBSERVED, origin)
        elsewhere &= real
        weighs = (~real | (births["origin"] == BY_OP)) & ~np.isin(births["device"], _ids(capture, META))
    else:
        weighs = real
    origin = np.where(elsewhere, EXTERNAL, origin)
    return {
        "storage": np.arange(named, dtype=np.int32),
        **columns,
        "origin": origin,
        "thread": thread,
        "birth_ns": np.where(at_entry, start_ns, birth_ns),
        "death_ns": death_ns,
        "counted": (origin != EXTERNAL) & (columns["nbytes"] > 0) & weighs,
        "birth_order": birth_order,
        "death_order": death_order,
    }


def _mark_unrecorded(capture: Capture, columns: dict[str, Any]) -> None:
    """Set the origin of allocations from steps whose ops are not recorded."""
    if not capture.rows("step_curve"):
        return
    lost = np.isin(columns["origin"], (UNOBSERVED, WORKSPACE))
    lost &= step_curve(capture).is_unrecorded(columns["birth_ns"])
    columns["origin"] = np.where(lost, UNRECORDED, columns["origin"])
    columns["op"] = np.where(lost, NONE, columns["op"])


def _start_ns(capture: Capture) -> int:
    return int(capture.meta.get("start_ns", 0))


def _ids(capture: Capture, text: str) -> list[int]:
    return [number for number, each in enumerate(capture.strings) if each == text]


def _is_real(births: Columns) -> NDArray[np.bool_]:
    """Return True for real storages. Meta and fake storages have neither an address nor allocator events."""
    return np.not_equal(births["address"], 0)


def _covered(capture: Capture, time_ns: IntArray) -> NDArray[np.bool_]:
    """Return True for the times at which allocator events were recorded."""
    windows = capture.tables["windows"]
    if not len(windows["start_ns"]):
        return np.zeros(len(time_ns), dtype=bool)
    window = np.searchsorted(windows["start_ns"], time_ns, side="right") - 1
    covered: NDArray[np.bool_] = (window >= 0) & (time_ns <= windows["end_ns"][np.maximum(window, 0)])
    return covered


def _op_at(ops: Columns, time_ns: IntArray) -> IntArray:
    """Return the op that was running at each time, -1 if none was."""
    if not len(ops["op"]):
        return np.full(len(time_ns), NONE, dtype=np.int32)
    position = np.searchsorted(ops["start_ns"], time_ns, side="right").astype(np.int32) - 1
    safe = np.maximum(position, 0)
    inside = (position >= 0) & (time_ns <= ops["end_ns"][safe])
    return np.where(inside, ops["op"][safe], NONE)


def _place_workspace(
    ops: Columns, blocks: Blocks, extra: IntArray, op: IntArray, origin: IntArray, *, slack_ns: int
) -> tuple[IntArray, IntArray]:
    """Mark an unnamed block as workspace if the op in which it was made frees it, or if the next op does.

    The second case needs a reason. ATen wraps a Python number in a tensor of 8 or 16 bytes just before the call that
    takes the number. And the clocks of ops and of allocator events differ by a fraction of a microsecond.

    Returns:
        The op of each block, -1 if none, and its origin.
    """
    if not len(ops["op"]) or not len(extra):
        return op, origin
    birth, death, nbytes = blocks.birth_ns[extra], blocks.death_ns[extra], blocks.nbytes[extra]
    last = len(ops["op"]) - 1
    bounds = np.append(ops["start_ns"], [np.iinfo(np.int64).max] * 2)
    row = np.searchsorted(ops["start_ns"], birth, side="right").astype(np.int32) - 1
    freed = (origin == UNOBSERVED) & (death != NONE)
    within = freed & (op != NONE) & (death <= bounds[row + 1])
    is_made_between = (op == NONE) | (ops["end_ns"][np.maximum(row, 0)] - birth < slack_ns)
    for_next = freed & ~within & (row < last) & (death <= bounds[np.minimum(row + 2, last + 1)])
    # Leave out blocks that were made in the middle of an op: the op keeps them, as a collective does until it is done.
    for_next &= is_made_between
    # Leave out larger blocks that were made long before the next op: other code made them.
    for_next &= (nbytes <= _NUMBER_BYTES) | (bounds[row + 1] - birth < slack_ns)
    op = np.where(for_next, ops["op"][np.minimum(row + 1, last)], op)
    return op, np.where(within | for_next, WORKSPACE, origin)
