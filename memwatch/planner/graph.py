"""The program as the planner sees it: ops that make, read and mutate buffers. Immutable, arrays only."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from memwatch.planner.csr import Csr, IntArray
from memwatch.planner.op import Name, OpSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

SizeFn: TypeAlias = Callable[[IntArray], IntArray]
ShortOp: TypeAlias = tuple[Name, Collection[Name], Mapping[Name, int], float]


def cuda_block_sizes(nbytes: IntArray) -> IntArray:
    """Round sizes (bytes) up to the 512 B blocks of the CUDA caching allocator."""
    return -(-nbytes // 512) * 512


@dataclass(frozen=True, eq=False)
class Graph:
    """A straight-line program over buffers; op `i` is the i-th op of the program.

    Accounting: an op runs, its outputs and its workspace are allocated, the peak is sampled, then every
    buffer whose last user has run is freed, unless it is pinned. An output nobody uses goes right after
    the op that made it.

    Attributes:
        op_names: name of every op, in program order.
        op_cost: price of computing each op once.
        op_workspace_bytes: bytes each op allocates and frees while it runs.
        op_effect: `Effect` of each op.
        op_recomputable: whether each op may be computed more than once.
        buffer_names: name of every buffer; external ones first in order of appearance.
        buffer_nbytes: size of every buffer (bytes).
        buffer_producer: op that makes each buffer, -1 for an external one.
        buffer_pinned: whether each buffer must be there, in its last version, at the end.
        buffer_freeable: whether each buffer may be freed after its last use.
        buffer_death: op of the program after which the program itself frees each buffer, -1 where it
            is the last use (what `program_peak` goes by; plans always free at the last use).
        reads: op -> buffers it reads, with the version read in `read_version` (entry by entry).
        makes: op -> buffers it allocates (version 0).
        writes: op -> buffers it mutates, with the version after it in `write_version`.
        preds: op -> ops that must run before it (data, anti-dependency, effect order), sorted.
    """

    op_names: tuple[Name, ...]
    op_cost: NDArray[np.float64]
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
        """Build a graph from ops listed in program order.

        Args:
            ops: ``(name, reads, {buffer: nbytes}, cost)`` or `OpSpec`. A buffer that is read and never
                made is external.
            keep: buffers that must be alive at the end.
            external_nbytes: sizes (bytes) of external buffers; 0 where not given.
            freeable_externals: external buffers that may be freed after their last use.
            death: per buffer the index of the op after which the recorded program freed it, where that
                is later than its last use.

        Returns:
            The graph.

        Raises:
            GraphError: a duplicate, a buffer used before it is made, a cycle, or an impossible number.
        """
        from memwatch.planner.build import build_graph

        return build_graph(ops, keep, external_nbytes or {}, freeable_externals, death or {})

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
