"""From a list of ops to the arrays of a `Graph`: names become indices, mutations become versions.

Everything that `Graph.build` promises to refuse is refused here, with the names of the ops and buffers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memwatch.planner.csr import Csr, IntArray
from memwatch.planner.errors import GraphError
from memwatch.planner.op import Name, OpSpec, ShortOp

if TYPE_CHECKING:
    from numpy.typing import NDArray


class BuiltAccess(NamedTuple):
    """Who uses which version of which buffer.

    Attributes:
        reads: op -> buffers it reads.
        read_version: version of each entry of `reads`.
        writes: op -> buffers it mutates.
        write_version: version after each entry of `writes`.
    """

    reads: Csr
    read_version: IntArray
    writes: Csr
    write_version: IntArray


def read_ops(ops: Iterable[OpSpec | ShortOp]) -> list[OpSpec]:
    """Return the ops in their long form, or raise `GraphError` for one that is no op or repeats a name."""
    specs = [_as_spec(op) for op in ops]
    seen: dict[Name, int] = {}
    for position, spec in enumerate(specs):
        if seen.setdefault(spec.name, position) != position:
            raise GraphError(
                f"ops {seen[spec.name]} and {position} are both named {spec.name!r}; names must be unique"
            )
    return specs


def _as_spec(op: OpSpec | ShortOp) -> OpSpec:
    if isinstance(op, OpSpec):
        spec = op
    else:
        try:
            name, reads, makes, cost = op
        except (TypeError, ValueError):
            raise GraphError(f"{op!r} is not an op; write (name, reads, {{buffer: nbytes}}, cost)") from None
        if isinstance(reads, str) or not isinstance(makes, Mapping):
            raise GraphError(f"op {name!r}: reads is a list of buffers and outputs a dict {{buffer: nbytes}}")
        spec = OpSpec(name, tuple(reads), makes, cost)
    if not (math.isfinite(spec.cost) and spec.cost >= 0):
        raise GraphError(f"op {spec.name!r} costs {spec.cost!r}; a cost is a finite number, zero or more")
    if spec.workspace_bytes < 0:
        raise GraphError(
            f"op {spec.name!r} has a workspace of {spec.workspace_bytes} bytes; sizes are zero or more"
        )
    if spec.recomputable and not spec.effect.recomputable:
        raise GraphError(f"op {spec.name!r} has the effect {spec.effect.name} and cannot be recomputable")
    return spec


def producers(specs: list[OpSpec]) -> dict[Name, int]:
    """Return the position of the op that makes each buffer; external buffers are not in it."""
    producer: dict[Name, int] = {}
    for position, spec in enumerate(specs):
        for name in spec.makes:
            if producer.setdefault(name, position) != position:
                first = specs[producer[name]].name
                raise GraphError(
                    f"buffer {name!r} is made by {first!r} and again by {spec.name!r}; "
                    "give the second one a new name, or list it in writes= if it mutates"
                )
    return producer


def index_buffers(specs: list[OpSpec], producer: dict[Name, int], named: list[Name]) -> dict[Name, int]:
    """Return a number for every buffer: external ones first, then in the order they are made.

    Args:
        specs: the ops.
        producer: what `producers` returned.
        named: buffers that the caller of `Graph.build` named; a name that no op knows is an error.
    """
    used = {name for spec in specs for name in (*spec.reads, *spec.writes)}
    for name in named:
        if name not in used and name not in producer:
            raise GraphError(f"buffer {name!r} is kept or sized, but no op makes, reads or writes it")
    externals: dict[Name, None] = {}
    for spec in specs:
        externals.update((name, None) for name in (*spec.reads, *spec.writes) if name not in producer)
    return {name: position for position, name in enumerate((*externals, *producer))}


def buffer_access(specs: list[OpSpec], index: dict[Name, int], producer: dict[Name, int]) -> BuiltAccess:
    """Return which version of a buffer each op uses: 0 as it was made, one more after each mutation."""
    version = [0] * len(index)
    reads: list[list[int]] = []
    writes: list[list[int]] = []
    read_version: list[int] = []
    write_version: list[int] = []
    for position, spec in enumerate(specs):
        for name in (*spec.reads, *spec.writes):
            if producer.get(name, -1) >= position:
                raise GraphError(_too_early(specs, producer, position, name))
        reads.append(list(dict.fromkeys(index[name] for name in spec.reads)))
        read_version.extend(version[buffer] for buffer in reads[-1])
        writes.append(list(dict.fromkeys(index[name] for name in spec.writes)))
        for buffer in writes[-1]:
            version[buffer] += 1
            write_version.append(version[buffer])
    return BuiltAccess(
        Csr.from_rows(reads),
        np.array(read_version, dtype=np.int64),
        Csr.from_rows(writes),
        np.array(write_version, dtype=np.int64),
    )


def once_flags(specs: list[OpSpec], index: dict[Name, int], writes: Csr) -> NDArray[np.bool_]:
    """Return for each entry of `writes` whether only the first computation of the op makes it."""
    once = [{index[name] for name in spec.writes_once} for spec in specs]
    pairs = zip(writes.row_ids().tolist(), writes.indices.tolist(), strict=True)
    return np.array([buffer in once[op] for op, buffer in pairs], dtype=bool)


def _too_early(specs: list[OpSpec], producer: dict[Name, int], position: int, name: Name) -> str:
    """Return the message for a buffer that is used before it is made: a cycle, or ops in the wrong order."""
    reader, maker = specs[position], specs[producer[name]]
    if maker is reader:
        return f"op {reader.name!r} uses its own output {name!r}: a cycle"
    behind = [maker]
    seen = {maker.name}
    while behind:
        for needed in behind.pop().reads:
            other = specs[producer[needed]] if needed in producer else None
            if other is reader:
                return f"ops {reader.name!r} and {maker.name!r} wait for each other: a cycle through {name!r}"
            if other is not None and other.name not in seen:
                seen.add(other.name)
                behind.append(other)
    return f"op {reader.name!r} uses {name!r} before {maker.name!r} makes it; list the ops in program order"


def buffer_sizes(
    specs: list[OpSpec],
    index: dict[Name, int],
    producer: dict[Name, int],
    external_nbytes: Mapping[Name, int],
) -> IntArray:
    """Return the size of every buffer (bytes); an external one without a given size has 0."""
    nbytes = np.zeros(len(index), dtype=np.int64)
    sized = {name: size for spec in specs for name, size in spec.makes.items()}
    for name, size in external_nbytes.items():
        if name in producer:
            raise GraphError(
                f"buffer {name!r} has an external size, but op {specs[producer[name]].name!r} makes it"
            )
        sized[name] = size
    for name, size in sized.items():
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 0:
            raise GraphError(
                f"buffer {name!r} has size {size!r}; sizes are whole numbers of bytes, zero or more"
            )
        nbytes[index[name]] = size
    return nbytes


def recorded_deaths(death: Mapping[Name, int], index: dict[Name, int], num_ops: int) -> IntArray:
    """Return for every buffer the op after which the recorded program freed it, -1 where not given."""
    deaths = np.full(len(index), -1, dtype=np.int64)
    for name, position in death.items():
        if name not in index:
            raise GraphError(f"buffer {name!r} has a recorded death, but no op makes, reads or writes it")
        if not 0 <= position < num_ops:
            raise GraphError(
                f"buffer {name!r} dies after op {position}; the program has ops 0 to {num_ops - 1}"
            )
        deaths[index[name]] = position
    return deaths
