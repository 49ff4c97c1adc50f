"""Run torch's own CUDA caching allocator without a GPU: `libc10_cuda.so` of a CUDA build runs on a stand-in driver.

torch reads the settings when the library is loaded, so each setting has a child process that loads the library. The
driver replaces CUDA's libraries, so the child never uses a real device. If torch has no `libc10_cuda.so`,
`choose_allocator` returns the model instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch

from memwatch import build_cache
from memwatch.devices.cuda_allocator.model import Model
from memwatch.devices.cuda_allocator.trace import Outcome, SettingsError
from memwatch.errors import MemwatchError
from memwatch.libraries import DRIVER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memwatch.devices.cuda_allocator.trace import Trace

VARIABLE: Final = "MEMWATCH_C10_CUDA"
"""The environment variable that names the `libc10_cuda.so` of another torch, with its headers in `../include`."""
_LIBRARY: Final = "libc10_cuda.so"
_CHILD: Final = pathlib.Path(__file__).parent / "child.py"
_RUNTIME: Final = re.compile(rb"libcudart\.so\.\d+(?:\.\d+)*")
_DRIVERS: Final = ("libcuda.so.1", "libnvidia-ml.so.1")
_SETTINGS: Final = "PYTORCH_ALLOC_CONF"
_NOT_INHERITED: Final = ("PYTORCH_", "TORCH_", "CUDA_", "HIP_", "LD_PRELOAD")
"""Beginnings of variables that could change the behaviour of torch's library in the child."""
_REJECTED: Final = 2  # the status of `memwatch_replay` for settings
_ALLOWED_S: Final = 600
"""Time for one setting. A guess: a trace of a million events takes two seconds."""
_MESSAGE_CHARS: Final = 300
"""Characters of the child's error that a message shows. A guess."""
_COMMENT: Final = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_VIRTUAL: Final = re.compile(r"\bvirtual\b[^;{(]*?(~?\w+)\s*\(")
Allocator: TypeAlias = "TorchAllocator | Model"
BUILT: Final = pathlib.Path(__file__).parent / "built"
"""The folder of the package into which a wheel puts the library. A checkout does not have it."""
_WHAT: Final = "the stand-in for CUDA's driver"
_FALLBACK: Final = "reserved bytes are those of memwatch's model of the allocator"


