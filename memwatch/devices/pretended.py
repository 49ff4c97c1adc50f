"""A CUDA device that a program finds though there is none: for fake tensors, which need no memory there."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_ANSWERS: Final[dict[str, Any]] = {
    "is_available": True,
    "is_initialized": True,
    "init": None,
    "device_count": 1,
    "current_device": 0,
    "set_device": None,
    "synchronize": None,
    "empty_cache": None,
    "is_bf16_supported": True,
    "get_device_capability": (9, 0),
    "get_device_name": "pretended",
    "manual_seed": None,
    "manual_seed_all": None,
    "memory_allocated": 0,
    "max_memory_allocated": 0,
    "memory_reserved": 0,
    "max_memory_reserved": 0,
    "reset_peak_memory_stats": None,
    "memory_summary": "",
}
"""What functions of torch.cuda say of the device that is not there."""
_LIKE_THE_HOST: Final = ("Stream", "current_stream", "stream")
"""Names that torch.cpu has for programs that know no device; they do nothing."""


@contextlib.contextmanager
def pretended_accelerator() -> Iterator[None]:
    """Let programs inside find one CUDA device; a device that is there is asked as ever."""
    if torch.cuda.is_available():
        yield
        return
    with ExitStack() as stack:
        for name, answer in _ANSWERS.items():
            stack.enter_context(patch.object(torch.cuda, name, _saying(answer)))
        for name in _LIKE_THE_HOST:
            stack.enter_context(patch.object(torch.cuda, name, getattr(torch.cpu, name)))
        yield


def _saying(answer: Any) -> Any:
    return lambda *args, **kwargs: answer
