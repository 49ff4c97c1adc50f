"""Flush: take the rows of all tables and write them. Decide when to do so.

Each flush takes a certain time, even if it writes few rows. So memwatch flushes only after many ops, or a long time
after the last flush. A timer's thread flushes too, because the program may run no ops for a long time.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any, Final

from memwatch._torch.autograd import NO_TASK, current_graph_task_id
from memwatch.own_code import OwnThread
from memwatch.record.clock import Clock, ticks
from memwatch.record.harmless import uninterrupted
from memwatch.record.tables.rows import Rows
from memwatch.record.tables.storages import NEVER
from memwatch.signal_handlers import suppress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from weakref import WeakMethod

    from memwatch.record.allocator import AllocatorChannel
    from memwatch.record.arguments import ArgumentRecorder
    from memwatch.record.backend import OpRecorder
    from memwatch.record.compilers import CompiledCalls
    from memwatch.record.context import Context
    from memwatch.record.holders.sampler import HolderSampler
    from memwatch.record.process import ProcessSampler
    from memwatch.record.saved_tensors import Packer
    from memwatch.record.tables.rows import OpCounter, Table
    from memwatch.record.tables.storages import Storages


class TakenRows:
    """The rows of one flush, by table. If memory is too short to write them, they stay here until the next flush.

    Args:
        clock: converts the ticks in the rows to nanoseconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._taken: dict[str, Any] = {}
        self._in_ns: dict[str, Any] = {}

    def __bool__(self) -> bool:
        """Return True if some rows are still to be written."""
        return bool(self._taken or self._in_ns)

    def take(self, tables: Mapping[str, Table], new_stacks: Callable[[], list[int]]) -> None:
        """Take the rows of each table in the given order, and then the new call stacks."""
        self._taken = dict.fromkeys(tables, ())
        self._in_ns = {**self._taken, "stacks": []}
        for name, table in tables.items():
            self._taken[name] = table.take()
        self._in_ns["stacks"] = new_stacks()

    def write(self, write: Callable[[dict[str, Any]], None]) -> None:
        """Call `write` with the rows. Their times are nanoseconds. If it raises an error, keep the rows."""
        while self._taken:
            name, rows = next(iter(self._taken.items()))
            # the times of windows are nanoseconds already
            self._in_ns[name] = rows if name == "windows" else self._clock.rows_in_ns(name, rows)
            del self._taken[name]  # so that a second attempt does not convert these rows again
        write(dict(self._in_ns))
        self._in_ns = {}


