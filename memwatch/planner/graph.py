"""The program as the planner sees it: ops that make, read and mutate buffers.

A buffer is a block of memory. Views of one tensor share a buffer, so they do not appear here at all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from memwatch.planner import build
from memwatch.planner.csr import Csr, IntArray
from memwatch.planner.edges import precedence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.planner.op import Name, OpSpec, ShortOp

SizeFn: TypeAlias = Callable[[IntArray], IntArray]


def cuda_block_sizes(nbytes: IntArray) -> IntArray:
    """Return the sizes (bytes) rounded up to the 512 B blocks of the CUDA caching allocator."""
    return -(-nbytes // 512) * 512


@dataclass(frozen=True, eq=False)
class Graph:
    """A program without branches, as immutable arrays; op `i` is the i-th op of the program.

    How memory is counted: when an op runs, its outputs and its workspace are allocated, and live bytes are
    taken. Then every buffer whose last user has run is freed, unless it is pinned. An output that nobody
    uses is freed right after the op that made it.

    Mutation gives a buffer versions: version 0 is what its producer made, and each op that writes it makes
    the next one.

    Attributes:
        op_names: name of every op, in program order.
        op_cost: price of computing each op once.
        op_time_ns: time each op took when it was recorded, nanoseconds; 0 where that is not known.
        op_workspace_bytes: bytes each op allocates and frees while it runs.
        op_effect: `Effect` of each op.
        op_recomputable: whether each op may be computed more than once.
        buffer_names: name of every buffer; external ones first in order of appearance.
        buffer_nbytes: size of every buffer (bytes).
        buffer_producer: op that makes each buffer, -1 for an external one.
        buffer_pinned: whether each buffer must be there, in its last version, at the end.
        buffer_freeable: whether each buffer may be freed after its last use.
        buffer_death: op after which the recorded program freed each buffer, -1 where that was its last
            use. Only `program_peak` reads it: plans always free at the last use.
        reads: op -> buffers it reads.
        read_version: version that is read, for each entry of `reads`.
        makes: op -> buffers it allocates (version 0).
        writes: op -> buffers it mutates.
        write_version: version after the mutation, for each entry of `writes`.
        writes_once: whether only the first computation of the op makes the write, for each entry of `writes`.
        preds: op -> ops that must run before it (see `edges`), sorted.
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
            ops: ``(name, reads, {buffer: nbytes}, cost)`` or `OpSpec`. A buffer that is read or written
                and never made is external: it is there before the first op.
            keep: buffers that must be alive at the end.
            external_nbytes: sizes (bytes) of external buffers; 0 where not given.
            freeable_externals: external buffers that may be freed after their last use.
            death: buffer -> index of the op after which the recorded program freed it, where that is later
                than its last use.

        Raises:
            GraphError: a duplicate, a buffer used before it is made, a cycle, or an impossible number.
        """
        specs = build.read_ops(ops)
        sizes, may_free, pinned = external_nbytes or {}, set(freeable_externals), set(keep)
        producer = build.producers(specs)
        index = build.index_buffers(specs, producer, [*sizes, *freeable_externals, *keep])
        reads, read_version, writes, write_version = build.buffer_access(specs, index, producer)
        makes = Csr.from_rows([[index[name] for name in spec.makes] for spec in specs])
        effect = np.array([spec.effect for spec in specs], dtype=np.int8)
        # an external buffer that no op uses has no last use after which it could be freed
        freed = {name for spec in specs for name in (*spec.reads, *spec.writes) if name in may_free}
        freeable = [name not in pinned and (name in producer or name in freed) for name in index]
        return cls(
            op_names=tuple(spec.name for spec in specs),
            op_cost=np.array([spec.cost for spec in specs], dtype=np.float64),
            op_time_ns=np.array([spec.time_ns for spec in specs], dtype=np.int64),
            op_workspace_bytes=np.array([spec.workspace_bytes for spec in specs], dtype=np.int64),
            op_effect=effect,
            op_recomputable=np.array([spec.may_run_again for spec in specs], dtype=bool),
            buffer_names=tuple(index),
            buffer_nbytes=build.buffer_sizes(specs, index, producer, sizes),
            buffer_producer=np.array([producer.get(name, -1) for name in index], dtype=np.int64),
            buffer_pinned=np.array([name in pinned for name in index], dtype=bool),
            buffer_freeable=np.array(freeable, dtype=bool),
            buffer_death=build.recorded_deaths(death or {}, index, len(specs)),
            reads=reads,
            read_version=read_version,
            makes=makes,
            writes=writes,
            write_version=write_version,
            writes_once=build.once_flags(specs, index, writes),
            preds=precedence(reads, read_version, makes, writes, write_version, effect, len(index)),
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
        """Bytes of the external buffers: what is live before the first op."""
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
        return Graph, tuple(getattr(self, entry.name) for entry in dataclasses.fields(self))
