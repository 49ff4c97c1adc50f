"""The program as the planner sees it: ops that make, read and mutate buffers.

A buffer is a block of memory. Views of one tensor share a buffer, so they do not appear here at all.

The caller describes the program as a list of `OpSpec`. `Graph.build` checks this list and turns it into arrays, which
kernels can read: names become indices, mutations become versions, and the buffers of each op become a row of a `Csr`.
`_precedence` finds the ops that must run before each op.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from memwatch.errors import MemwatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

IntArray: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Csr:
    """Compressed sparse rows: many short lists in two arrays. Row `i` is ``indices[indptr[i]:indptr[i + 1]]``."""

    indptr: IntArray
    indices: IntArray

    @classmethod
    def from_rows(cls, rows: Sequence[Iterable[int]]) -> Csr:
        """Return these rows, with the order inside each row kept."""
        packed = [list(row) for row in rows]
        lengths = np.fromiter((len(row) for row in packed), dtype=np.int64, count=len(packed))
        indptr = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        indices = np.fromiter(chain.from_iterable(packed), dtype=np.int64, count=int(indptr[-1]))
        return cls(_frozen(indptr), _frozen(indices))

    @classmethod
    def from_pairs(cls, rows: IntArray, columns: IntArray, num_rows: int) -> Csr:
        """Return the rows of (row, column) pairs, without duplicates and with each row sorted."""
        if len(rows):
            order = np.lexsort((columns, rows))
            rows, columns = rows[order], columns[order]
            new = np.ones(len(rows), dtype=bool)
            new[1:] = (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1])
            rows, columns = rows[new], columns[new]
        indptr = np.searchsorted(rows, np.arange(num_rows + 1)).astype(np.int64)
        return cls(_frozen(indptr), _frozen(columns.astype(np.int64)))

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def row(self, index: int) -> IntArray:
        """Return row `index` as a read-only view."""
        return self.indices[self.indptr[index] : self.indptr[index + 1]]

    def row_ids(self) -> IntArray:
        """Return the row of every entry, as long as `indices`."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.lengths())

    def lengths(self) -> IntArray:
        """Return the number of entries of every row."""
        return np.diff(self.indptr)

    def entries(self, rows: IntArray) -> IntArray:
        """Return the positions in `indices` of the entries of these rows, row after row. A row may appear twice."""
        lengths = self.lengths()[rows]
        before = np.concatenate(([0], np.cumsum(lengths)[:-1]))
        shift = np.repeat(self.indptr[rows] - before, lengths)
        return np.asarray(shift + np.arange(len(shift)), dtype=np.int64)

    def transpose(self, num_columns: int) -> Csr:
        """Return for every column the sorted rows that hold it."""
        return Csr.from_pairs(self.indices, self.row_ids(), num_columns)

    def sum_per_row(self, weights: IntArray) -> IntArray:
        """Return for every row the sum of ``weights[entry]`` over its entries."""
        total = np.concatenate(([0], np.cumsum(weights[self.indices])))
        return np.asarray(total[self.indptr[1:]] - total[self.indptr[:-1]], dtype=np.int64)


def _frozen(array: IntArray) -> IntArray:
    array.setflags(write=False)
    return array


Name: TypeAlias = Hashable
ShortOp: TypeAlias = tuple[Name, Collection[Name], Mapping[Name, int], float]
"""An op without mutations, workspace or effects: (name, reads, {buffer it makes: bytes}, cost)."""


class GraphError(MemwatchError, ValueError):
    """The ops given to the planner are not a program: a name appears twice, ops form a cycle, a size is impossible."""


class OrderError(MemwatchError, ValueError):
    """An order or a schedule does not compute the same as the program."""