def tables_in_order(  # noqa: PLR0917  # parts of a session, each once
    packer: Packer,
    storages: Storages,
    context: Context,
    ops: OpRecorder,
    compiled: CompiledCalls,
    process: ProcessSampler,
    allocator: AllocatorChannel | None,
    holders: HolderSampler | None,
    arguments: ArgumentRecorder | None,
) -> dict[str, Table]:
    """Return the tables. A flush takes their rows in this order.

    The program may append rows during a flush. A row may refer to a row of another table, which must be in the same
    flush or an earlier one. So each table comes before the tables that its rows refer to.
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
        "mode_changes": context.modes.rows,
        "compiled_calls": compiled.rows,
        "compiled_nodes": compiled.nodes,
        **context.recomputes.tables,
        "modules": context.owners.modules,
        "steps": context.steps,
        "process": process.rows,
        "process_parts": process.parts,
        "windows": Rows() if allocator is None else allocator.windows,
    }
    if arguments is not None:
        tables |= {"operands": arguments.operands, "arguments": arguments.arguments}
    tables |= {"nodes": ops.nodes, "views": ops.views, "lifts": ops.lifts, "numbers": ops.numbers}
    return tables | {"births": storages.births, "ops": ops.ops}


_FEWEST_OPS: Final = 1_000
"""Ops. After this many, a flush takes a few percent of the time of the ops. A guess."""


class LastFlush:
    """The number of ops and the time at the last flush.

    Args:
        op_counter: how many ops have started.
        clock: converts ticks to nanoseconds.
    """

    def __init__(self, op_counter: OpCounter, clock: Clock) -> None:
        self._op_counter = op_counter
        self._clock = clock
        self.is_now()

    def is_now(self) -> None:
        """Note that rows are flushed now."""
        self._op = self._op_counter[0]
        self._ticks = ticks()

    def is_within(self, seconds: float) -> bool:
        """Return whether the last flush was less than `seconds` ago."""
        return bool(self._clock.duration_ns(ticks() - self._ticks) < seconds * 1e9)

    def is_long_ago(self, seconds: float) -> bool:
        """Return whether the last flush was at least `_FEWEST_OPS` ops or `seconds` ago."""
        waiting_ns = self._clock.duration_ns(ticks() - self._ticks)
        return self._op_counter[0] - self._op >= _FEWEST_OPS or waiting_ns >= seconds * 1e9


FLUSH_OPS: Final = 10_000
"""Ops between two flushes. A guess."""
FLUSH_S: Final = 1.0
"""Seconds between two flushes to a file. A guess: with twice as many, writing cost noticeably more."""
MOST_WAIT_S: Final = 2.0
"""Seconds after which fewer than `_FEWEST_OPS` ops are written to a file too. A guess."""
RETRY_OPS: Final = 100
"""Ops until the next attempt, if a backward runs and the window cannot end. A guess."""
CHECK_OPS: Final = 100
"""Ops between two checks of the free memory. A guess."""
WINDOW_OPS: Final = 20_000
"""Ops of one window of allocator events. torch holds kilobytes per op until the window ends. A guess."""


class FlushPace:
    """Decide when to flush. Before each flush, end the allocator's window if possible.

    Args:
        op_counter: how many ops have started.
        clock: converts ticks to nanoseconds.
        allocator: the channel of the allocator's events, if they are recorded.
        flush: takes the rows and writes them.
        to_file: whether the rows go to a file.
    """

    def __init__(
        self,
        op_counter: OpCounter,
        clock: Clock,
        allocator: AllocatorChannel | None,
        flush: WeakMethod[Callable[[], None]],
        *,
        to_file: bool,
    ) -> None:
        self._op_counter = op_counter
        self._clock = clock
        self._allocator = allocator
        self._flush_method = flush
        self._to_file = to_file
        self._window_start = self._flushed = self._due_op = 0
        self._last_flush, self._last_write = (LastFlush(op_counter, clock) for _ in range(2))
        self._flush_at: Callable[[int, int], None] = lambda op, at_ticks: None

    def start(self, flush_at: Callable[[int, int], None]) -> None:
        """Begin. `flush_at` sets the number of an op and a time in ticks; the recorder calls `due` after either."""
        self._flush_at = flush_at
        self._schedule(FLUSH_OPS)

    def due(self) -> None:
        """Flush if `FLUSH_OPS` ops have run since the last flush. Otherwise only check the free memory.

        If the rows go to a file, `_FEWEST_OPS` ops or `MOST_WAIT_S` seconds are enough for a flush.
        """
        is_late = self._to_file and self._last_flush.is_long_ago(MOST_WAIT_S)
        if self._op_counter[0] < self._due_op and not is_late:
            if self._allocator is not None:
                self._allocator.check_memory()
            self._set_next_call()
            return
        with uninterrupted():
            self._flush_window()

    def by_timer(self) -> None:
        """Flush in the timer's thread. To a file, do so only if the last flush was long enough ago."""
        written = self._last_write
        if self._to_file and (written.is_within(FLUSH_S) or not written.is_long_ago(MOST_WAIT_S)):
            return
        self.from_elsewhere()

    def from_elsewhere(self) -> None:
        """Flush in the current thread, which may be any thread."""
        with uninterrupted():
            if self._allocator is not None:
                self._allocator.cut_from_elsewhere()
            self._flush()  # the timer drops an error, but the next flush in the block's thread raises it again

    def flush_now(self) -> None:
        """End the window and flush at once, without waiting for more ops."""
        with uninterrupted():
            if self._allocator is not None:
                self._allocator.cut()
            self._flush()

    def _flush(self) -> None:
        self._last_write.is_now()
        flush = self._flush_method()
        if flush is not None:
            flush()

    def _schedule(self, in_ops: int) -> None:
        self._last_flush.is_now()
        self._due_op = self._op_counter[0] + in_ops
        self._set_next_call()

    def _set_next_call(self) -> None:
        in_ticks = int(FLUSH_S / (self._clock.ns_per_tick * 1e-9))
        allocator = self._allocator
        checks = allocator is not None and allocator.running and not allocator.has_log_per_thread
        due_op = min(self._due_op, self._op_counter[0] + CHECK_OPS) if checks else self._due_op
        self._flush_at(due_op, ticks() + in_ticks if self._to_file else NEVER)

    def _flush_window(self) -> None:
        allocator, op = self._allocator, self._op_counter[0]
        full = op - self._window_start >= WINDOW_OPS or self._to_file
        due = allocator is not None and allocator.running and full
        ended = due and allocator is not None and allocator.cut()
        if ended:
            self._window_start = op
        # In a backward, kineto's window may not end. Then try again soon, and flush without it after `FLUSH_OPS` ops.
        if ended or current_graph_task_id() == NO_TASK or op - self._flushed >= FLUSH_OPS:
            self._flushed = op
            self._flush()
        self._schedule(RETRY_OPS if due and not ended else FLUSH_OPS)


_END_WITHIN_S: Final = 1.0
"""Seconds that the end of a block waits for a running write. The disk may not answer. A guess."""


class Timer:
    """Call a function again and again in a thread of its own, and drop its errors.

    Args:
        seconds: the time between two calls.
        act: the function.
    """

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self._act = [act]
        self._done: Final = threading.Event()
        # A stopped thread may run on for a while. It gets a list, which `stop` clears, so that it does not keep `act`.
        target = functools.partial(_repeat, self._done, seconds, self._act)
        self._to_start = [OwnThread(target=target, name="memwatch-flush", daemon=True)]
        self._started: list[threading.Thread] = []

    def start(self) -> None:
        """Start the thread, unless it was started or stopped before. Any thread may call this."""
        with suppress(IndexError):  # another thread has started it
            thread = self._to_start.pop()
            thread.start()
            self._started.append(thread)

    def stop(self) -> None:
        """Stop for good, and release the function. Wait a short time for a running call."""
        self._to_start.clear()
        self._act.clear()
        self._done.set()
        for thread in self._started:
            thread.join(_END_WITHIN_S)


def _repeat(done: threading.Event, seconds: float, to_call: list[Callable[[], None]]) -> None:
    while not done.wait(seconds):
        with contextlib.suppress(Exception):
            to_call[0]()  # not in a variable, which would keep the function alive during the next wait
