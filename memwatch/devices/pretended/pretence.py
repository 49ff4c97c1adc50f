"""Pretend a CUDA device: in torch's C++, where this torch is built for the host alone, and in its Python."""

from __future__ import annotations

import contextlib
import warnings
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

import torch

from memwatch.devices.cuda import namespace
from memwatch.devices.pretended import library
from memwatch.devices.pretended.answers import CurrentDevice, answers, streams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FALSE_ALARMS: Final = (
    "PyTorch was compiled without cuDNN",
    "Attempted to get default timeout for nccl backend",
    "Accessing the data pointer of FakeTensor",
)
"""How warnings begin that are about this torch or about fake tensors, and not about the program."""
_MARKS: Final = ("range_push", "range_pop", "range_start", "range_end", "mark")


@contextlib.contextmanager
def pretended_cuda(*, num_found: int, on_ask: Callable[[None], None]) -> Iterator[str]:
    """Let programs inside put fake tensors on CUDA devices; a device that is there is asked as ever.

    Args:
        num_found: how many there are, by `device_count()`.
        on_ask: called when the program asks how much memory is in use, which is answered by zero.

    Yields:
        Why tensors cannot be moved to such devices; empty if they can.
    """
    if namespace.is_available():
        yield ""
        return
    with ExitStack() as stack:
        device, reason = _device(stack)
        named = answers(device, num_found=num_found, on_ask=on_ask) | streams(device)
        for name, value in named.items():
            stack.enter_context(patch.object(namespace, name, value))
        for name in _MARKS:
            stack.enter_context(patch.object(namespace.nvtx, name, lambda *args, **kwargs: 0))
        # autocast and GradScaler switch themselves off where there is no GPU
        stack.enter_context(patch.object(namespace.amp.common, "amp_definitely_not_available", lambda: False))
        stack.enter_context(patch.object(torch.Tensor, "pin_memory", _pinned))
        stack.enter_context(patch.object(torch.Tensor, "record_stream", lambda *args: None))
        stack.callback(_choose_by_default, torch.get_default_device())
        stack.enter_context(warnings.catch_warnings())
        for message in _FALSE_ALARMS:
            warnings.filterwarnings("ignore", message=message)
        yield reason


def _device(stack: ExitStack) -> tuple[CurrentDevice, str]:
    """Have torch's C++ know the device until the stack is closed; return it, and why that was not possible."""
    if torch.backends.cuda.is_built() or torch.accelerator.is_available():
        return CurrentDevice(), ""
    loaded, reason = library.load_or_build()
    if loaded is None:
        return CurrentDevice(), reason
    # the engine counts the devices at the first backward, and would start a thread for each
    torch.ones(1, device="cpu", requires_grad=True).sum().backward()
    if loaded.memwatch_begin():
        stack.callback(loaded.memwatch_end)
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        return CurrentDevice(loaded), ""
    return CurrentDevice(), ""


def _pinned(tensor: torch.Tensor, device: object = None) -> torch.Tensor:
    """Return a copy, as pinning makes one."""
    return tensor.clone()


def _choose_by_default(device: torch.device) -> None:
    """Have new tensors be made on a device again; on the host by having no default, which costs nothing."""
    if torch.get_default_device() != device:
        torch.set_default_device(None if device.type == "cpu" else device)