class Effect(IntEnum):
    """The effect of an op besides reading and writing its buffers. It limits where the op may run."""

    NONE = 0
    RNG = 1  # draws random numbers: in another order, the ops would draw other numbers
    COLLECTIVE = 2  # communicates with other ranks: all ranks must run these ops in the same order
    ITEM = 3  # returns a value to Python, which may decide which op runs next
    UNKNOWN = 4  # may do anything: keeps its place among all ops with an effect

    @property
    def recomputable(self) -> bool:
        """Whether an op with this effect may run more than once."""
        return self in (Effect.NONE, Effect.RNG)


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One op of the program, in the long form of `Graph.build`.

    Attributes:
        name: unique; appears in `plan.order`.
        reads: buffers the op reads.
        makes: buffers the op allocates, with their size (bytes).
        cost: seconds, FLOPs or any other additive price of computing the op once.
        writes: existing buffers the op mutates. The op needs their old content, as if it also read them.
        writes_once: the part of `writes` that only the first run mutates, such as the running statistics of a batch
            norm. The op's other results do not depend on this part, so the executor passes a substitute to later runs.
        time_ns: recorded run time of the op, nanoseconds; 0 if not known.
        workspace_bytes: bytes the op allocates and frees while it runs.
        effect: its effect besides reading and writing its buffers.
        recomputable: whether the op may run again. If it is None, the op may run again only if it has no effect. If it
            is True for an RNG op, the executor must restore the state of the generator before the op runs again.
    """

    name: Name
    reads: Collection[Name] = ()
    makes: Mapping[Name, int] = field(default_factory=dict)
    cost: float = 1.0
    writes: Collection[Name] = ()
    workspace_bytes: int = 0
    effect: Effect = Effect.NONE
    recomputable: bool | None = None
    writes_once: Collection[Name] = ()
    time_ns: int = 0

    @property
    def may_run_again(self) -> bool:
        """Whether the op may run more than once."""
        return self.effect is Effect.NONE if self.recomputable is None else self.recomputable


SizeFn: TypeAlias = Callable[[IntArray], IntArray]


def cuda_block_sizes(nbytes: IntArray) -> IntArray:
    """Return the sizes (bytes) rounded up to the 512 B blocks of the CUDA caching allocator."""
    return -(-nbytes // 512) * 512


@dataclass(frozen=True, eq=False)
class Graph:
    """A program without branches, as immutable arrays; op `i` is the i-th op of the program.

    Memory is counted in this way. When an op runs, its outputs and its workspace are allocated, and then live bytes
    are counted. After the op, every freeable buffer whose last user has run is freed. An unused output is freed right
    after the op that made it.

    A mutated buffer has versions. Its producer makes version 0, and each op that writes it makes the next version.

    Attributes:
        op_names: name of every op, in program order.
        op_cost: price of computing each op once.
        op_time_ns: recorded run time of each op, nanoseconds; 0 if not known.
        op_workspace_bytes: bytes each op allocates and frees while it runs.
        op_effect: `Effect` of each op.
        op_recomputable: whether each op may be computed more than once.
        buffer_names: name of every buffer; external ones first in order of appearance.
        buffer_nbytes: size of every buffer (bytes).
        buffer_producer: op that makes each buffer, -1 for an external one.
        buffer_pinned: whether each buffer must exist, in its last version, at the end.
        buffer_freeable: whether each buffer may be freed after its last use: it is not pinned, and it was made by an
            op or is one of `freeable_externals`.
        buffer_death: op after which the recorded program freed each buffer; -1 if it freed the buffer after its last
            use. Only `program_peak` reads it, because a plan always frees a buffer after its last use.
        reads: op -> buffers it reads.
        read_version: version that is read, for each entry of `reads`.
        makes: op -> buffers it allocates (version 0).
        writes: op -> buffers it mutates.
        write_version: version after the mutation, for each entry of `writes`.
        writes_once: whether only the first computation of the op makes the write, for each entry of `writes`.
        preds: op -> ops that must run before it (see `_precedence`), sorted.
    """

    op_names: tuple[Name, ...]
    op_cost: NDArray[np.float64]
    op_time_ns: IntArray
    op_workspace_bytes: IntArray
    op_effect: NDArray[np.int8]
    op_recomputable: NDArray[np.bool_]
    buffer_names: tuple[Name, ...]
    buffer_nbytes: IntArray
    buffer_producer: IntArray
    buffer_pinned: NDArray[np.bool_]
    buffer_freeable: NDArray[np.bool_]
    buffer_death: IntArray
    reads: Csr
    read_version: IntArray
    makes: Csr
    writes: Csr
    write_version: IntArray
    writes_once: NDArray[np.bool_]
    preds: Csr

    @classmethod
    def build(
        cls,
        ops: Iterable[OpSpec | ShortOp],
        keep: Collection[Name] = (),
        *,
        external_nbytes: Mapping[Name, int] | None = None,
        freeable_externals: Collection[Name] = (),
        death: Mapping[Name, int] | None = None,
    ) -> Graph:
        """Return the graph of a list of ops in program order.

        Args:
            ops: ``(name, reads, {buffer: nbytes}, cost)`` or `OpSpec`. A buffer without a producer among the ops is
                external: it exists before the first op.
            keep: buffers that must be alive at the end.
            external_nbytes: sizes (bytes) of external buffers; 0 where not given.
            freeable_externals: external buffers that may be freed after their last use.
            death: buffer -> index of the op after which the recorded program freed it, where that is later
                than its last use.

        Raises:
            GraphError: a duplicate, a buffer used before it is made, a cycle, or an impossible number.
        """
        specs = _read_ops(ops)
        sizes = external_nbytes or {}
        may_free = set(freeable_externals)
        pinned = set(keep)
        producer = _producers(specs)
        index = _index_buffers(specs, producer, [*sizes, *freeable_externals, *keep])
        reads, read_version, writes, write_version = _buffer_access(specs, index, producer)
        makes = Csr.from_rows([[index[name] for name in spec.makes] for spec in specs])
        effect = np.array([spec.effect for spec in specs], dtype=np.int8)
        freeable = [name not in pinned and (name in producer or name in may_free) for name in index]
        return cls(
            op_names=tuple(spec.name for spec in specs),
            op_cost=np.array([spec.cost for spec in specs], dtype=np.float64),
            op_time_ns=np.array([spec.time_ns for spec in specs], dtype=np.int64),
            op_workspace_bytes=np.array([spec.workspace_bytes for spec in specs], dtype=np.int64),
            op_effect=effect,
            op_recomputable=np.array([spec.may_run_again for spec in specs], dtype=bool),
            buffer_names=tuple(index),
            buffer_nbytes=_buffer_sizes(specs, index, producer, sizes),
            buffer_producer=np.array([producer.get(name, -1) for name in index], dtype=np.int64),
            buffer_pinned=np.array([name in pinned for name in index], dtype=bool),
            buffer_freeable=np.array(freeable, dtype=bool),
            buffer_death=_recorded_deaths(death or {}, index, len(specs)),
            reads=reads,
            read_version=read_version,
            makes=makes,
            writes=writes,
            write_version=write_version,
            writes_once=_once_flags(specs, index, writes),
            preds=_precedence(reads, read_version, makes, writes, write_version, effect, len(index)),
        )

    @property
    def num_ops(self) -> int:
        """Number of ops."""
        return len(self.op_names)

    @property
    def num_buffers(self) -> int:
        """Number of buffers, external ones included."""
        return len(self.buffer_names)

    @cached_property
    def succs(self) -> Csr:
        """Op -> ops that must run after it, sorted."""
        return self.preds.transpose(self.num_ops)

    @cached_property
    def touches(self) -> Csr:
        """Op -> buffers it makes, reads or writes, sorted and without duplicates."""
        parts = (self.reads, self.makes, self.writes)
        rows = np.concatenate([part.row_ids() for part in parts])
        return Csr.from_pairs(rows, np.concatenate([part.indices for part in parts]), self.num_ops)

    @cached_property
    def users(self) -> Csr:
        """Buffer -> ops that make, read or write it, sorted."""
        return self.touches.transpose(self.num_buffers)

    @cached_property
    def final_version(self) -> IntArray:
        """Version of every buffer when the program ends (number of its mutations)."""
        return np.bincount(self.writes.indices, minlength=self.num_buffers).astype(np.int64)

    @cached_property
    def op_index(self) -> dict[Name, int]:
        """Index of every op by its name."""
        return {name: index for index, name in enumerate(self.op_names)}

    @cached_property
    def buffer_index(self) -> dict[Name, int]:
        """Index of every buffer by its name."""
        return {name: index for index, name in enumerate(self.buffer_names)}

    @property
    def baseline_bytes(self) -> int:
        """Bytes of the external buffers, which are live before the first op."""
        return int(self.buffer_nbytes[self.buffer_producer < 0].sum())

    @property
    def total_cost(self) -> float:
        """Price of computing every op once."""
        return float(self.op_cost.sum())

    def with_sizes(self, size_fn: SizeFn) -> Graph:
        """Return the same program with every buffer as large as the allocator makes it."""
        nbytes = np.asarray(size_fn(self.buffer_nbytes), dtype=np.int64)
        return dataclasses.replace(self, buffer_nbytes=nbytes)

    def __repr__(self) -> str:
        return f"<Graph: {self.num_ops} ops, {self.num_buffers} buffers>"

    def __reduce__(self) -> tuple[Any, ...]:
        # leave out the cached properties, which can be large
        return Graph, tuple(getattr(self, entry.name) for entry in dataclasses.fields(self))


def fingerprint(graph: Graph) -> str:
    """Return a hash of the ops, the buffers, their sizes, and their uses. A plan fits only programs with the same hash.

    Costs, run times and workspaces are left out: they are measured, they differ between recordings, and they do not
    decide whether an order is valid. Versions are left out because they follow from the order of the ops.
    """
    digest = hashlib.sha256()
    digest.update(repr(graph.op_names).encode())
    arrays = (
        graph.op_effect,
        graph.buffer_nbytes,
        graph.buffer_producer,
        graph.buffer_pinned,
        graph.buffer_freeable,
        graph.reads.indptr,
        graph.reads.indices,
        graph.makes.indptr,
        graph.makes.indices,
        graph.writes.indptr,
        graph.writes.indices,
    )
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes() + b"|")
    return digest.hexdigest()


class _Access(NamedTuple):
    """The version of each buffer that each op reads and writes.

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


