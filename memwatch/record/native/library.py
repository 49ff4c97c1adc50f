"""Find, build and load the native recorder. If it is missing, return a remark on how the user can build it."""

from __future__ import annotations

import functools
import importlib.util
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from typing import Any, Final

import torch

from memwatch import build_cache
from memwatch._torch.autograd_state import use_compiled
from memwatch.errors import MemwatchError
from memwatch.libraries import RECORDER, recorder_file_name
from memwatch.output_files import OutputError
from memwatch.record.native.compile import NO_COMPILER, NO_SETUPTOOLS

SOURCES: Final = RECORDER.sources
COMPILE: Final = pathlib.Path(__file__).parent / "compile.py"
BUILT: Final = pathlib.Path(__file__).parent / "built"
"""The folder with the libraries of a wheel. A checkout does not have it."""
_VARIABLE: Final = "MEMWATCH_NATIVE"
"""The environment variable; its value 0 switches the native recorder off."""
_FALLBACK: Final = "the Python recorder is used until then"
_ERROR_LINE: Final = re.compile(r"\berror\b[^:]*:", re.IGNORECASE)


def path() -> pathlib.Path:
    """Return the file of the library for this torch and this Python, whether it exists or not.

    A wheel's library that loads comes first, then the library that `memwatch build` puts into the cache.
    """
    compiled = BUILT / wheel_name()
    return (
        compiled
        if compiled.exists() and not _fails_to_load(compiled)
        else build_cache.folder() / _file_name(torch.__version__)
    )


def wheel_name() -> str:
    """Return the name that the library for this torch and this Python has in a wheel."""
    return _file_name(build_cache.release_of(torch.__version__))


def torch_releases_in_wheel() -> list[str]:
    """Return the releases of torch that the wheel's libraries support."""
    names = (file.name.split("-")[1].removeprefix("torch") for file in BUILT.glob(f"{RECORDER.stem}-torch*"))
    return sorted(names, key=lambda release: [int(part) for part in re.findall(r"\d+", release)])


@functools.cache
def _file_name(torch_version: str) -> str:
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return recorder_file_name(torch_version, str(torch.version.git_version), python, _suffix(), SOURCES)


def _suffix() -> str:
    """Return the ending of compiled modules, which contains this Python's ABI."""
    return sysconfig.get_config_var("EXT_SUFFIX") or ".so"


def load() -> Any:
    """Return the module.

    It is None if MEMWATCH_NATIVE=0 switches it off, or if the library is missing, fails to load, or is not safe (see
    `reason_to_distrust`).
    """
    return _load(path()) if is_wanted() and not reason_to_distrust() else None


def reason_to_distrust() -> str:
    """Return why other users may have written the library, which then is not loaded. Empty if it is safe."""
    file = path()
    return build_cache.reason_to_distrust(file) if file.parent != BUILT and file.exists() else ""


def is_wanted() -> bool:
    """Return False if MEMWATCH_NATIVE=0 switches the native recorder off."""
    return os.environ.get(_VARIABLE) != "0"


def _fails_to_load(file: pathlib.Path) -> bool:
    """Return whether a wheel's library does not load here, for example because torch was compiled differently."""
    return is_wanted() and _load(file) is None


@functools.cache
def _load(file: pathlib.Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"{__package__}.{RECORDER.stem}", file)
    if spec is None or spec.loader is None or not file.exists():
        return None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError:  # the system's libraries have changed since it was built
        return None
    use_compiled(module)
    return module


def is_built() -> bool:
    """Return True if the library for this torch, this Python and these sources exists and loads."""
    return not reason_to_distrust() and _load(path()) is not None


def build() -> pathlib.Path:
    """Compile the library with the machine's C++ compiler, which takes about a minute.

    Returns:
        The file. It is replaced atomically. Libraries of other versions stay.

    Raises:
        MemwatchError: the cache cannot be written, Python's headers or the compiler are missing, or the sources do not
            compile.
    """
    build_cache.require_writable("the native recorder", _FALLBACK)
    _require_headers()
    file = path()
    try:
        with tempfile.TemporaryDirectory() as folder:
            build_cache.put(_compile(folder), file)
    except (OSError, OutputError) as error:
        raise MemwatchError(f"the native recorder was not built: {error}; {_FALLBACK}") from error
    _load.cache_clear()
    return file


def _require_headers() -> None:
    header = _python_header()
    if not header.exists():
        raise MemwatchError(
            f"the native recorder was not built: the headers of Python are missing ({header}). "
            f"Install them (on Debian: apt-get install python3-dev); {_FALLBACK}"
        )


def _python_header() -> pathlib.Path:
    return pathlib.Path(sysconfig.get_paths()["include"]) / "Python.h"


