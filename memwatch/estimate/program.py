"""Run the beginning of a program on fake tensors, as one rank of its job, and record what they would take."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any, Final

from torch.optim.optimizer import register_optimizer_step_post_hook

from memwatch._torch.fake_job import UNANSWERABLE, fake_mode_with_zero_reads, is_raised_by_fakes, require_jobs
from memwatch._torch.versions import require_known_torch
from memwatch.errors import MemwatchError
from memwatch.estimate.calls import Calls
from memwatch.estimate.chosen_sizes import ChosenSizes
from memwatch.estimate.job import Job, pretended
from memwatch.estimate.left_out import left_out
from memwatch.estimate.result import Estimate
from memwatch.fit.program_trial import Enough
from memwatch.own_code import is_program_code
from memwatch.profile import profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.optim import Optimizer

_NO_VALUES: Final = (
    "needs the values of a tensor, and an estimate has none: the sizes that follow depend on them"
)
_UNLINKED: Final = "is not linked with support for"
_NO_DEVICE: Final = "this torch is built for the host alone"
_NOT_ANSWERED: Final = (
    "Torch not compiled with CUDA enabled",
    "module 'torch._C' has no attribute",
    "Tried to instantiate dummy base class",
)
_NO_GPU: Final = "asks the GPU for data that an estimate does not have; skip the line if torch has no GPU"
_NO_KERNEL: Final = "from the 'CUDA' backend"
_NOT_POSSIBLE: Final = "an estimate runs on fake tensors, which refuse this"


def estimate_program(
    load: Callable[[], Callable[[], None]],
    *,
    job: Job = Job(),  # noqa: B008  # frozen
    steps: int = 3,
    device: str | None = None,
    path: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> Estimate:
    """Estimate the tensors of a program, from its start until a few steps of its optimizer.

    Args:
        load: makes the process look as if Python had just started on the program, and returns the program.
        job: the rank as which the program runs.
        steps: steps of the first optimizer after which the run is ended.
        device: a kind of accelerator that the program finds, though there is none: `"cuda"`.
        path: write the capture to this file; None keeps it in memory.
        force: whether an existing file at this path may be replaced.

    Raises:
        MemwatchError: the program needs values that fake tensors do not have.
        Exception: the program itself raised it.
    """
    require_known_torch()
    require_jobs()
    reads, calls, counter = Reads(), Calls(), _Steps(steps)
    not_known: dict[str, None] = {}
    sizes = ChosenSizes(not_known.setdefault)
    recording = profile(path)
    recording.replaces_file = force

    def note(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if started := recording.num_ops_started:
            calls.add(started - 1, op, args, kwargs)

    program = load()
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        pretended(job),
        fake_mode_with_zero_reads(reads.note, note, sizes.complete),
        left_out(device, job.world_size or 1, reads.note) as left,
        recording,
        counter.watching(),
    ):
        try:
            program()
        except Enough:
            pass
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
        except Exception as error:
            sentence = _refusal(error, left.not_moved)
            if sentence is None:
                raise
            raise MemwatchError(sentence) from error
    return Estimate(recording, job, counter.count, calls, tuple(reads.places), (*left.remarks, *not_known))


class Reads:
    """The lines of the program that read a value, each once."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def note(self, op: Any) -> None:
        """Count a read at the line of the program that runs."""
        frame = sys._getframe(1)
        place = next(
            (
                f"{each.f_code.co_filename}:{line}"
                for each, line in traceback.walk_stack(frame)
                if is_program_code(each.f_code.co_filename)
            ),
            "",
        )
        self.places[place] = self.places.get(place, 0) + 1


class _Steps:
    """Ends the program after some steps of its first optimizer."""

    def __init__(self, wanted: int) -> None:
        self.count = 0
        self._wanted = wanted
        self._first: Optimizer | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Count steps inside."""
        hook = register_optimizer_step_post_hook(self._stepped)
        try:
            yield
        finally:
            hook.remove()
            self._first = None

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._first is None:
            self._first = optimizer
        if optimizer is self._first:
            self.count += 1
            if self.count >= self._wanted:
                raise Enough


def _refusal(error: BaseException, not_moved: str) -> str | None:
    """Return a sentence for an error that fake tensors cause; None for an error of the program's own."""
    where = _line_of(error)
    if isinstance(error, UNANSWERABLE):
        return f"{where} {_NO_VALUES} ({error.func.name()})"
    text = " ".join(str(error).split())
    if _UNLINKED in text:
        return f"{where}: {_NO_DEVICE} ({not_moved or text})"
    if any(each in text for each in _NOT_ANSWERED):
        return f"{where} {_NO_GPU} ({text})"
    if _NO_KERNEL in text:
        return f"{where}: {_NOT_POSSIBLE} ({text.partition('. ')[0]})"
    if is_raised_by_fakes(error) or "FakeTensor" in text or "tensor subclasses" in text:
        return f"{where}: {_NOT_POSSIBLE} ({type(error).__name__}: {text})"
    return None


def _line_of(error: BaseException) -> str:
    lines = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if is_program_code(frame.f_code.co_filename)
    ]
    return lines[-1] if lines else "the program"
