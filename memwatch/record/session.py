"""One recording: connect its parts, switch them on and off, flush their rows, and leave torch as it was.

`Session` records a block. `allocator_only` records only the allocator's events, of one call.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import platform
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch import missing
from memwatch._torch.cpu import computes_in_bfloat16
from memwatch._torch.modes import disable_torch_function
from memwatch._version import __version__
from memwatch.capture.columns import Note
from memwatch.capture.file import CaptureWriter
from memwatch.capture.recording import Recording
from memwatch.encoding import ReplayInputs
from memwatch.errors import MemwatchError
from memwatch.gc_pause import pause_gc, resume_gc
from memwatch.record import context, native, python
from memwatch.record.allocator import AllocatorChannel, StartedThreads, WaitingEvents
from memwatch.record.arguments import ArgumentRecorder
from memwatch.record.backend import Block
from memwatch.record.clock import Clock, ticks
from memwatch.record.compilers import CompiledCalls, JitTracing
from memwatch.record.flush import FLUSH_S, FlushPace, TakenRows, Timer, tables_in_order
from memwatch.record.holders.sampler import HolderSampler
from memwatch.record.options import Choice
from memwatch.record.process import AcceleratorMemory, ProcessSampler
from memwatch.record.reads_in_python import reads_in_python
from memwatch.record.saved_tensors import SavedTensorHooks
from memwatch.record.steps import Sleeper, Steps, entry_bytes
from memwatch.record.tables.rows import Stacks, Strings, new_op_counter
from memwatch.record.tables.storages import PatchedResize
from memwatch.record.torch_records import TorchRecords
from memwatch.signal_handlers import suppress
from memwatch.words.processes import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import FrameType

    from torch import Tensor

    from memwatch.capture import Capture
    from memwatch.capture.columns import IntArray
    from memwatch.record.options import Options
    from memwatch.record.tables.rows import OpCounter

_running: list[Session] = []
_entering: Final = threading.RLock()  # a signal handler may enter a block too
_ALREADY_OPEN: Final = (
    "a memwatch.profile() block is already open; leave it before opening another (the recording of `memwatch run` or "
    "MEMWATCH=1 ends by itself, but only for a block in the main thread)"
)
_LOST_EVENTS: Final = (
    "memory ran out, and the recording lost {events} of the allocator. From the first one until the next write, live "
    "bytes and the peak come from tensors only. Workspace from before may count for too long"
)
_LOST_ROWS: Final = (
    "memory ran out, and the recorder could not write {rows}. Tensors may be missing from the report or count as "
    "live for too long. Live bytes and the peak are not exact from there on"
)


class Session:
    """The recording of one block: the parts that see its ops and memory, and the tables that they fill.

    Attributes:
        op_counter: how many ops have started.
        ended_by: the class of the exception that ended the block; empty if it had none.
    """

    def __init__(self, options: Options) -> None:
        if _running:
            raise MemwatchError(_ALREADY_OPEN)
        self._choice = choice = Choice(options)
        self._writer = CaptureWriter(options.path, force=options.force) if options.path is not None else None
        self._recording = Recording(self._writer)
        self._clock = Clock()
        self.op_counter = counter = new_op_counter()
        self._notes = notes = _Notes(counter, choice.remarks)
        self._accelerators = AcceleratorMemory(notes.note)
        self.strings = strings = Strings()
        block = Block(strings, counter, self._clock, choice.is_estimate, notes.note, thread_names=[])
        self._stacks = Stacks(strings, context.CALL_CODE, enabled=options.stacks)
        recorder = choice.backend.recorder(block, self._stacks)
        self.storages = recorder.storages
        if options.limits is not None:
            self.storages.limit(options.limits.of)
        self.context = context.Context(
            self.storages, recorder.capture_stack, strings, counter, self.could_not_record
        )
        self.ops = recorder.ops(self.context, self)
        self.interceptor = self.ops.interceptor(by_mode=choice.by_mode)
        self.context.recomputes.sees_this_thread = self.interceptor.sees_this_thread
        self.arguments = (
            ArgumentRecorder(self.ops, self.storages, strings, counter) if options.replay else None
        )
        self._packer = recorder.packer(self.context)
        self._saved = SavedTensorHooks(self._packer, notes.note)
        self._process = ProcessSampler(notes.note)
        self._holders: HolderSampler | None = None
        self._want_holders, self._holders_from_bytes = options.holders, options.holders_from_bytes
        wants_events = options.allocator and not choice.is_estimate
        events = choice.backend.allocator_events(block) if wants_events else None
        self._allocator = None if events is None else AllocatorChannel(events, counter, notes.note)
        flush = weakref.WeakMethod(self._flush)
        self._pace = FlushPace(counter, self._clock, self._allocator, flush, to_file=options.path is not None)
        self._timer = Timer(FLUSH_S, self._flush_by_timer)
        self._threads = StartedThreads(block.thread_names, events, self._timer.start)
        self._flushing = threading.Lock()
        self._events = WaitingEvents()
        self._undo: list[Callable[[], None]] = []
        self.ended_by = ""
        self._written_strings, self._pid = 0, os.getpid()
        self._taken = TakenRows(self._clock)
        run = (self.arguments or self.ops).run
        self._sleeper = Sleeper(self.storages, self.interceptor, self._saved, self.context, run)
        self._steps = self._chosen_steps(options)
        parts = (self._saved, self.context, self.interceptor)
        functions = [function for part in parts for function in part.python_functions]
        self._compiled = CompiledCalls(
            self._compiled_starts, self._compiled_ended, self.context.place, functions
        )

    def _chosen_steps(self, options: Options) -> Steps | None:
        if not options.chooses_steps:
            return None
        flush = weakref.WeakMethod(self._pace.flush_now)
        parts = (self._sleeper, flush, self.storages, self.op_counter, self._clock)
        return Steps(options.schedule, *parts, keeps_peaks=options.keep == "peaks")

    def start(self) -> None:
        """Switch all parts on. If one of them fails, switch off the parts that are on, and raise its error."""
        with _entering:
            if _running:
                raise MemwatchError("a memwatch.profile() block is open in another thread; wait for its end")
            _running.append(self)
        try:
            # The scan makes long-lived objects. If gc saw them in several young collections, a full collection would
            # soon follow. In a large program it takes hundreds of milliseconds, in the middle of a step.
            pause = pause_gc()
            try:
                context.scan_existing(self.storages, self.context)
            finally:
                resume_gc(pause)
            self._start_ticks = ticks()
            self._started_s = time.time()
            self._process.sample(at_bound=True)
            self._notes.note_missing()
            self._recording.begin(self._meta(complete=False))
            self._switch_on(self.context.start, self.context.stop)
            resizes = PatchedResize(self.storages)
            self._switch_on(resizes.start, resizes.stop)
            records = TorchRecords(self.storages, self.context)
            self._switch_on(records.start, records.stop)
            self._switch_on(self._saved.start, self._saved.stop)
            if self._allocator is not None:
                start = functools.partial(self._allocator.start, self._add_events)
                self._switch_on(start, self._allocator.stop)
            self._accelerators.begin()
            self._pace.start(self.ops.flush_at)
            if self._writer is not None or self._steps is not None:
                self._timer.start()
            self._switch_on(self._threads.start, self._threads.stop)
            self._switch_on(self._process.start, self._process.stop)
            if self._want_holders:
                parts = (self.storages, self._packer, self.context, self.strings, self.op_counter)
                highs = dict if self._allocator is None else self._allocator.highs
                sampled = self._process.read_parts  # read the memory of the process at each new peak
                self._holders = HolderSampler(
                    *parts, highs=highs, sampled=sampled, from_bytes=self._holders_from_bytes
                )
                self._switch_on(self._holders.start, self._holders.stop)
            if self._holders is not None or self._steps is not None:
                report_to = self.context.report_iterations_to
                root_called = None if self._holders is None else self._holders.root_called
                self._switch_on(functools.partial(report_to, self._optimizer_stepped, root_called), report_to)
            if self._holders is not None:
                report_runs_to, holders = self.context.report_torch_runs_to, self._holders
                begins, ends = holders.torch_run_begins, holders.torch_run_ends
                self._switch_on(functools.partial(report_runs_to, begins, ends), report_runs_to)
            self._switch_on(self._compiled.start, self._compiled.stop)
            self._switch_on(self._sleeper.start, self.interceptor.stop)
            tracing = JitTracing(self._pause_for_trace, self._sleeper.resume)
            self._switch_on(tracing.start, tracing.stop)
            # Write the rows of the storages that exist now. Otherwise a flush in the first steps would take longer.
            with contextlib.suppress(MemoryError):  # then a later flush writes the rows
                self._flush()
            if self._steps is not None:
                self._steps.begin(entry_bytes(self.storages, self._accelerators.entry_bytes, self.strings))
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Switch all parts off and drop all rows, because the block could not be entered."""
        self._switch_off()
        self._timer.stop()
        self._close_parts()
        if self._writer is not None:
            self._writer.discard()

    def _switch_on(self, start: Callable[[], None], stop: Callable[[], None]) -> None:
        start()
        self._undo.append(stop)

    def _switch_off(self) -> None:
        if self in _running:
            _running.remove(self)
        self._sleeper.put_back()
        with contextlib.ExitStack() as undo:  # in reverse order; a failure does not prevent the others
            for stop in self._undo:
                undo.callback(stop)
            self._undo = []

    def _close_parts(self) -> None:
        self._packer.close()
        self.storages.close()
        self.ops.close()

    def check_place(self) -> None:
        """Raise a `MemwatchError` unless this is the thread and the process that entered the block."""
        if self._pid != os.getpid():
            raise MemwatchError(
                "the block was entered before a fork; leave it in the process that entered it"
            )
        if not self.context.is_its_thread:
            raise MemwatchError(
                f"the block was entered in thread {self.context.home} and is still open; "
                f"leave it in that thread, not in {threading.get_ident()}"
            )

    def note(self, kind: str, text: str) -> None:
        """Add a note to the report."""
        self._notes.note(kind, text)

    def stop(self, error: BaseException | None = None) -> Recording:
        """Switch all parts off and return the recording.

        Args:
            error: the exception that ended the block, if any. The last step is then kept.
        """
        with contextlib.ExitStack() as ends:  # in reverse order; a failure does not prevent the others
            ends.callback(self._close_parts)
            if self.arguments is not None:
                ends.callback(self.arguments.finish)
            ends.callback(self._timer.stop)
            ends.callback(self._switch_off)
            if self._steps is not None:
                self._steps.end(failed=error is not None)
                self.storages.wake()
            ends.callback(resume_gc, pause_gc())  # see `start`
            with disable_torch_function():
                self.context.look_again(_failed_call(error))
        self._process.sample(at_bound=True)
        self._accelerators.end()
        if self._compiled.count:
            calls = counted(self._compiled.count, "call")
            text = f"{calls} of compiled code ran: only the allocator saw what they used"
            self._notes.note("compiled", text)
        for kind in sorted(self.storages.unseen):
            text = f"some tensors ({kind}) have no storage: the peak counts their bytes without names and holders"
            self._notes.note("unseen", text)
        self._notes.note_missing()
        lost_events = 0 if self._allocator is None else self._allocator.lost_events
        self._notes.note_losses(lost_events, self.ops.losses)
        self._recording.meta = self._meta(complete=True)
        self._flush()
        self._recording.finish(self._meta(complete=True), self.op_counter[0])
        return self._recording

    def take_replay_inputs(self) -> ReplayInputs | None:
        """Return the data that a replay starts from, and forget it. Call this after `stop`.

        The data holds tensors of the program. The parts of a session refer to each other, so gc may free the session
        long after the profile. It must not keep these tensors alive until then.
        """
        if self.arguments is None:
            return None
        taken, self.arguments.replay_inputs = self.arguments.replay_inputs, ReplayInputs()
        return taken

    def mark_step(self) -> None:
        """Mark the start of a new iteration."""
        if not self._sleeper.is_asleep:
            self.context.steps += (self.op_counter[0], ticks(), self.strings("step"), self.op_counter[0])
            if self._steps is None:  # otherwise only the timer takes samples, because there may be many steps
                self._process.sample()
            if self._holders is not None:
                self._holders.iteration_marked()
        if self._steps is not None:
            self._steps.mark()

    def _optimizer_stepped(self, optimizer: object) -> None:
        if self._holders is not None and not self._sleeper.is_asleep:
            self._holders.step_ended(optimizer)
        if self._steps is not None:
            self._steps.optimizer_stepped(optimizer)

    def could_not_record(self, what: str, error: Exception) -> None:
        """Note that `what` could not be recorded because of an error."""
        if isinstance(error, MemoryError) and self._allocator is not None:
            self._allocator.memory_ran_out()
        self._notes.could_not_record(what, error)

    def op_failed(self) -> None:
        """Note the memory of the devices at an op that raised an error. Keep the running step."""
        if self._allocator is not None:
            self._allocator.memory_ran_out()
        self._accelerators.op_failed()
        if self._steps is not None:
            self._steps.op_failed()

    def flush_due(self) -> None:
        """Write the rows if a flush is due. If memory is too short, they wait for the next flush."""
        with contextlib.suppress(MemoryError):
            self._pace.due()

    def _compiled_starts(self) -> bool:
        """Stop seeing ops and module calls, because compiled code runs here. Return whether they were seen."""
        here = self.context.is_its_thread and not self._sleeper.is_asleep and self.interceptor.pause()
        if here:
            self.context.pause()
        return here

    def _compiled_ended(self) -> None:
        self.context.resume()
        self.interceptor.resume()

    def _pause_for_trace(self) -> None:
        """Stop seeing ops while torch.jit traces, because the tracer would also record the ops that memwatch runs."""
        self._notes.note("traced", "torch.jit traced a function: only the allocator saw what that used")
        self._sleeper.pause()

    def backward_begins(self) -> bool:
        """Return True to watch the new storages of a backward through their Python objects.

        These objects make autograd add gradients out of place. memwatch does without them only if the allocator's
        events show the frees. Under a dispatch mode or for a replay, autograd does so anyway.
        """
        self.context.backward_begins()
        freed_are_seen = self._allocator is not None and self._allocator.running
        return not freed_are_seen or self.interceptor.name != "key" or self.arguments is not None

    def leaves_reached(self, leaves: Iterable[Tensor]) -> None:
        """Note leaves that may get gradients from the running backward, see `memwatch.record.backend.Listener`."""
        self.context.gradients.reached(leaves)

    def _flush_by_timer(self) -> None:
        self._process.sample()
        self._pace.by_timer()

    def flush_from_elsewhere(self) -> None:
        """Write the present rows. Any thread may call this."""
        self._pace.from_elsewhere()

    def capture_so_far(self) -> Capture:
        """Return the recording until now. Call this in the block's thread.

        Raises:
            CaptureError: the file cannot be read.
        """
        self._pace.flush_now()
        return self._recording.so_far(self._meta(complete=False))

    def _flush(self) -> None:
        with self._flushing:
            if self._taken:  # memory was too short for an earlier flush to write these rows
                self._taken.write(self._write)
            self._taken.take(
                tables_in_order(
                    self._packer, self.storages, self.context, self.ops, self._compiled, self._process,
                    self._allocator, self._holders, self.arguments,
                ),
                self._stacks.unwritten_rows,
            )  # fmt: skip
            self._taken.write(self._write)

    def _add_events(self, rows: IntArray) -> None:
        with self._flushing:
            if self._steps is not None:
                self._steps.hear(rows)
            elif self._events.add(rows):
                self._write({})

    def _write(self, rows: dict[str, Any]) -> None:
        notes = self._notes.unwritten()
        if self._steps is not None:
            rows, notes = self._steps.sift(rows), self._steps.placed(notes)
        events = self._events.take()
        rows.update(("allocator", each) for each in events)  # `events` has at most one array
        strings = self.strings.texts[self._written_strings :]
        try:
            self._recording.add(rows, strings, notes)
        except MemoryError:
            self._notes.put_back(notes)
            for each in events:
                self._events.add(each)
            raise
        self._written_strings += len(strings)

    def _meta(self, *, complete: bool) -> dict[str, Any]:
        return {
            "complete": complete,
            "memwatch": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "argv": list(sys.argv),
            "pid": self._pid,
            **self._process.meta,
            "started_s": self._started_s,
            "start_ns": self._clock.to_ns(self._start_ticks),
            "end_ns": self._clock.to_ns(ticks()),
            "ended_by": self.ended_by,
            "processes_started_ns": [
                list(map(self._clock.to_ns, times)) for times in self._process.start_times
            ],
            "threads": torch.get_num_threads(),
            "computes_in_bfloat16": computes_in_bfloat16(),
            **self._threads.meta,
            **self._accelerators.meta,
            "expressions": self.context.owners.expressions,
            "is_all_adagrad": self.context.owners.is_all_adagrad,
            "changed_arguments": self.context.changed_arguments.classes,
            "grown_lists": self.context.changed_arguments.lists,
            "changed_attributes": self.context.changed_arguments.attributes,
            "reads_in_python": reads_in_python(self._stacks.codes),
            "estimate": self._choice.is_estimate,
            "intercept": self.interceptor.name,
            "recorder": self._choice.backend.name,
            "stacks": self._stacks.enabled,
            "holders": self._holders is not None,
            "holder_samples": 0 if self._holders is None else self._holders.count,
            "holder_samples_cut": 0 if self._holders is None else self._holders.cut_count,
            "holder_samples_ns": self._clock.duration_ns(self._holders.cost_ticks) if self._holders else 0,
            "allocator": self._allocator is not None and not self._allocator.stepped_aside,
        }

    def forget_in_child(self) -> None:
        """Switch all parts off in a forked child. The block and its file belong to the parent process."""
        self._recording.abandon()
        self._writer = None
        if self._allocator is not None:
            self._allocator.forget_in_child()
        self._flushing = threading.Lock()  # a thread that exists only in the parent may hold the old lock
        self._switch_off()
        self._close_parts()


