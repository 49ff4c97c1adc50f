"""Run the beginning of a program on fake tensors, as one rank of its job, and record what they would take."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any, Final

from torch.optim.optimizer import register_optimizer_step_post_hook

from memwatch._torch.fake import FakeTensor
from memwatch._torch.fake_job import (
    UNANSWERABLE,
    fake_mode_with_zero_reads,
    is_raised_by_fakes,
    plain_to_programs,
    require_jobs,
)
from memwatch._torch.versions import require_known_torch
from memwatch.errors import MemwatchError
from memwatch.estimate.calls import Calls
from memwatch.estimate.job import Job, pretended
from memwatch.estimate.known_values import ChosenSizes, KnownValues
from memwatch.estimate.left_out import left_out
from memwatch.estimate.result import Estimate
from memwatch.fit.program_trial import Enough
from memwatch.own_code import is_program_code
from memwatch.profile import profile
from memwatch.replay.measure import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.optim import Optimizer

_NO_VALUES: Final = (
    "needs the values of a tensor, and an estimate has none: the sizes that follow depend on them"
)
_REAL_PARAMETER: Final = (
    "the function uses a parameter of size {size} that existed before; build the model inside the function, so that "
    "it is made of fake tensors"
)
_CHECKED: Final = (
    "{place} checks which dispatch modes of torch are on, and sees the one of the estimate: a real run may take "
    "another branch"
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
    only_new_parameters: bool = False,
) -> Estimate:
    """Estimate the tensors of a program, from its start until a few steps of its optimizer.

    Args:
        load: makes the process look as if Python had just started on the program, and returns the program.
        job: the rank as which the program runs.
        steps: steps of the first optimizer after which the run is ended.
        device: a kind of accelerator that the program finds, though there is none: `"cuda"`.
        path: write the capture to this file; None keeps it in memory.
        force: whether an existing file at this path may be replaced.
        only_new_parameters: refuse a program that uses parameters which existed before. They would get fake gradients.

    Raises:
        MemwatchError: the program needs values that fake tensors do not have.
        Exception: the program itself raised it.
    """
    require_known_torch()
    require_jobs()
    reads, checks, calls, counter = Lines(), Lines(), Calls(), _Steps(steps)
    not_known: dict[str, None] = {}
    sizes = ChosenSizes(not_known.setdefault)
    values = KnownValues()
    recording = profile(path)
    recording.replaces_file = force

    def note(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if only_new_parameters:
            _refuse_real_parameters(args)
        if started := recording.num_ops_started:
            calls.add(started - 1, op, args, kwargs)

    def complete(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        result = sizes.complete(op, args, kwargs, result)
        values.follow(op, args, kwargs, result)
        return result

    mode = fake_mode_with_zero_reads(reads.note, note, complete, values.answer)
    program = load()
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        pretended(job),
        mode,
        plain_to_programs(mode, checks.note),
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
    remarks = (*left.remarks, *not_known, *(_CHECKED.format(place=place) for place in checks.places))
    return Estimate(recording, job, counter.count, calls, tuple(reads.places), remarks)


def _refuse_real_parameters(args: tuple[Any, ...]) -> None:
    for each in tensors_in(args):
        if type(each) is not FakeTensor and each.requires_grad:
            raise MemwatchError(_REAL_PARAMETER.format(size=tuple(each.shape)))


class Lines:
    """The lines of the program that did something, such as reading a value; each once."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def note(self, what: Any) -> None:
        """Count one more at the line of the program that runs."""
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
