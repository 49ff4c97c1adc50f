"""From a list of ops to the arrays of a Graph: names to indices, versions, checks."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

import numpy as np

from memwatch.planner.csr import Csr
from memwatch.planner.edges import precedence
from memwatch.planner.errors import GraphError
from memwatch.planner.graph import Graph, ShortOp
from memwatch.planner.op import Effect, Name, OpSpec


def build_graph(
    ops: Iterable[OpSpec | ShortOp],
    keep: Collection[Name],
    external_nbytes: Mapping[Name, int],
    freeable_externals: Collection[Name],
    death: Mapping[Name, int],
) -> Graph:
    """Build the arrays behind `Graph.build`, which describes the arguments and the errors."""
    specs = [_as_spec(op) for op in ops]
    _check_op_names(specs)
    producer = _producers(specs)
    index = _index_buffers(specs, producer, [*external_nbytes, *freeable_externals, *keep])
    reads, read_version, writes, write_version = _versions(specs, index, producer)
    makes = Csr.from_rows([[index[name] for name in spec.makes] for spec in specs])
    effect = np.array([spec.effect for spec in specs], dtype=np.int8)
    nbytes = _sizes(specs, index, producer, external_nbytes)
    users = np.zeros(len(index), dtype=np.int64)
    for part in (reads, writes):
        np.add.at(users, part.indices, 1)
    internal = np.array([name in producer for name in index], dtype=bool)
    may_free = np.array([name in set(freeable_externals) for name in index], dtype=bool)
    kept = set(keep)
    pinned = np.array([name in kept for name in index], dtype=bool)
    return Graph(
        op_names=tuple(spec.name for spec in specs),
        op_cost=np.array([spec.cost for spec in specs], dtype=np.float64),
        op_workspace_bytes=np.array([spec.workspace_bytes for spec in specs], dtype=np.int64),
        op_effect=effect,
        op_recomputable=np.array([_recomputable(spec) for spec in specs], dtype=bool),
        buffer_names=tuple(index),
        buffer_nbytes=nbytes,
        buffer_producer=np.array([producer.get(name, -1) for name in index], dtype=np.int64),
        buffer_pinned=pinned,
        # an external buffer that nothing uses has no last use to be freed after
        buffer_freeable=~pinned & (internal | (may_free & (users > 0))),
        buffer_death=_deaths(death, index, len(specs)),
        reads=reads,
        read_version=read_version,
        makes=makes,
        writes=writes,
        write_version=write_version,
        preds=precedence(reads, read_version, makes, writes, write_version, effect, len(index)),
    )


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


def _check_op_names(specs: list[OpSpec]) -> None:
    seen: dict[Name, int] = {}
    for position, spec in enumerate(specs):
        if seen.setdefault(spec.name, position) != position:
            raise GraphError(
                f"ops {seen[spec.name]} and {position} are both named {spec.name!r}; names must be unique"
            )


def _producers(specs: list[OpSpec]) -> dict[Name, int]:
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


def _index_buffers(specs: list[OpSpec], producer: dict[Name, int], named: list[Name]) -> dict[Name, int]:
    """Number the buffers: external ones first, then in the order they are made."""
    used = {name for spec in specs for name in (*spec.reads, *spec.writes)}
    for name in named:
        if name not in used and name not in producer:
            raise GraphError(f"buffer {name!r} is kept or sized, but no op makes, reads or writes it")
    externals: dict[Name, None] = {}
    for spec in specs:
        externals.update((name, None) for name in (*spec.reads, *spec.writes) if name not in producer)
    return {name: position for position, name in enumerate((*externals, *producer))}


def _versions(
    specs: list[OpSpec], index: dict[Name, int], producer: dict[Name, int]
) -> tuple[Csr, np.ndarray, Csr, np.ndarray]:
    """Number the versions of every buffer: 0 as made, one more after each mutation."""
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
    return (
        Csr.from_rows(reads),
        np.array(read_version, dtype=np.int64),
        Csr.from_rows(writes),
        np.array(write_version, dtype=np.int64),
    )


def _too_early(specs: list[OpSpec], producer: dict[Name, int], position: int, name: Name) -> str:
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


def _sizes(
    specs: list[OpSpec],
    index: dict[Name, int],
    producer: dict[Name, int],
    external_nbytes: Mapping[Name, int],
) -> np.ndarray:
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


def _deaths(death: Mapping[Name, int], index: dict[Name, int], num_ops: int) -> np.ndarray:
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


def _recomputable(spec: OpSpec) -> bool:
    return spec.effect is Effect.NONE if spec.recomputable is None else spec.recomputable