def _compile(folder: str) -> pathlib.Path:
    """Compile in a child process. Return the library that it made in a folder."""
    sources = [str(source) for source in sorted(SOURCES.glob("*.cpp"))]
    # run the copy: beside the original, the child would import memwatch's modules instead of others of the same name
    script = shutil.copyfile(COMPILE, pathlib.Path(folder, "compile.py"))
    command = [sys.executable, str(script), RECORDER.stem, folder, *RECORDER.flags, "--", *sources]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    child = subprocess.run(  # noqa: S603  # the command is built here
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        encoding="utf-8", errors="replace", check=False,
    )  # fmt: skip
    if child.returncode != 0:
        raise MemwatchError(_reason(child.returncode, child.stdout.splitlines()))
    pattern = f"{RECORDER.stem}*{sysconfig.get_config_var('SHLIB_SUFFIX') or '.so'}"
    for made in pathlib.Path(folder).rglob(pattern):
        return made
    raise FileNotFoundError(f"the compiler left no {pattern}")


def _reason(status: int, output: list[str]) -> str:
    """Return a message for the user: the failure, and the next step."""
    last = output[-1].strip() if output else f"exit status {status}"
    if status == NO_COMPILER:
        return (
            f"the native recorder was not built: there is no C++ compiler ({last!r} was not found). Install one "
            f"(on Debian: apt-get install g++), or name yours in the environment variable CXX; {_FALLBACK}"
        )
    if status == NO_SETUPTOOLS:
        return (
            "the native recorder was not built: the package setuptools is not installed: "
            f"pip install 'memwatch[build]'; {_FALLBACK}"
        )
    first_error = next((line.strip() for line in output if _ERROR_LINE.search(line)), last)
    return (
        f"the native recorder was not built: its source does not compile for torch {torch.__version__}: {first_error}. "
        "It needs a compiler of C++20 (GCC 11 or clang 14) and a torch that memwatch knows; if yours are, please "
        "report that line. The Python recorder is used instead"
    )


def build_recorder() -> tuple[pathlib.Path, bool]:
    """Compile the native recorder, unless it exists already.

    Returns:
        The library, and whether it was compiled now.

    Raises:
        MemwatchError: it could not be compiled. The Python recorder is used then.
    """
    if is_built():
        return path(), False
    return build(), True


_SLOWER: Final = "the recorder in Python was used, which takes two to five times as long"
REMARK: Final = f"{_SLOWER}: `memwatch build` compiles the native one, once for this torch"
_NOT_BUILDABLE: Final = (
    f"{_SLOWER}: this installation has no native one, and `memwatch build` needs {{missing}}"
)
_DISTRUSTED: Final = (
    f"the native recorder was not loaded, because {{reason}}. {_SLOWER[0].upper()}{_SLOWER[1:]}"
)
_remarks_made: Final[list[str]] = []


def remark() -> str:
    """Return a line for the user about a missing recorder. Empty if it is built or not wanted."""
    if not is_wanted() or is_built():
        return ""
    reason = reason_to_distrust()
    if reason:
        return _DISTRUSTED.format(reason=reason)
    missing = _missing_for_build()
    return _remark_about_wheel() or (_NOT_BUILDABLE.format(missing=missing) if missing else REMARK)


def _remark_about_wheel() -> str:
    """Return the line for a user whose wheel has no recorder for this torch."""
    wheel = torch_releases_in_wheel()
    if not wheel:
        return ""
    advice = "" if _missing_for_build() else "; `memwatch build` compiles one for it"
    return (
        f"memwatch was installed with native recorders for torch {', '.join(wheel)}, and none of them loads with this "
        f"torch {torch.__version__}: {_SLOWER}{advice}"
    )


def remark_once() -> str:
    """Return the line once per process, and empty text afterwards."""
    text = "" if _remarks_made else remark()
    if text:
        _remarks_made.append(text)
    return text


def _missing_for_build() -> str:
    """Return the first thing that a build needs and does not find here. Empty if a build can succeed."""
    header = _python_header()
    needs = (
        (_has_compiler(), "a C++ compiler"),
        (header.exists(), f"the headers of Python ({header})"),
        (_may_write(), f"to write into {build_cache.folder()} (MEMWATCH_CACHE names another folder)"),
    )
    return next((need for is_there, need in needs if not is_there), "")


def _has_compiler() -> bool:
    words = shlex.split(os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++")
    return bool(words) and shutil.which(words[0]) is not None


def _may_write() -> bool:
    """Return True if the cache folder, or the nearest folder above it that exists, may be written."""
    folder = build_cache.folder()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK)
