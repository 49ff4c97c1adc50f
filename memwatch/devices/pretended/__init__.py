"""Pretend a CUDA device for a program with fake tensors, which need no memory.

The functions of torch's CUDA module are replaced by functions that need no GPU. If this torch is built without CUDA,
its C++ needs some more code, which `src/device.cpp` has. This library works with one version of torch. Its file name
contains the version and a digest of the source. A wheel has a library for each release of torch. For another torch, the
first estimate on a machine compiles the library in some seconds and puts it in the user's cache.
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
"""Functions of the CUDA module that always return the same result, and this result. The GPU is of the Hopper
generation."""
_BYTE_COUNTS: Final = (
    "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "device_memory_used",
)  # fmt: skip
"""Functions of the CUDA module that return byte counts. If a program calls one, the estimate has a note about it."""
_TOTAL_BYTES: Final = 80 << 30
"""Memory of the pretended GPU in bytes: 80 GiB, like an A100 or H100. A guess."""
_PROPERTIES: Final = {
    "name": "pretended", "major": 9, "minor": 0, "total_memory": _TOTAL_BYTES, "multi_processor_count": 132,
}  # fmt: skip
"""Properties of the pretended GPU: an H100 with 132 multiprocessors."""
_STATE_BYTES: Final = 16
"""Bytes of the state of CUDA's random generator: seed and offset."""
_LIKE_THE_HOST: Final = ("Stream", "Event", "current_stream", "stream")
"""Names in the CUDA module that torch.cpu has too. There they do nothing, so that a program can run on any device."""
_FALSE_ALARMS: Final = (
    "PyTorch was compiled without cuDNN",
    "Attempted to get default timeout for nccl backend",
    "Accessing the data pointer of FakeTensor",
)
"""The beginnings of warnings about this torch or fake tensors. They do not concern the program."""
_MARKS: Final = ("range_push", "range_pop", "range_start", "range_end", "mark")
"""Functions of the CUDA module.nvtx. They mark ranges for a profiler of the GPU."""
BUILT: Final = pathlib.Path(__file__).parent / "built"
"""The folder with the libraries of a wheel. A checkout does not have it."""
_TORCH: Final = pathlib.Path(torch.__file__).parent
_WHAT: Final = "the library by which this torch knows CUDA"
_FALLBACK: Final = "tensors cannot be moved to CUDA without it"
"""Words for an error of the compiler: the library, and the loss without it."""


class CurrentDevice:
    """The index of the current device. If the device is pretended in torch's C++, the index is kept there.

    Args:
        loaded: the library of `src/device.cpp`. None if it is not needed, or could not be loaded.
    """

    def __init__(self, loaded: ctypes.CDLL | None = None) -> None:
        self._loaded = loaded
        self._index = 0

    @property
    def is_known_to_torch(self) -> bool:
        """Whether the device is pretended in torch's C++ too."""
        return self._loaded is not None

    def get(self) -> int:
        """Return the index."""
        return self._index if self._loaded is None else int(self._loaded.memwatch_device())

    def set(self, device: Any) -> None:
        """Choose a device by its index, its name or a `torch.device`. Ignore a negative index, as torch does."""
        self.exchange(_index_of(device, self.get()))

    def exchange(self, index: int) -> int:
        """Choose an index, unless it is negative. Return the index before."""
        before = self.get()
        if index >= 0:
            self._index = index
            if self._loaded is not None:
                self._loaded.memwatch_set_device(index)
        return before