def _read_ops(ops: Iterable[OpSpec | ShortOp]) -> list[OpSpec]:
    """Return the ops in their long form. Raise `GraphError` for a value that is not an op, and for a repeated name."""
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
        is_list = isinstance(reads, Iterable) and not isinstance(reads, str)
        spec = OpSpec(name, tuple(reads) if is_list else reads, makes, cost)
    lists = (spec.reads, spec.writes, spec.writes_once)
    if not isinstance(spec.makes, Mapping) or any(
        isinstance(each, str) or not isinstance(each, Collection) for each in lists
    ):
        raise GraphError(
            f"op {spec.name!r}: reads and writes are lists of buffers, and makes is a dict {{buffer: nbytes}}"
        )
    for buffer in spec.writes_once:
        if buffer not in spec.writes:
            raise GraphError(f"op {spec.name!r} has {buffer!r} in writes_once, but not in writes")
    if not (math.isfinite(spec.cost) and spec.cost >= 0):
        raise GraphError(f"op {spec.name!r} costs {spec.cost!r}; a cost is a finite number, zero or more")
    if spec.workspace_bytes < 0:
        raise GraphError(
            f"op {spec.name!r} has a workspace of {spec.workspace_bytes} bytes; sizes are zero or more"
        )
    if spec.recomputable and not spec.effect.recomputable:
        raise GraphError(f"op {spec.name!r} has the effect {spec.effect.name} and cannot be recomputable")
    return spec