@dataclass(frozen=True)
class TorchAllocator:
    """The allocator of a CUDA build of torch.

    Attributes:
        file: its `libc10_cuda.so`.
        version: the version of that torch.
        driver: the stand-in driver.
        places: the positions of the virtual functions that the driver calls.
    """

    file: pathlib.Path
    version: str
    driver: pathlib.Path
    places: Mapping[str, int]

    @property
    def name(self) -> str:
        """The allocator whose reserved bytes these are."""
        return f"the allocator of torch {self.version}"

    def run(self, trace: Trace, settings: str, device_bytes: int) -> Outcome:
        """Return the outcome of a trace in the allocator.

        Raises:
            SettingsError: it does not accept the settings.
            MemwatchError: it could not be run.
        """
        (outcome,) = self.run_many(trace, [settings], device_bytes)
        if isinstance(outcome, SettingsError):
            raise outcome
        return outcome

    def run_many(
        self, trace: Trace, settings: Sequence[str], device_bytes: int
    ) -> list[Outcome | SettingsError]:
        """Return the outcome of a trace under each of several settings. There is one child per CPU at a time."""
        with self.folder() as (folder, names), tempfile.TemporaryFile() as asked:
            asked.write(self.order(trace, names, device_bytes))
            asked.flush()
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                return list(
                    pool.map(lambda each: self._run(asked.fileno(), folder, each, len(trace)), settings)
                )

    def order(self, trace: Trace, names: Sequence[str], device_bytes: int) -> bytes:
        """Return the input of a child: a line of JSON, and the columns of a trace."""
        order = {
            "count": len(trace),
            "names": names,
            "c10": str(self.file.parent / "libc10.so"),
            "c10_cuda": str(self.file),
            "places": dict(self.places),
            "device_bytes": device_bytes,
        }
        columns = (trace.blocks, trace.sizes, trace.streams)
        parts = [np.ascontiguousarray(column, dtype=np.int64).tobytes() for column in columns]
        return b"".join([json.dumps(order).encode() + b"\n", *parts])

    @contextlib.contextmanager
    def folder(self) -> Iterator[tuple[str, list[str]]]:
        """Make a folder with links to the driver, under the names of CUDA's libraries."""
        needed = {name.decode() for name in _RUNTIME.findall(self.file.read_bytes())}
        names = [*sorted(needed), *_DRIVERS]
        with tempfile.TemporaryDirectory() as folder:
            for name in names:
                os.symlink(self.driver, os.path.join(folder, name))
            yield os.path.realpath(folder), names

    def environment(self, folder: str, settings: str) -> dict[str, str]:
        """Return the environment of a child, which finds the driver in a folder and runs with some settings."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
        paths = [folder, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return {**kept, "LD_LIBRARY_PATH": os.pathsep.join(paths), _SETTINGS: settings}

    def _run(self, asked: int, folder: str, settings: str, count: int) -> Outcome | SettingsError:
        command = [sys.executable, "-I", "-S", str(_CHILD), folder]
        # open the file again for each child, so that each child reads it from its start
        with open(f"/proc/self/fd/{asked}", "rb") as order:
            try:
                child = subprocess.run(  # noqa: S603  # our own command
                    command,
                    stdin=order,
                    capture_output=True,
                    env=self.environment(folder, settings),
                    timeout=_ALLOWED_S,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise self._failed(str(error)) from error
        line, _, arrays = child.stdout.partition(b"\n")
        try:
            figures: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise self._failed(_ending(child)) from error
        if "error" in figures:
            text = " ".join(str(figures["error"]).split())[:_MESSAGE_CHARS]
            if figures.get("status") == _REJECTED:
                return SettingsError(f"torch {self.version} does not accept {settings!r}: {text}")
            raise self._failed(text)
        after = np.frombuffer(arrays, dtype=np.int64)
        if len(after) != 2 * count:
            raise self._failed("its answer is incomplete")
        refused = figures["refused_event"]
        return Outcome(
            settings,
            after[:count],
            after[count:],
            figures["most_reserved_bytes"],
            figures["retries"],
            None if refused < 0 else refused,
        )

    def _failed(self, reason: str) -> MemwatchError:
        return MemwatchError(f"{self.file} could not be run: {reason}")


def _ending(child: subprocess.CompletedProcess[bytes]) -> str:
    """Return a sentence about the end of a child that gave no answer."""
    said = child.stderr.decode(errors="replace").strip().splitlines()
    last = f": {said[-1][:_MESSAGE_CHARS]}" if said else ""
    if child.returncode < 0:
        return f"its process was ended by signal {-child.returncode}{last}"
    return f"its process ended with {child.returncode}{last}"


def find_torchs_own() -> TorchAllocator:
    """Return the allocator of the torch that runs here, or of the torch that `MEMWATCH_C10_CUDA` names.

    Raises:
        MemwatchError: it is missing, or the driver cannot be built; the message gives the reason in one line.
    """
    named = os.environ.get(VARIABLE)
    file = pathlib.Path(named) if named else pathlib.Path(torch.__file__).parent / "lib" / _LIBRARY
    if sys.platform != "linux":
        raise MemwatchError("torch's own allocator runs without a GPU on Linux only")
    if not sys.executable:
        raise MemwatchError(
            "torch's own allocator needs a Python to run in, and this process does not know its own"
        )
    if not file.is_file():
        if named:
            raise MemwatchError(f"{VARIABLE} names {named}, which is not a file; name a {_LIBRARY}")
        raise MemwatchError(f"torch {torch.__version__} is not a CUDA build: it has no {_LIBRARY}")
    if named and (reason := build_cache.reason_to_distrust(file)):
        raise MemwatchError(f"{VARIABLE} is not used: {reason}")
    torch_folder = file.absolute().parent.parent
    return TorchAllocator(
        file.absolute(), _version_of(torch_folder), build_driver()[0], _places(torch_folder / "include")
    )


def _version_of(torch_folder: pathlib.Path) -> str:
    try:
        text = (torch_folder / "version.py").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"__version__ = '([^']{1,60})'", text)
    return found[1] if found else "of an unknown version"


def _places(include: pathlib.Path) -> dict[str, int]:
    """Return the positions of virtual functions in the table of torch's CUDA allocator.

    The positions differ between versions of torch. For example, 2.10 added `getMemoryInfo` before the functions of
    CUDA. So memwatch counts them in the headers, in the order of a compiler's table. A destructor takes two positions.
    """
    names: list[str] = []
    for file, owner in (
        ("c10/core/Allocator.h", "Allocator"),
        ("c10/core/CachingDeviceAllocator.h", "DeviceAllocator"),
        ("c10/cuda/CUDACachingAllocator.h", "CUDAAllocator"),
    ):
        try:
            text = _COMMENT.sub("", (include / file).read_text(encoding="utf-8"))
        except OSError as error:
            raise MemwatchError(
                f"torch's own allocator is not run: {include / file} cannot be read ({error.strerror})"
            ) from error
        body = re.search(rf"\b(?:struct|class) (?:C10_\w+ )?{owner}\b[^;{{]*\{{(.*?)\n\}};", text, re.DOTALL)
        for name in _VIRTUAL.findall(body[1]) if body else []:
            names += [name, name] if name.startswith("~") else [name]
    try:
        return {
            "allocate": names.index("allocate"),
            "raw_deleter": names.index("raw_deleter"),
            "init": names.index("init"),
        }
    except ValueError as error:
        raise MemwatchError(
            f"torch's own allocator is not run: its class in {include} is not the one that memwatch knows"
        ) from error


def choose_allocator() -> tuple[Allocator, str]:
    """Return torch's own allocator and ""; or the model, and the reason why torch's own allocator cannot run."""
    try:
        return find_torchs_own(), ""
    except MemwatchError as error:
        return Model(), str(error)


def driver_path() -> pathlib.Path:
    """Return the file that holds, or would hold, the library."""
    name = DRIVER.file_name()
    return BUILT / name if (BUILT / name).exists() else build_cache.folder() / name


def build_driver() -> tuple[pathlib.Path, bool]:
    """Compile the library if it does not exist yet. Return it, and whether it was compiled now.

    Raises:
        MemwatchError: a compiler or a place to write is missing, or the compiler refused the source.
    """
    file = driver_path()
    if file.parent == BUILT or build_cache.is_usable(file):
        return file, False
    sources = map(str, sorted(DRIVER.sources.glob("*.cpp")))
    build_cache.compile_to(file, [*DRIVER.flags, *sources, "-ldl"], _WHAT, _FALLBACK)
    return file, True