def answers(device: CurrentDevice, *, num_found: int, on_ask: Callable[[None], None]) -> dict[str, Any]:
    """Return the replacements of functions of the CUDA module by name. `pretended_cuda` has the same arguments."""

    def no_bytes(*args: Any, **kwargs: Any) -> int:
        on_ask(None)
        return 0

    def free_and_total(*args: Any, **kwargs: Any) -> tuple[int, int]:
        return _TOTAL_BYTES - no_bytes(), _TOTAL_BYTES  # all bytes are free, and `on_ask` is called

    def state(*args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.zeros(_STATE_BYTES, dtype=torch.uint8)

    return {
        **{name: _returning(result) for name, result in _ANSWERS.items()},
        **dict.fromkeys(_BYTE_COUNTS, no_bytes),
        "is_available": _returning(num_found > 0),
        "device_count": _returning(num_found),
        "memory_stats": lambda *args, **kwargs: defaultdict(int),
        "get_rng_state": state,
        "get_device_properties": _returning(SimpleNamespace(**_PROPERTIES)),
        "mem_get_info": free_and_total,
        "current_device": device.get,
        "set_device": device.set,
        "_exchange_device": device.exchange,
        "_maybe_exchange_device": device.exchange,
    }


def streams(device: CurrentDevice) -> dict[str, Any]:
    """Return the replacements of the streams and events of the CUDA module, by their names."""
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
            setattr(kind, name, _returning(None))

    def current_stream(device: Any = None) -> Stream:
        return Stream()

    return {
        "Stream": Stream,
        "Event": Event,
        "current_stream": current_stream,
        "default_stream": current_stream,
        "stream": nullcontext,
        "set_stream": _returning(None),
    }


def _index_of(device: Any, current: int) -> int:
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return current if index is None else index


def _returning(result: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: result


@contextlib.contextmanager
def pretended_cuda(*, num_found: int, on_ask: Callable[[None], None]) -> Iterator[str]:
    """Let the program inside put fake tensors on CUDA devices. If CUDA is available, change nothing.

    Args:
        num_found: how many devices `device_count()` returns.
        on_ask: called when the program reads how many bytes are in use, which are always 0.

    Yields:
        The reason why tensors cannot be moved to these devices; "" if they can.
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
        stack.callback(_restore_default_device, torch.get_default_device())
        stack.enter_context(warnings.catch_warnings())
        for message in _FALSE_ALARMS:
            warnings.filterwarnings("ignore", message=message)
        yield reason


def _device(stack: ExitStack) -> tuple[CurrentDevice, str]:
    """Pretend the device in torch's C++, if this torch needs it, until the stack is closed.

    Return the device, and the reason if this failed.
    """
    if torch.backends.cuda.is_built() or torch.accelerator.is_available():
        return CurrentDevice(), ""
    loaded, reason = load_or_build()
    if loaded is None:
        return CurrentDevice(), reason
    # At its first backward, autograd starts a thread for each device. Let it find none yet
    torch.ones(1, device="cpu", requires_grad=True).sum().backward()
    if loaded.memwatch_begin():
        stack.callback(loaded.memwatch_end)
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        return CurrentDevice(loaded), ""
    return CurrentDevice(), ""


def _pinned(tensor: torch.Tensor, device: object = None) -> torch.Tensor:
    """Return a copy, because pinning copies too."""
    return tensor.clone()


def _restore_default_device(device: torch.device) -> None:
    """Restore the default device. For the host set None, because a device, even "cpu", would slow down each call."""
    if torch.get_default_device() != device:
        torch.set_default_device(None if device.type == "cpu" else device)


def library_path() -> pathlib.Path:
    """Return the file of the library for this torch. It need not exist yet."""
    name = wheel_name()
    in_cache = device_file_name(torch.__version__, str(torch.version.git_version))
    return BUILT / name if (BUILT / name).exists() else build_cache.folder() / in_cache


def wheel_name() -> str:
    """Return the file name in a wheel of the library for this torch."""
    return device_file_name(build_cache.release_of(torch.__version__), str(torch.version.git_version))


def build_device() -> tuple[pathlib.Path, bool]:
    """Compile the library if its file does not exist yet. Return the file, and whether it was compiled now.

    Raises:
        MemwatchError: the compiler is missing, the cache cannot be written, or the source does not compile.
    """
    file = library_path()
    if file.parent == BUILT or build_cache.is_usable(file):
        return file, False
    torch_flags = (
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-I{_TORCH / 'include'}",
        f"-L{_TORCH / 'lib'}",
    )
    sources = map(str, sorted(DEVICE.sources.glob("*.cpp")))
    libraries = (f"-l{name}" for name in DEVICE.linked)
    with working("memwatch estimate"):
        build_cache.compile_to(file, [*DEVICE.flags, *torch_flags, *sources, *libraries], _WHAT, _FALLBACK)
    return file, True


@functools.cache
def load_or_build() -> tuple[ctypes.CDLL | None, str]:
    """Load the library, and compile it first if necessary. If this fails, return None and the reason as a sentence."""
    try:
        return ctypes.CDLL(str(build_device()[0])), ""
    except (MemwatchError, OSError) as error:
        return None, str(error)
