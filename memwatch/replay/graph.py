"""Turn a recorded program into a graph for the planner.

The workspace of a call is the bytes that it takes from the allocator and gives back before it returns.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import torch

from memwatch._torch.dispatch import COLLECTIVE_NAMESPACES
from memwatch.analysis.facts.blocks import block_at, pair_events
from memwatch.capture.schema import NONE
from memwatch.encoding import GeneratorNumber, leaves
from memwatch.planner import Effect, Graph, OpSpec
from memwatch.replay.cost import cost
from memwatch.replay.program import Call, Program, overload_of, pinned, read_program
from memwatch.words.places import place_in_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.analysis.facts.blocks import Blocks
    from memwatch.capture import Capture
    from memwatch.capture.columns import IntArray
    from memwatch.planner.graph import Name


_SLACK_NS: Final = 1_000
"""Nanoseconds: the largest difference between the clocks of ops and of allocations. A guess.

The recorder's own work around an op takes many times longer, and during this work the program allocates nothing.
"""


def workspaces(capture: Capture, device: str, ops: IntArray, made_bytes: IntArray) -> IntArray:
    """Return the workspace of ops: the most bytes that each op held at once, minus the storages that it made.

    Only blocks that were allocated while the op ran count. Blocks that the recorder allocated around the op do not
    count. If an argument is a number, the dispatcher wraps it in a tensor, which does not count either.

    Args:
        capture: the recording; without allocator events every workspace is 0.
        device: device whose blocks count, such as `cpu`.
        ops: numbers of the ops, ascending.
        made_bytes: bytes of the storages that each op made.

    Returns:
        Bytes, one per op.
    """
    blocks = pair_events(capture)
    table = capture.tables["ops"]
    row = np.searchsorted(table["op"], ops)
    shift_ns = _shift_ns(capture, blocks)
    start_ns = table["start_ns"][row] - _SLACK_NS - shift_ns
    end_ns = table["end_ns"][row] + _SLACK_NS - shift_ns
    names = np.array(capture.text(blocks.device), dtype=object)
    chosen = np.flatnonzero(names == device) if len(names) else np.empty(0, dtype=np.int64)
    position = np.searchsorted(start_ns, blocks.birth_ns[chosen], side="right") - 1
    inside = (position >= 0) & (blocks.birth_ns[chosen] <= end_ns[np.maximum(position, 0)])
    chosen, position = chosen[inside], position[inside]
    death = blocks.death_ns[chosen]
    freed = (death >= 0) & (death <= end_ns[position])
    call = np.concatenate([position, position[freed]])
    order = np.concatenate([blocks.birth_order[chosen], blocks.death_order[chosen][freed]])
    change = np.concatenate([blocks.nbytes[chosen], -blocks.nbytes[chosen][freed]])
    by_time = np.lexsort((order, call))
    held = _peaks(call[by_time], change[by_time], len(ops))
    extra: IntArray = np.maximum(held - made_bytes, 0)
    return extra


def _peaks(call: IntArray, change: IntArray, num_calls: int) -> IntArray:
    """Return the highest running sum of the changes of each call."""
    peaks = np.zeros(num_calls, dtype=np.int64)
    level = np.cumsum(change)
    first = np.flatnonzero(np.diff(call, prepend=-1))
    before = np.repeat(level[first] - change[first], np.diff(first, append=len(call)))
    np.maximum.at(peaks, call, level - before)
    return peaks


def _shift_ns(capture: Capture, blocks: Blocks) -> int:
    """Return the nanoseconds to add to the allocator's clock, so that it agrees with the clock of the ops.

    A storage that an op made was allocated while the op ran. So each storage gives a lower and an upper limit of the
    shift.
    """
    births, ops = capture.tables["births"], capture.tables["ops"]
    made = np.flatnonzero((births["op"] != NONE) & (births["address"] != 0) & (births["nbytes"] > 0))
    block = block_at(blocks, births["address"][made], births["time_ns"][made])
    if not len(blocks):
        return 0
    same = (block != NONE) & (blocks.nbytes[np.maximum(block, 0)] >= births["nbytes"][made])
    made, block = made[same], block[same]
    if not len(made):
        return 0
    row = np.searchsorted(ops["op"], births["op"][made])
    born_ns = blocks.birth_ns[block]
    least = ops["start_ns"][row] - born_ns
    most = ops["end_ns"][row] - born_ns
    # leave out the extremes, because unrecorded code before an op may have made the storage
    low, high = np.quantile(least, 0.98), np.quantile(most, 0.02)
    return int((low + high) / 2) if low > high else int(min(max(0, low), high))


_PURE: Final = frozenset({"aten", "prims"})
_SYMMETRIC: Final = "symm_mem"  # torch's ops on memory that ranks share; they communicate


@dataclass(frozen=True)
class Recorded:
    """A program with its graph.

    Attributes:
        program: calls and buffers.
        graph: the planner's view of it; op `i` is call `i`, named by the op's number in the capture.
        buffer_of: index in `program.buffers` of each buffer of the graph.
        device: device whose bytes are planned, such as `cpu` or `cuda:0`.
    """

    program: Program
    graph: Graph
    buffer_of: IntArray
    device: str


def recorded_program(capture: Capture, device: str) -> Recorded:
    """Return the program of a capture made with `replay=True`, and the graph of its bytes on a device.

    Raises:
        MemwatchError: the capture holds no arguments.
        UnsupportedOpError: an op cannot be called again.
    """
    program = read_program(capture)
    graph = _graph(capture, program, device)
    buffer_of = np.array(graph.buffer_names, dtype=np.int64)
    return Recorded(program, graph, buffer_of, device)


def _graph(capture: Capture, program: Program, device: str) -> Graph:
    # buffers on other devices get size 0, because no figure is a sum over devices
    size = [buffer.nbytes if buffer.device == device else 0 for buffer in program.buffers]
    calls = program.calls
    made = np.array([sum(size[buffer] for buffer in call.makes) for call in calls], dtype=np.int64)
    ops = np.array([call.op for call in calls], dtype=np.int64)
    workspace = workspaces(capture, device, ops, made)
    times_ns = _times_ns(capture, device, ops)
    specs = [
        OpSpec(
            name=call.op,
            reads=call.reads,
            makes={buffer: size[buffer] for buffer in call.makes},
            cost=cost(call),
            writes=call.writes,
            writes_once=call.writes_once,
            # the executor copies a buffer that the op resizes, so that the op can be computed again
            workspace_bytes=max(int(work), sum(size[buffer] for buffer in call.resized)),
            effect=(effect := effect_of(call)),
            # the recording holds the random state before each op that draws, so such an op may run again
            recomputable=True if effect is Effect.RNG else None,
            time_ns=time_ns,
        )
        for call, work, time_ns in zip(calls, workspace, times_ns, strict=True)
    ]
    used = {buffer for call in calls for buffer in (*call.reads, *call.writes)}
    inputs: dict[Name, int] = {
        number: size[number] for number in used if program.buffers[number].maker == NONE
    }
    alive = used | {buffer for call in calls for buffer in call.makes}
    deaths: dict[Name, int] = {buffer: call for buffer, call in program.deaths.items() if buffer in alive}
    keep = [buffer for buffer in pinned(program) if buffer in alive]
    return Graph.build(specs, keep, external_nbytes=inputs, death=deaths)


def _times_ns(capture: Capture, device: str, ops: IntArray) -> list[int]:
    """Return how long each op ran when it was recorded (nanoseconds); 0 on devices that run ops later."""
    if device != "cpu":  # the host only measures how long it takes to launch the op
        return [0] * len(ops)
    table = capture.tables["ops"]
    row = np.searchsorted(table["op"], ops)
    found: list[int] = (table["end_ns"][row] - table["start_ns"][row]).tolist()
    return found


def effect_of(call: Call) -> Effect:
    """Return the effect of a call besides reading and writing buffers. A custom op may do anything."""
    space = call.name.split(".")[0]
    if space in COLLECTIVE_NAMESPACES or space == _SYMMETRIC:
        return Effect.COLLECTIVE
    if space not in _PURE:
        return Effect.UNKNOWN
    if call.returns_number:
        return Effect.ITEM
    arguments = leaves([call.positional, list(call.keyword.values())])
    if torch.Tag.nondeterministic_seeded in overload_of(call).tags or any(
        isinstance(item, GeneratorNumber) for item in arguments
    ):
        return Effect.RNG
    return Effect.NONE


def with_readable_names(recorded: Recorded) -> Graph:
    """Return the same graph with names for people.

    An op is named by its overload, number and line, a buffer by its type and the op that made it.
    """
    program = recorded.program
    ops = tuple(_readable_name(call) for call in program.calls)
    buffers = []
    for number in recorded.buffer_of.tolist():
        buffer = program.buffers[number]
        maker = "an input" if buffer.maker == NONE else ops[buffer.maker]
        buffers.append(f"{buffer.dtype} of {maker}")
    return dataclasses.replace(recorded.graph, op_names=ops, buffer_names=tuple(buffers))


def namer_of(recorded: Recorded) -> Callable[[Name], str]:
    """Return a function that names the ops of a recorded program for people, by overload, number and line."""
    words = {call.op: _readable_name(call) for call in recorded.program.calls}
    return lambda name: words.get(cast("int", name), str(name))


def _readable_name(call: Call) -> str:
    space, name, _ = call.name.rsplit(".", 2)
    place = f", {place_in_file(call.line)}" if call.line else ""
    return f"{name if space == 'aten' else f'{space}::{name}'} (op {call.op}{place})"
