"""Rows of recorded tables as named tuples.

Generated from memwatch/capture/schema.py by `make schema`: change the schema, not this file. `docs/tables.md` says what
each column means. Times are ticks of the recorder's clock: the flush turns a field `start_ticks` into the column
`start_ns`.
"""

from __future__ import annotations

from typing import NamedTuple


class ResizesRow(NamedTuple):
    """A row of the table `resizes`."""

    storage: int
    op: int
    time_ticks: int
    nbytes: int
    address: int


class RoleLooksRow(NamedTuple):
    """A row of the table `role_looks`."""

    op: int
    in_op: int
    time_ticks: int
    least_bytes: int
    roles: int


class ModulesRow(NamedTuple):
    """A row of the table `modules`."""

    module: int
    name: int
    class_name: int
    parent: int
    op: int
    state: int


class ModeChangesRow(NamedTuple):
    """A row of the table `mode_changes`."""

    module: int
    op: int
    training: int


class CompiledCallsRow(NamedTuple):
    """A row of the table `compiled_calls`."""

    start_ticks: int
    end_ticks: int
    module: int
    stack: int


class CompiledNodesRow(NamedTuple):
    """A row of the table `compiled_nodes`."""

    first: int
    last: int
    module: int
    stack: int


class RecomputesRow(NamedTuple):
    """A row of the table `recomputes`."""

    start_op: int
    end_op: int
    sequence: int
    stack: int


class StepsRow(NamedTuple):
    """A row of the table `steps`."""

    op: int
    time_ticks: int
    name: int
    end_op: int


class ProcessRow(NamedTuple):
    """A row of the table `process`."""

    time_ticks: int
    rss_bytes: int
    available_bytes: int


class ProcessPartsRow(NamedTuple):
    """A row of the table `process_parts`."""

    time_ticks: int
    rss_bytes: int
    file_bytes: int
    python_bytes: int
    python_free_bytes: int
    malloc_free_bytes: int


class EdgesRow(NamedTuple):
    """A row of the table `edges`."""

    path: int
    depth: int
    kind: int
    name: int
    position: int
    owner: int
    reader: int
    file: int
    line: int
    code: int


class VerticesRow(NamedTuple):
    """A row of the table `vertices`."""

    vertex: int
    kind: int
    name: int
    file: int
    line: int
    count: int  # type: ignore[assignment]
    limit: int
    nbytes: int
    shape: int
    dtype: int
    thread: int
    library: int
    inner: int


class ArgumentsRow(NamedTuple):
    """A row of the table `arguments`."""

    op: int
    call: int
    result: int
    grad: int


class OperandsRow(NamedTuple):
    """A row of the table `operands`."""

    op: int
    slot: int
    storage: int
    access: int
    nbytes: int
