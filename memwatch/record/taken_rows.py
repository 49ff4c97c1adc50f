"""Rows that a flush has taken from their tables, until they are written; without memory they wait for the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memwatch.record.tables.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memwatch.record.allocator.channel import AllocatorChannel
    from memwatch.record.arguments import ArgumentRecorder
    from memwatch.record.backend import OpRecorder
    from memwatch.record.clock import Clock
    from memwatch.record.context import Context
    from memwatch.record.holders.sampler import HolderSampler
    from memwatch.record.interception.compiled import CompiledCalls
    from memwatch.record.saved.packer import Packer
    from memwatch.record.tables.rows import Table
    from memwatch.record.tables.storages import Storages


class TakenRows:
    """The rows of one flush, by table.

    Args:
        clock: turns their ticks into nanoseconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._taken: dict[str, Any] = {}
        self._in_ns: dict[str, Any] = {}

    def __bool__(self) -> bool:
        """Return True if there are rows that are not written."""
        return bool(self._taken or self._in_ns)

    def take(self, tables: Mapping[str, Table], new_stacks: Callable[[], list[int]]) -> None:
        """Take the rows of all tables, one after the other, and then the new call stacks."""
        self._taken = dict.fromkeys(tables, ())
        self._in_ns = {**self._taken, "stacks": []}
        for name, table in tables.items():
            self._taken[name] = table.take()
        self._in_ns["stacks"] = new_stacks()

    def write(self, write: Callable[[dict[str, Any]], None]) -> None:
        """Call a function with the rows, times in nanoseconds; they stay if that raises."""
        while self._taken:
            name, rows = next(iter(self._taken.items()))
            self._in_ns[name] = rows if name == "windows" else self._clock.rows_in_ns(name, rows)
            del self._taken[name]  # a second conversion would be wrong
        write(dict(self._in_ns))
        self._in_ns = {}


def tables_in_order(  # noqa: PLR0917  # parts of a session, each once
    packer: Packer, storages: Storages, context: Context, ops: OpRecorder, compiled: CompiledCalls, process: Rows,
    allocator: AllocatorChannel | None, holders: HolderSampler | None, arguments: ArgumentRecorder | None,
) -> dict[str, Table]:  # fmt: skip
    """Return the tables in the order in which their rows must be taken.

    The program goes on meanwhile, so a table comes before the tables that its rows refer to.
    """
    tables: dict[str, Table] = {
        "unpacks": packer.unpacks,
        "packs": packer.packs,
        "deaths": storages.deaths,
        "resizes": storages.resizes,
        **context.role_ends.tables,
        **({} if holders is None else holders.tables),
        "uses": ops.uses,
        "calls": context.calls,
        "compiled_calls": compiled.rows,
        "compiled_nodes": compiled.nodes,
        **context.recomputes.tables,
        "modules": context.owners.modules,
        "steps": context.steps,
        "process": process,
        "windows": Rows() if allocator is None else allocator.windows,
    }
    if arguments is not None:
        tables |= {"operands": arguments.operands, "arguments": arguments.arguments}
    tables |= {"nodes": ops.nodes, "views": ops.views, "lifts": ops.lifts}
    return tables | {"births": storages.births, "ops": ops.ops}