def is_recording() -> bool:
    """Return whether a block is open in this process."""
    return bool(_running)


def _forget_in_child() -> None:
    for session in _running:
        session.forget_in_child()


def _end_at_exit() -> None:
    # End open blocks, so that torch does not call functions of memwatch after the interpreter has ended.
    for session in _running:
        with contextlib.suppress(Exception):
            session.check_place()
            session.stop()


class _Notes:
    """The notes of one block.

    Args:
        op_counter: how many ops have started.
        remarks: notes about the choice of the recorder, each with its kind and its text.
    """

    def __init__(self, op_counter: OpCounter, remarks: Sequence[tuple[str, str]]) -> None:
        self._op_counter = op_counter
        self._remarks = remarks
        self._notes: list[Note] = []
        self._written = 0
        self._not_recorded: set[str] = set()
        self.losses = 0

    def note(self, kind: str, text: str) -> None:
        """Add a note to the report."""
        self._notes.append(Note(self._op_counter[0], kind, text))

    def note_missing(self) -> None:
        """Note what does not work in this torch, and the remarks about the recorder. Add each note once.

        Call this at the end of the block too. When the program imports dynamo, memwatch looks up more names of torch.
        """
        noted = {note.text for note in self._notes}
        for kind, sentence in [*(("torch", each) for each in missing()), *self._remarks]:
            if sentence not in noted:
                self.note(kind, sentence)

    def could_not_record(self, op: str, error: Exception) -> None:
        """Note that the tensors of an op could not be recorded, once per op. If memory is too short, count a loss."""
        if op in self._not_recorded:
            return
        try:
            self._not_recorded.add(op)
            with suppress(Exception):  # code of the program may make the text of the error
                self.note("recorder", f"{op} is not recorded whole: {type(error).__name__}: {error}")
        except MemoryError:
            self.losses += 1

    def note_losses(self, lost_events: int, losses: int) -> None:
        """Note how many events and rows were lost because memory had run out, and the figures that this affects.

        Args:
            lost_events: number of lost allocator events.
            losses: number of rows that the recorder of ops lost.
        """
        if lost_events:
            self.note("allocator", _LOST_EVENTS.format(events=counted(lost_events, "event")))
        if losses + self.losses:
            self.note("recorder", _LOST_ROWS.format(rows=counted(losses + self.losses, "row")))

    def put_back(self, notes: Sequence[Note]) -> None:
        """Mark the last notes from `unwritten` as unwritten, because memory was too short to write them."""
        self._written -= len(notes)

    def unwritten(self) -> list[Note]:
        """Return the notes that are new since the last call, and mark them as written."""
        notes = self._notes[self._written :]
        self._written += len(notes)
        return notes