def _producers(specs: list[OpSpec]) -> dict[Name, int]:
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


def _index_buffers(specs: list[OpSpec], producer: dict[Name, int], named: list[Name]) -> dict[Name, int]:
    """Return a number for every buffer: external ones first, then in the order they are made.

    Args:
        specs: the ops.
        producer: the result of `_producers`.
        named: buffers in the options of `Graph.build`. A name that no op uses is an error.
    """
    used = {name for spec in specs for name in (*spec.reads, *spec.writes)}
    for name in named:
        if name not in used and name not in producer:
            raise GraphError(
                f"buffer {name!r} is in keep, external_nbytes or freeable_externals, "
                "but no op makes, reads or writes it"
            )
    externals: dict[Name, None] = {}
    for spec in specs:
        externals.update((name, None) for name in (*spec.reads, *spec.writes) if name not in producer)
    return {name: position for position, name in enumerate((*externals, *producer))}


def _buffer_access(specs: list[OpSpec], index: dict[Name, int], producer: dict[Name, int]) -> _Access:
    """Return the version of each buffer that each op uses: 0 before the first mutation, one more after each."""
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
    return _Access(
        Csr.from_rows(reads),
        np.array(read_version, dtype=np.int64),
        Csr.from_rows(writes),
        np.array(write_version, dtype=np.int64),
    )


