"""What torch says of the CUDA device that is not there."""

from __future__ import annotations

from collections import defaultdict
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable

_ANSWERS: Final[dict[str, Any]] = {
    "is_initialized": True,
    "init": None,
    "synchronize": None,
    "empty_cache": None,
    "ipc_collect": None,
    "is_bf16_supported": True,
    "is_tf32_supported": True,
    "can_device_access_peer": True,
    "get_device_capability": (9, 0),
    "get_device_name": "pretended",
    "manual_seed": None,
    "manual_seed_all": None,
    "seed": None,
    "seed_all": None,
    "set_rng_state": None,
    "set_rng_state_all": None,
    "reset_peak_memory_stats": None,
    "reset_max_memory_allocated": None,
    "reset_accumulated_memory_stats": None,
    "set_per_process_memory_fraction": None,
    "memory_snapshot": (),
    "memory_summary": "",
    "utilization": 0,
}
_ASKED: Final = (
    "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "device_memory_used",
)  # fmt: skip
"""Questions for bytes; a program that decides by them is told so."""
_TOTAL_BYTES: Final = 80 << 30
_PROPERTIES: Final = {
    "name": "pretended", "major": 9, "minor": 0, "total_memory": _TOTAL_BYTES, "multi_processor_count": 132,
}  # fmt: skip
_STATE_BYTES: Final = 16
_LIKE_THE_HOST: Final = ("Stream", "Event", "current_stream", "stream")
"""Names that torch.cpu has for programs that know no device; they do nothing."""


class CurrentDevice:
    """The index of the device that the program has chosen, which torch's C++ knows too where it is pretended there."""

    def __init__(self, loaded: ctypes.CDLL | None = None) -> None:
        self._loaded = loaded
        self._index = 0

    @property
    def is_known_to_torch(self) -> bool:
        """Whether ops find the device."""
        return self._loaded is not None

    def get(self) -> int:
        """Return the index."""
        return self._index if self._loaded is None else int(self._loaded.memwatch_device())

    def set(self, device: Any) -> None:
        """Choose a device as torch does: an index, a name or a device; a negative one is ignored."""
        self.exchange(_index_of(device, self.get()))

    def exchange(self, index: int) -> int:
        """Choose an index; return the one before."""
        before = self.get()
        if index >= 0:
            self._index = index
            if self._loaded is not None:
                self._loaded.memwatch_set_device(index)
        return before


def answers(device: CurrentDevice, *, num_found: int, on_ask: Callable[[None], None]) -> dict[str, Any]:
    """Return what stands for torch's functions for CUDA, by their names; see `pretended_cuda`."""

    def asked(*args: Any, **kwargs: Any) -> int:
        on_ask(None)
        return 0

    def free_and_total(*args: Any, **kwargs: Any) -> tuple[int, int]:
        return _TOTAL_BYTES - asked(), _TOTAL_BYTES

    def state(*args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.zeros(_STATE_BYTES, dtype=torch.uint8)

    return {
        **{name: _saying(answer) for name, answer in _ANSWERS.items()},
        **dict.fromkeys(_ASKED, asked),
        "is_available": _saying(num_found > 0),
        "device_count": _saying(num_found),
        "memory_stats": lambda *args, **kwargs: defaultdict(int),
        "get_rng_state": state,
        "get_device_properties": _saying(SimpleNamespace(**_PROPERTIES)),
        "mem_get_info": free_and_total,
        "current_device": device.get,
        "set_device": device.set,
        "_exchange_device": device.exchange,
        "_maybe_exchange_device": device.exchange,
    }


def streams(device: CurrentDevice) -> dict[str, Any]:
    """Return what stands for streams and events, by their names there."""
    if not device.is_known_to_torch:
        return {name: getattr(torch.cpu, name) for name in _LIKE_THE_HOST}

    class Event(torch.Event):
        def __new__(cls, *args: Any, **kwargs: Any) -> Event:
            return super().__new__(cls, device="cuda")

        def elapsed_time(self, end_event: Any) -> float:
            return 0.0

    class Stream(torch.Stream):
        def __new__(cls, *args: Any, **kwargs: Any) -> Stream:
            return super().__new__(cls, device="cuda")

        def record_event(self, event: Any = None) -> Any:
            return event or Event()

    for kind, names in ((Stream, ("wait_event", "wait_stream")), (Event, ("record", "wait"))):
        for name in names:
            setattr(kind, name, _saying(None))

    def current_stream(device: Any = None) -> Stream:
        return Stream()

    return {
        "Stream": Stream,
        "Event": Event,
        "current_stream": current_stream,
        "default_stream": current_stream,
        "stream": nullcontext,
        "set_stream": _saying(None),
    }


def _index_of(device: Any, current: int) -> int:
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return current if index is None else index


def _saying(answer: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: answer