def allocator_only(function: Callable[[], Any]) -> Capture:
    """Call a function and return a capture of its allocator events. Nothing else in torch changes.

    Raises:
        MemwatchError: this torch provides no events, or a profiler of the program receives them.
    """
    recording, clock = Recording(None), Clock()
    block = Block(
        Strings(), new_op_counter(), clock, is_estimate=False, note=lambda kind, text: None, thread_names=[]
    )
    events = (native.backend() or python.BACKEND).allocator_events(block)
    if events is None:
        raise MemwatchError(
            "this torch does not hand out the allocator's events, so there is nothing to compare with"
        )
    channel = AllocatorChannel(events, block.op_counter, block.note)
    start_ns = clock.to_ns(ticks())
    started_s = time.time()
    channel.start(lambda rows: recording.add({"allocator": rows}, [], []))
    if channel.stepped_aside:
        raise MemwatchError(
            "a torch profiler is running and holds the allocator's events; call verify() outside it"
        )
    threads = StartedThreads(block.thread_names, events)
    threads.start()
    try:
        result = function()
    finally:
        threads.stop()
        channel.stop()
    del result
    recording.add({}, block.strings.texts, [])
    recording.meta = {
        "start_ns": start_ns,
        "end_ns": clock.to_ns(ticks()),
        "started_s": started_s,
    }
    return recording.capture()


def _failed_call(error: BaseException | None) -> FrameType | None:
    """Return the innermost frame of an exception. Return None for None."""
    trace = None if error is None else error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return None if trace is None else trace.tb_frame


os.register_at_fork(after_in_child=_forget_in_child)
atexit.register(_end_at_exit)
