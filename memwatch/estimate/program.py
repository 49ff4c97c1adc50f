"""Run the beginning of a program on fake tensors, as one rank of its job, and record the memory of real tensors.

The program must not write checkpoints, start workers, compile, or ask a GPU for data. `left_out` replaces these
actions.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from memwatch._torch.fake import FakeTensor
from memwatch._torch.fake_job import (
    FOREACH_TYPES,
    UNANSWERABLE,
    copy_fake,
    fake_mode_with_zero_reads,
    is_raised_by_fakes,
    plain_to_programs,
    require_jobs,
    touched_by_no_fake,
)
from memwatch._torch.lookup import require_known_torch
from memwatch.cards import CARDS
from memwatch.devices.pretended import pretended_cuda
from memwatch.errors import MemwatchError
from memwatch.estimate.calls import Calls
from memwatch.estimate.job import Job, pretended
from memwatch.estimate.known_values import ChosenSizes, KnownValues
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
    reads, branches, checks, calls, counter = Lines(), Lines(), Lines(), Calls(), _Steps(steps)
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

    def on_read(is_branch: bool) -> None:
        reads.note(None)
        if is_branch:
            branches.note(None)

    mode = fake_mode_with_zero_reads(on_read, note, complete, values.answer)
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
    return Estimate(
        recording, job, counter.count, calls, tuple(reads.places), remarks, tuple(branches.places)
    )


def _refuse_real_parameters(args: tuple[Any, ...]) -> None:
    for each in tensors_in(args):
        if type(each) is not FakeTensor and each.requires_grad:
            raise MemwatchError(_REAL_PARAMETER.format(size=tuple(each.shape)))


class Lines:
    """Counts actions, such as reading a value, by the line of the program."""

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
    """Return a sentence for an error that fake tensors cause; None for an error of the program itself."""
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


_SAVED: Final = "torch.save wrote nothing: fake tensors have no values"
_WORKERS: Final = "a DataLoader made its batches in this process: workers could not send fake tensors"
_EAGER: Final = (
    "torch.compile compiled nothing: fake tensors ran the functions eagerly, which can need more memory"
)
_NO_WORKERS: Final = {
    "num_workers": 0, "persistent_workers": False, "prefetch_factor": None, "timeout": 0, "pin_memory": False,
    "multiprocessing_context": None, "worker_init_fn": None,
}  # fmt: skip
_POSITIONAL: Final = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler")
"""Arguments of a DataLoader that programs give by position. Later arguments are rarely given so."""
_DEVICES_OF_A_HOST: Final = 8
"""The devices that a program finds on its host, as in most servers. A guess."""
_NO_REFERENCES: Final = SimpleNamespace(getweakrefs=lambda tensor: [])


@dataclass(frozen=True)
class LeftOut:
    """The actions that `left_out` replaced.

    Attributes:
        remarks: sentences about them, as keys.
        not_moved: why tensors cannot be moved to CUDA devices; empty if they can.
    """

    remarks: dict[str, None]
    not_moved: str


@contextlib.contextmanager
def left_out(device: str | None, num_ranks: int, on_ask: Callable[[None], None]) -> Iterator[LeftOut]:
    """Keep the program inside from files and workers; yield the record of the actions that it left out.

    Args:
        device: a kind of accelerator that the program finds.
        num_ranks: ranks of the job, which have a device each, on a host of eight.
        on_ask: called when the program asks a GPU for its memory.

    Raises:
        MemwatchError: this kind of device cannot be simulated.
    """
    if device not in (None, "cpu", "cuda"):
        known = ", ".join(card.name for card in CARDS)
        raise MemwatchError(
            f"--device {device} is no device that memwatch knows; give cpu, cuda, or one of the cards {known}"
        )
    remarks: dict[str, None] = {}
    num_found = min(num_ranks, _DEVICES_OF_A_HOST) if device == "cuda" else 0

    def save(*args: Any, **kwargs: Any) -> None:
        remarks[_SAVED] = None

    with ExitStack() as stack:
        stack.enter_context(patch.object(torch, "save", save))
        stack.enter_context(patch.object(DataLoader, "__init__", _in_process(DataLoader.__init__, remarks)))
        stack.enter_context(touched_by_no_fake())
        reason = stack.enter_context(pretended_cuda(num_found=num_found, on_ask=on_ask))
        stack.enter_context(patch.object(torch.utils, "swap_tensors", _swapping(torch.utils.swap_tensors)))
        stack.enter_context(patch.object(torch, "compile", _eager(torch.compile, remarks, stack)))
        stack.enter_context(patch.object(FakeTensor, "__deepcopy__", copy_fake))
        FOREACH_TYPES.append(FakeTensor)
        stack.callback(FOREACH_TYPES.remove, FakeTensor)
        yield LeftOut(remarks, reason)


def _swapping(swap: Callable[..., None]) -> Callable[..., None]:
    """Return a `swap_tensors` that ignores weak references; torch converts and moves fake parameters with it.

    `swap_tensors` refuses tensors with weak references. torch itself has weak references to fake tensors. For real
    parameters torch does not swap, but changes their data.
    """

    def swap_fake(*tensors: torch.Tensor) -> None:
        with patch.object(torch.utils, "weakref", _NO_REFERENCES):
            swap(*tensors)

    return swap_fake


def _eager(
    compile_function: Callable[..., Any], remarks: dict[str, None], stack: ExitStack
) -> Callable[..., Any]:
    """Return a `torch.compile` whose functions run as they are, until the stack is closed."""

    def compile_nothing(*args: Any, **kwargs: Any) -> Any:
        if _EAGER not in remarks:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            remarks[_EAGER] = None
        return compile_function(*args, **kwargs)

    return compile_nothing


def _in_process(initialize: Callable[..., None], remarks: dict[str, None]) -> Callable[..., None]:
    def initialize_loader(loader: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("num_workers") or len(args) > len(_POSITIONAL):
            remarks[_WORKERS] = None
        initialize(loader, *args[: len(_POSITIONAL)], **{**kwargs, **_NO_WORKERS})

    return initialize_loader
