"""`profile()` records a block of the program. `verify()` compares the peak of a function with and without recording."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pathlib
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

from memwatch._torch.lookup import require_known_torch
from memwatch.analysis.facts.facts import Facts
from memwatch.analysis.observer import observer_effects
from memwatch.device_names import CPU
from memwatch.devices import NOTE_KIND, Failure, is_of_host, is_out_of_memory
from memwatch.errors import MemoryLimitError, MemwatchError, add_note
from memwatch.heap.names import class_name
from memwatch.reading import Reading
from memwatch.record.harmless import uninterrupted, unlink_own_frames
from memwatch.record.native import remark as unbuilt_remark
from memwatch.record.native.library import build_recorder
from memwatch.record.options import Options, read_limits
from memwatch.record.session import Session, allocator_only, is_recording
from memwatch.record.steps import Sampled, Schedule, schedule
from memwatch.report.out_of_memory import breakdown
from memwatch.reserve import Reserve, small_pools
from memwatch.signal_handlers import pass_on, suppress
from memwatch.sizes import format_bytes
from memwatch.words import processes as words

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from memwatch.capture import Capture
    from memwatch.capture.recording import Recording
    from memwatch.ranks import Ranks

__all__ = [
    "Profile", "Sampled", "build_recorder", "is_recording", "profile", "read_limits", "schedule", "unbuilt_remark",
    "verify",
]  # fmt: skip
P = ParamSpec("P")
R = TypeVar("R")


def _is_success(error: BaseException) -> bool:
    """Return True for the exception that `sys.exit()` raises with exit code 0.

    Subclasses do not count, because reading their `code` may run code of the program.
    """
    return type(error) is SystemExit and error.code in (None, 0)


_of_whole_program: Final[list[Profile]] = []
"""The open recording that `memwatch run` or the variable MEMWATCH began. Empty if there is none."""


class Profile(Reading):
    """The recording of a block. Its figures can be read after the block has ended.

    The same profile may record several blocks, one after another. It then shows the last block.

    Attributes:
        page: the file of the page that memwatch wrote because memory ran out; otherwise None.
        replaces_file: whether the capture may replace an existing file.
        on_step: called after each `step()`.
        holders_from_bytes: holders are searched for only while the block's own live bytes on a device are at least
            this. A search takes longer than the ops of a small test. Memory of another thread counts once an op of the
            block uses it. No finding is about such memory, because the ops of the other thread are not recorded.
        gives_way: whether the recording ends when the program opens a `profile()` block. This is True for the recording
            of a whole program. Otherwise the program's own block would raise an error.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._session: Session | None = None
        self._recording: Recording | None = None
        self._unpacked: Capture | None = None
        self._reserve = Reserve()
        # absolute, because the program may change its working directory
        self._path = None if options.path is None else pathlib.Path(options.path).absolute()
        self.page: pathlib.Path | None = None
        self.on_step: Callable[[], None] | None = None
        self.replaces_file = False
        self.holders_from_bytes = 0
        self.gives_way = False

    def __enter__(self) -> Profile:
        """Start recording."""
        if self._session is not None:
            raise MemwatchError("this profile() block is already open; make another with memwatch.profile()")
        if _of_whole_program:
            _of_whole_program[-1]._end_for_another()
        again = self._recording is not None  # then this block replaces the file of the previous block
        session, is_on = None, False
        try:
            with uninterrupted():
                force = self._options.force or self.replaces_file or again
                session = Session(
                    dataclasses.replace(
                        self._options, force=force, holders_from_bytes=self.holders_from_bytes
                    )
                )
                session.start()
                is_on = True
                self._reserve.take()
        except BaseException:
            # A delayed signal handler may raise as `uninterrupted` ends. Then Python does not call `__exit__`.
            if session is not None and is_on:
                session.abandon()
            raise
        self._session = session
        if self.gives_way:
            _of_whole_program.append(self)
        return self

    def _end_for_another(self) -> None:
        """End the recording, because the program opens a block. Only the thread and process that began it can do so."""
        session = self._session
        if session is None:
            return
        # in another thread or process the recording goes on, and the program's block raises an error
        with suppress(MemwatchError):
            session.check_place()
            session.note(words.GAVE_WAY_KIND, words.GAVE_WAY)
            self.__exit__(None, None, None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop recording. An exception of the block propagates, perhaps with a note from memwatch."""
        session = self._session
        if session is None:
            return
        if self in _of_whole_program:  # the list must not keep the recording alive
            _of_whole_program.remove(self)
        try:
            is_stopped = self._end(session, error)
        except MemwatchError:
            raise
        except BaseException:
            if self._session is not None:  # a signal handler raised before `_end` delayed the handlers
                self._end(session, error)
            raise
        if (
            is_stopped
            and error is not None
            and (isinstance(error, MemoryLimitError) or is_out_of_memory(error))
        ):
            self._explain(error)

    def _end(self, session: Session, error: BaseException | None) -> bool:
        """Stop recording, and return True.

        If this fails while an error of the program propagates, add a note to that error and return False.
        """
        with uninterrupted():
            self._reserve.release()
            if error is not None:
                unlink_own_frames(error)
            session.check_place()
            if error is not None and not _is_success(error):
                session.ended_by = class_name(type(error))
                session.note(words.PROGRAM_FAILED, words.ENDED_BY.format(error=session.ended_by))
            self._session = None
            try:
                self._stop(session, error)
            except Exception as own:
                if error is None:
                    raise
                # the program must see its own error, so ours becomes a note
                add_note(error, words.NOT_ENDED.format(why=_error_text(own)))
                return False
            return True

    def _stop(self, session: Session, error: BaseException | None) -> None:
        self._recording = self._unpacked = self._replay_inputs = None
        self._recording = session.stop(error)
        self._replay_inputs = session.take_replay_inputs()
        if self.failure is not None:
            kept = "" if self._recording.is_lost else "; the profile is whole in this process only"
            text = f"memwatch: {self.failure}{kept}"
            warnings.warn(text, RuntimeWarning, stacklevel=4)  # the line of the `with` statement

    def _explain(self, error: BaseException) -> None:
        """Add a list of the live memory to an out-of-memory error, and write the page beside the capture."""
        try:  # memory is short, so this may fail; the program must still see its own error
            with small_pools():
                reading = self._reading_of(error)
                failure = Failure.of(error)
                # an accelerator ran out of memory, but the block had memory on the CPU only
                elsewhere = not failure.by_limit and not is_of_host(error) and reading.device == CPU
                # not `reading.notes`: it also searches for ways to save memory, and the program would wait
                notes = [note.text for note in reading.capture.notes if note.kind == NOTE_KIND]
                text = breakdown(reading, failure, self._write_page(), elsewhere=elsewhere, notes=notes)
        except Exception as own:
            pass_on(own)
            text = words.NOT_TOLD.format(why=_error_text(own))
        add_note(error, text)

    def _reading_of(self, error: BaseException) -> Reading:
        """Return the reading of the device that ran out of memory. If it is not known, return this reading."""
        device = error.device if isinstance(error, MemoryLimitError) else CPU if is_of_host(error) else ""
        return self.on(device) if device in self.devices else self

    def _write_page(self) -> list[pathlib.Path]:
        """Write the page beside the capture, unless it exists already. Return the paths of the written files."""
        if self._path is None or self.failure is not None:
            return []
        page = self._path.with_suffix(".html")
        with suppress(Exception):  # the note on the error is useful without a page too
            self.report(page, force=self._options.force)
            self.page = page
        return [self._path] if self.page is None else [self._path, self.page]

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return a function that records every call of `function`. The profile shows the last call.

        A coroutine function works too.

        Raises:
            MemwatchError: `function` is a generator function. Its caller runs ops while the generator is suspended.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise MemwatchError(
                f"{function.__qualname__} is a generator, which runs in pieces; "
                "put `with memwatch.profile():` around the loop that it feeds"
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
                with self:
                    return await function(*args, **kwargs)

            return cast("Callable[P, R]", awaited)

        @functools.wraps(function)
        def profiled(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return profiled

    def step(self) -> None:
        """Mark the start of a new iteration."""
        if self._session is None:
            raise MemwatchError(
                "step() marks an iteration inside an open profile() block; this block is not open"
            )
        self._session.mark_step()
        if self.on_step is not None:
            self.on_step()

    def flush(self) -> None:
        """Write the present rows to the file. Any thread may call this. Outside of the block, do nothing."""
        session = self._session
        if session is not None:
            session.flush_from_elsewhere()

    def so_far(self) -> Reading | None:
        """Return a reading of the open block until now. Return None outside of the block.

        Call it in the thread that entered the block. It reads the whole recording, so it takes longer with each op.

        Raises:
            CaptureError: the file cannot be read.
        """
        return None if self._session is None else Reading(self._session.capture_so_far())

    @property
    def num_ops_started(self) -> int:
        """How many ops have started in the open block; 0 if no block is open."""
        return 0 if self._session is None else self._session.op_counter[0]

    def remarks(self, kind: str) -> list[str]:
        """Return the texts of the recorder's notes of one kind. This does not read the capture."""
        notes = () if self._recording is None else self._recording.notes
        return [note.text for note in notes if note.kind == kind]

    @property
    def failure(self) -> MemwatchError | None:
        """The error that made the file at `path` incomplete; None if the file is complete.

        This profile still has the missing rows, unless another program destroyed the file.
        """
        return None if self._recording is None else self._recording.failure

    def gather(self) -> Ranks | None:
        """Return the readings of all ranks of `torch.distributed` on rank 0, and None on the other ranks.

        Every rank must call this after its block. The ranks send small summaries, not their captures.

        Raises:
            GatherError: a rank died or did not answer.
        """
        from memwatch.ranks import gather

        return gather(self.capture)

    @property
    def capture(self) -> Capture:
        """The recorded tables, once the block has ended."""
        if self._recording is None:
            raise MemwatchError("nothing is recorded yet: read a profile after its `with` block has ended")
        if self._unpacked is None:  # unpacked on demand, so that recording stays small
            self._unpacked = self._recording.capture()
        return self._unpacked


def profile(
    path: str | os.PathLike[str] | None = None,
    *,
    stacks: bool = True,
    holders: bool = True,
    allocator: bool = True,
    intercept: str = "auto",
    replay: bool = False,
    limit_bytes: int | str | Mapping[str, int | str] | None = None,
    schedule: Schedule | None = None,
    keep: str = "all",
) -> Profile:
    """Record the allocations of a block of code: when each begins and ends, and which objects hold it.

    Args:
        path: write the capture to this file while the program runs; None keeps it in memory.
        stacks: capture the Python call stack of every op.
        holders: find the objects that hold the memory at the peak.
        allocator: record the allocator's own events. They also show the workspace inside kernels.
        intercept: `"key"` sees ops through a free dispatch key, `"mode"` through a TorchDispatchMode. `"auto"` uses
            the key if it works in this torch.
        replay: record the data that a replay of the ops needs. memwatch then keeps the inputs of the block alive, and
            holds storages. So autograd adds gradients out of place. Their values stay the same, but their versions
            differ, and the peak is higher.
        limit_bytes: raise an error at the op that lifts the live bytes of a device above this limit. Write bytes, text
            such as `"2 GiB"`, or a limit for each device: `{"cuda": "20 GiB"}`. The limit holds in recorded steps only.
            During a backward, the recorder in Python misses some gradients, so it may raise the error late.
        schedule: the steps to record, from `memwatch.schedule`. A step ends when the program calls `step()`. If it
            never does, a step ends when the first optimizer has stepped. The live curve stays exact between recorded
            steps.
        keep: `"all"` keeps all recorded steps. `"peaks"` keeps only the steps that set a new peak or fail.

    Returns:
        A profile, which is a context manager and a decorator. It shows the capture after the block.

    Raises:
        MemwatchError: a block is already open, an option is unknown or conflicts with another, or memwatch does not
            support this torch.
        MemoryLimitError: inside the block, at the op that went above `limit_bytes`.
    """
    require_known_torch()
    return Profile(
        Options(
            path=path,
            stacks=stacks,
            holders=holders,
            allocator=allocator,
            intercept=intercept,
            replay=replay,
            limits=read_limits(limit_bytes),
            schedule=schedule,
            keep=keep,
        )
    )


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


@dataclass(frozen=True)
class Verification:
    """The peak of a function without and with recording, from the allocator's events.

    Attributes:
        plain_peak_increase_bytes: the peak without recording, above the live bytes at the start of the function.
        observed_peak_increase_bytes: the same under `profile()`.
        effects: sentences on the effects of recording on the peak.
    """

    plain_peak_increase_bytes: int
    observed_peak_increase_bytes: int
    effects: tuple[str, ...]

    @property
    def difference_bytes(self) -> int:
        """How much the observed peak lies above the plain one."""
        return self.observed_peak_increase_bytes - self.plain_peak_increase_bytes

    def __str__(self) -> str:
        """Return both peaks, their difference, and the effects of recording, as lines of text."""
        plain, observed = self.plain_peak_increase_bytes, self.observed_peak_increase_bytes
        lines = [
            f"peak increase without observation: {format_bytes(plain)} ({plain} bytes)",
            f"peak increase under memwatch:      {format_bytes(observed)} ({observed} bytes)",
            "no difference" if not self.difference_bytes else f"difference: {self.difference_bytes:+d} bytes",
        ]
        return "\n".join([*lines, *(f"- {text}" for text in self.effects)])


def verify(function: Callable[..., Any], *args: Any, intercept: str = "auto", **kwargs: Any) -> Verification:
    """Run a function twice, without `profile()` and with it, and compare the peaks.

    In the first run memwatch only receives the allocator's events, and changes nothing in torch. The function must do
    the same work in both runs.

    Args:
        function: the function to measure.
        *args: its positional arguments.
        intercept: as in `profile()`.
        **kwargs: its keyword arguments.

    Returns:
        Both peaks in bytes. `str()` of the result describes them.

    Raises:
        MemwatchError: the allocator's events are not available: torch provides none, or a torch profiler is running.
    """
    capture = allocator_only(lambda: function(*args, **kwargs))
    prof = profile(intercept=intercept)
    with prof:
        result = function(*args, **kwargs)
    del result
    plain = Facts(capture, prof.device).curve.peak_increase_bytes
    effects = tuple(effect.text for effect in observer_effects(prof._tables.facts))
    return Verification(plain, prof.peak_increase_bytes, effects)
