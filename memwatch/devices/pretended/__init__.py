"""A CUDA device that a program finds though there is none: for fake tensors, which need no memory there.

It is pretended in torch's C++, if this torch is built for the host alone, and in torch's Python. A torch without CUDA
lacks a few lines of C++, which `src/device.cpp` has. Their library serves one torch and one state of its source, and
its name contains both. A wheel has a library for each release of torch. Otherwise the first estimate on a machine
compiles it in some seconds and puts it in the user's cache.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import pathlib
import warnings
from collections import defaultdict
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import torch

from memwatch import build_cache
from memwatch.devices.adapters import namespace
from memwatch.errors import MemwatchError
from memwatch.libraries import DEVICE, device_file_name
from memwatch.progress import working

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ANSWERS: Final[dict[str, Any]] = {
    "is_current_stream_capturing": False,
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
"""The result of each function of torch's CUDA module that has the same result at all times: a GPU of Hopper's kind."""
_ASKED: Final = (
    "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "device_memory_used",
)  # fmt: skip
"""Functions that return byte counts. If a program calls them, the estimate contains a note about it."""
_TOTAL_BYTES: Final = 80 << 30
"""Memory of the pretended GPU: 80 GiB, like an A100 or H100. A guess."""
_PROPERTIES: Final = {
    "name": "pretended", "major": 9, "minor": 0, "total_memory": _TOTAL_BYTES, "multi_processor_count": 132,
}  # fmt: skip
"""Properties of the pretended GPU: an H100 with 132 multiprocessors."""
_STATE_BYTES: Final = 16
"""Bytes of a random state of CUDA: seed and offset."""
_LIKE_THE_HOST: Final = ("Stream", "Event", "current_stream", "stream")
"""Names that torch.cpu has for programs that know no device; they do nothing."""
_FALSE_ALARMS: Final = (
    "PyTorch was compiled without cuDNN",
    "Attempted to get default timeout for nccl backend",
    "Accessing the data pointer of FakeTensor",
)
"""How warnings begin that are about this torch or about fake tensors, and not about the program."""
_MARKS: Final = ("range_push", "range_pop", "range_start", "range_end", "mark")
BUILT: Final = pathlib.Path(__file__).parent / "built"
"""The folder with the libraries of a wheel. A checkout does not have it."""
_TORCH: Final = pathlib.Path(torch.__file__).parent
_WHAT: Final = "the library by which this torch knows CUDA"
_FALLBACK: Final = "tensors cannot be moved to CUDA without it"


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
    """Return the replacements of torch's functions for CUDA, by their names; see `pretended_cuda`."""

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
    """Return the replacements of streams and events, by their names there."""
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


@contextlib.contextmanager
def pretended_cuda(*, num_found: int, on_ask: Callable[[None], None]) -> Iterator[str]:
    """Let programs inside put fake tensors on CUDA devices. A real device is used as usual.

    Args:
        num_found: how many there are, by `device_count()`.
        on_ask: called when the program reads how much memory is in use; the result is zero.

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
        # autocast and GradScaler disable themselves without a GPU
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
    loaded, reason = load_or_build()
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
    """Restore the default device. For the host this removes the default, which costs nothing."""
    if torch.get_default_device() != device:
        torch.set_default_device(None if device.type == "cpu" else device)


def library_path() -> pathlib.Path:
    """Return the file that holds, or would hold, the library for this torch."""
    name = wheel_name()
    in_cache = device_file_name(torch.__version__, str(torch.version.git_version))
    return BUILT / name if (BUILT / name).exists() else build_cache.folder() / in_cache


def wheel_name() -> str:
    """Return the name that the library for this torch has in a wheel."""
    return device_file_name(build_cache.release_of(torch.__version__), str(torch.version.git_version))


def build_device() -> tuple[pathlib.Path, bool]:
    """Compile the library if it does not exist yet. Return it, and whether it was compiled now.

    Raises:
        MemwatchError: the compiler is missing, the cache cannot be written, or the source does not compile.
    """
    file = library_path()
    if file.parent == BUILT or build_cache.is_usable(file):
        return file, False
    torchs = (
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-I{_TORCH / 'include'}",
        f"-L{_TORCH / 'lib'}",
    )
    sources = map(str, sorted(DEVICE.sources.glob("*.cpp")))
    libraries = (f"-l{name}" for name in DEVICE.linked)
    with working("memwatch estimate"):
        build_cache.compile_to(file, [*DEVICE.flags, *torchs, *sources, *libraries], _WHAT, _FALLBACK)
    return file, True


@functools.cache
def load_or_build() -> tuple[ctypes.CDLL | None, str]:
    """Return the library, and compile it first if necessary. Or return None and a sentence with the reason."""
    try:
        return ctypes.CDLL(str(build_device()[0])), ""
    except (MemwatchError, OSError) as error:
        return None, str(error)
