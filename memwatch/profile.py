"""profile(): the front door; starts and stops the recorders around a block. verify(): the peak with and without it."""

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
    """Return True for the exception of `sys.exit()` with exit code 0. A subclass may compute its `code`: not asked."""
    return type(error) is SystemExit and error.code in (None, 0)


_of_whole_program: Final[list[Profile]] = []
"""The recording that `memwatch run` or the variable MEMWATCH began, if there is one that has not given way."""


class Profile(Reading):
    """A block that is being or was recorded; reading it is possible once the block has ended.

    Attributes:
        page: the page that was written because memory ran out, if it was.
        replaces_file: whether an existing file makes room for the capture.
        on_step: called after each `step()`.
        gives_way: whether the recording ends where the program opens a block of its own. Recordings of a whole program
            do, because the program must run as it does without memwatch.
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
        self.gives_way = False

    def __enter__(self) -> Profile:
        """Start recording."""
        if self._session is not None:
            raise MemwatchError("this profile() block is already open; make another with memwatch.profile()")
        if _of_whole_program:
            _of_whole_program[-1]._end_for_another()
        again = self._recording is not None  # the file of this profile's last block makes room
        session, is_on = None, False
        try:
            with uninterrupted():
                force = self._options.force or self.replaces_file or again
                session = Session(dataclasses.replace(self._options, force=force))
                session.start()
                is_on = True
                self._reserve.take()
        except BaseException:
            # a signal handler that waited has raised: Python will not call `__exit__`
            if session is not None and is_on:
                session.abandon()
            raise
        self._session = session
        if self.gives_way:
            _of_whole_program.append(self)
        return self

    def _end_for_another(self) -> None:
        """End the recording for a block of the program, if this is the thread and process that began it."""
        session = self._session
        if session is None:
            return
        with suppress(MemwatchError):  # in another thread the recording goes on, and the new block raises
            session.check_place()
            session.note(words.GAVE_WAY_KIND, words.GAVE_WAY)
            self.__exit__(None, None, None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop recording; an exception of the block passes unchanged."""
        session = self._session
        if session is None:
            return
        if self in _of_whole_program:  # the list must not keep what was recorded
            _of_whole_program.remove(self)
        try:
            is_stopped = self._end(session, error)
        except MemwatchError:
            raise
        except BaseException:
            if self._session is not None:  # a signal handler raised before handlers were delayed
                self._end(session, error)
            raise
        if (
            is_stopped
            and error is not None
            and (isinstance(error, MemoryLimitError) or is_out_of_memory(error))
        ):
            self._explain(error)

    def _end(self, session: Session, error: BaseException | None) -> bool:
        """Stop recording; return False if that failed, which the program's own error has a note about."""
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
                # the program's own error is on its way
                add_note(error, words.NOT_ENDED.format(why=_told(own)))
                return False
            return True

    def _stop(self, session: Session, error: BaseException | None) -> None:
        self._recording = self._unpacked = self._replay_inputs = None
        self._recording = session.stop(error)
        self._replay_inputs = session.take_replay_inputs()
        if self.failure is not None:
            kept = "" if self._recording.is_lost else "; the profile is whole in this process only"
            text = f"memwatch: {self.failure}{kept}"
            warnings.warn(text, RuntimeWarning, stacklevel=4)

    def _explain(self, error: BaseException) -> None:
        """Add the live bytes to the error of an allocator, and write the page beside the capture."""
        try:  # the program's own error is on its way, and memory is short
            with small_pools():
                reading = self._reading_of(error)
                failure = Failure.of(error)
                elsewhere = not failure.by_limit and not is_of_host(error) and reading.device == CPU
                # `reading.notes` would search for ways, while the program waits to end with its error
                notes = [note.text for note in reading.capture.notes if note.kind == NOTE_KIND]
                text = breakdown(reading, failure, self._write_page(), elsewhere=elsewhere, notes=notes)
        except Exception as own:
            pass_on(own)
            text = words.NOT_TOLD.format(why=_told(own))
        add_note(error, text)

    def _reading_of(self, error: BaseException) -> Reading:
        """Return the reading of the device that had no memory left."""
        device = error.device if isinstance(error, MemoryLimitError) else CPU if is_of_host(error) else ""
        return self.on(device) if device in self.devices else self

    def _write_page(self) -> list[pathlib.Path]:
        """Write the page beside the capture, and return the paths of the written files; an existing page stays."""
        if self._path is None or self.failure is not None:
            return []
        page = self._path.with_suffix(".html")
        with suppress(Exception):  # the note does not need the page
            self.report(page, force=self._options.force)
            self.page = page
        return [self._path] if self.page is None else [self._path, self.page]

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Record every call of a function, a coroutine function included; the profile reads its last call.

        Raises:
            MemwatchError: the function is a generator: its caller's ops run between its own.
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
        """Write the rows so far to the file. Any thread may call this. Do nothing outside of the block."""
        session = self._session
        if session is not None:
            session.flush_from_elsewhere()

    def so_far(self) -> Reading | None:
        """Return a reading of an open block's recording so far; None outside of the block.

        Call it in the thread that entered the block. It reads the whole recording, so a long one takes long.

        Raises:
            CaptureError: the file cannot be read.
        """
        return None if self._session is None else Reading(self._session.capture_so_far())

    @property
    def num_ops_started(self) -> int:
        """How many ops have started in the open block; 0 where none is open."""
        return 0 if self._session is None else self._session.op_counter[0]

    def remarks(self, kind: str) -> list[str]:
        """Return the notes of a kind that were made while recording; nothing is read for them."""
        notes = () if self._recording is None else self._recording.notes
        return [note.text for note in notes if note.kind == kind]

    @property
    def failure(self) -> MemwatchError | None:
        """The error that made the file at `path` incomplete, else None.

        After an error, only this profile has all rows.
        """
        return None if self._recording is None else self._recording.failure

    def gather(self) -> Ranks | None:
        """Return the readings of all ranks of `torch.distributed` on rank 0, None on the others.

        Every rank must call it, after its block. Small summaries travel, not captures.

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
    """Record every allocation of a block, its life and its holders.

    Args:
        path: write the capture to this file while the program runs; None keeps it in memory.
        stacks: capture the Python call stack of every op.
        holders: name the holders of the memory at the peak.
        allocator: record the allocator's own events, workspace inside kernels included.
        intercept: `"key"` sees ops through a free dispatch key, `"mode"` through a TorchDispatchMode. `"auto"` takes
            the key if it works.
        replay: record everything that a replay of the ops needs. It keeps the inputs of the block alive and holds
            storages. So autograd sums gradients out of place: the values are the same, the versions differ, and the
            peak is higher.
        limit_bytes: raise at the op that lifts the live bytes of a device above this limit. Write bytes, text such as
            `"2 GiB"`, or a limit for each device: `{"cuda": "20 GiB"}`. Steps that are not recorded never raise. In
            the middle of a backward, the recorder in Python misses some gradients, and may raise later.
        schedule: the steps to record, from `memwatch.schedule`. `step()` ends a step. If the program never calls it,
            the first optimizer's step does. Between recorded steps the exact live curve goes on.
        keep: `"all"` keeps all recorded steps, `"peaks"` only the steps that set a new peak or fail.

    Returns:
        A context manager and decorator; after the block it reads the capture.

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


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