def _once_flags(specs: list[OpSpec], index: dict[Name, int], writes: Csr) -> NDArray[np.bool_]:
    """Return for each entry of `writes` whether only the first run of the op makes it."""
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
        waiting = behind.pop()
        for needed in (*waiting.reads, *waiting.writes):
            other = specs[producer[needed]] if needed in producer else None
            if other is reader:
                return f"ops {reader.name!r} and {maker.name!r} wait for each other: a cycle through {name!r}"
            if other is not None and other.name not in seen:
                seen.add(other.name)
                behind.append(other)
    return f"op {reader.name!r} uses {name!r} before {maker.name!r} makes it; list the ops in program order"


def _buffer_sizes(
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


def _recorded_deaths(death: Mapping[Name, int], index: dict[Name, int], num_ops: int) -> IntArray:
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


# Ops of one chain keep program order. An op with an unknown effect may draw random numbers and may act on the host, so
# it is in both chains.
EFFECT_CHAINS = (
    (Effect.RNG, Effect.UNKNOWN),
    (Effect.COLLECTIVE, Effect.ITEM, Effect.UNKNOWN),
)


def _precedence(  # noqa: PLR0917 (the arrays of a Graph that does not exist yet)
    reads: Csr,
    read_version: IntArray,
    makes: Csr,
    writes: Csr,
    write_version: IntArray,
    effect: NDArray[np.int8],
    num_buffers: int,
) -> Csr:
    """Return the ops that must run before each op.

    A reader of version k of a buffer runs after the op that wrote version k and before the op that writes
    version k + 1. Writers of a buffer run in order. The ops of each chain in `EFFECT_CHAINS` keep their order.
    """
    num_ops = len(reads)
    first_slot = np.concatenate(([0], np.cumsum(1 + np.bincount(writes.indices, minlength=num_buffers))))
    # one slot per (buffer, version): the op that wrote it, -1 for the first version of an external buffer
    writer = np.full(int(first_slot[-1]), -1, dtype=np.int64)
    writer[first_slot[makes.indices]] = makes.row_ids()
    written_slot = first_slot[writes.indices] + write_version
    writer[written_slot] = writes.row_ids()

    read_slot = first_slot[reads.indices] + read_version
    is_last_version = read_slot + 1 == first_slot[reads.indices + 1]
    next_writer = np.where(is_last_version, -1, writer[np.minimum(read_slot + 1, len(writer) - 1)])
    readers = reads.row_ids()
    before = [writer[read_slot], readers, writer[written_slot - 1]]
    after = [readers, next_writer, writes.row_ids()]
    for kinds in EFFECT_CHAINS:
        chain = np.flatnonzero(np.isin(effect, kinds))
        before.append(chain[:-1])
        after.append(chain[1:])
    source, target = np.concatenate(before), np.concatenate(after)
    # an op that reads a buffer that it mutates does not wait for itself
    real = (source >= 0) & (target >= 0) & (source != target)
    return Csr.from_pairs(target[real], source[real], num_ops)
