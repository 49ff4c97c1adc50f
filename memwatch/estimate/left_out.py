"""Replace actions that an estimated program must not do: write checkpoints, start workers, compile, ask a GPU."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import torch
from torch.utils.data import DataLoader

from memwatch._torch.fake import FakeTensor
from memwatch._torch.fake_job import FOREACH_TYPES, copy_fake
from memwatch.cards import CARDS
from memwatch.devices.pretended import pretended_cuda
from memwatch.errors import MemwatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
"""Arguments of a DataLoader that are given by position; those after them rarely are."""
_DEVICES_OF_A_HOST: Final = 8
_NO_REFERENCES: Final = SimpleNamespace(getweakrefs=lambda tensor: [])


@dataclass(frozen=True)
class LeftOut:
    """The actions that a program did differently.

    Attributes:
        remarks: sentences, as keys.
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
            f"--device {device} cannot be pretended; give cpu, cuda, or one of the cards {known}"
        )
    remarks: dict[str, None] = {}
    num_found = min(num_ranks, _DEVICES_OF_A_HOST) if device == "cuda" else 0

    def save(*args: Any, **kwargs: Any) -> None:
        remarks[_SAVED] = None

    with ExitStack() as stack:
        stack.enter_context(patch.object(torch, "save", save))
        stack.enter_context(patch.object(DataLoader, "__init__", _in_process(DataLoader.__init__, remarks)))
        reason = stack.enter_context(pretended_cuda(num_found=num_found, on_ask=on_ask))
        stack.enter_context(patch.object(torch.utils, "swap_tensors", _swapping(torch.utils.swap_tensors)))
        stack.enter_context(patch.object(torch, "compile", _eager(torch.compile, remarks, stack)))
        stack.enter_context(patch.object(FakeTensor, "__deepcopy__", copy_fake))
        FOREACH_TYPES.append(FakeTensor)
        stack.callback(FOREACH_TYPES.remove, FakeTensor)
        yield LeftOut(remarks, reason)


def _swapping(swap: Callable[..., None]) -> Callable[..., None]:
    """Return a `swap_tensors` that ignores weak references; torch converts and moves fake parameters with it.

    For real parameters torch changes their data instead, so their referrers do not matter. torch itself refers to
    fake ones.
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