@dataclass(frozen=True)
class Verification:
    """The peak of a function, as the allocator reports it, without and with observation."""

    plain_peak_increase_bytes: int
    observed_peak_increase_bytes: int
    effects: tuple[str, ...]

    @property
    def difference_bytes(self) -> int:
        """How much the observed peak lies above the plain one."""
        return self.observed_peak_increase_bytes - self.plain_peak_increase_bytes

    def __str__(self) -> str:
        """Return both peaks, and the effects of observing that explain a difference, as text."""
        plain, observed = self.plain_peak_increase_bytes, self.observed_peak_increase_bytes
        lines = [
            f"peak increase without observation: {format_bytes(plain)} ({plain} bytes)",
            f"peak increase under memwatch:      {format_bytes(observed)} ({observed} bytes)",
            "no difference" if not self.difference_bytes else f"difference: {self.difference_bytes:+d} bytes",
        ]
        return "\n".join([*lines, *(f"- {text}" for text in self.effects)])


def verify(function: Callable[..., Any], *args: Any, intercept: str = "auto", **kwargs: Any) -> Verification:
    """Run a function with the allocator's events alone, then under `profile()`, and compare the peaks.

    In the first run memwatch changes nothing in torch, so the program runs as it is. The function runs twice, so it
    must do the same work both times.

    Args:
        function: the function to measure.
        *args: its positional arguments.
        intercept: as in `profile()`.
        **kwargs: its keyword arguments.

    Returns:
        Both peaks in bytes; `str()` of the result is a sentence.

    Raises:
        MemwatchError: a torch profiler is already running, so that the allocator's events are not available.
    """
    capture = allocator_only(lambda: function(*args, **kwargs))
    prof = profile(intercept=intercept)
    with prof:
        result = function(*args, **kwargs)
    del result
    plain = Facts(capture, prof.device).curve.peak_increase_bytes
    effects = tuple(effect.text for effect in observer_effects(prof._tables.facts))
    return Verification(plain, prof.peak_increase_bytes, effects)
