"""Find, build and load the native recorder.

The file's name holds a digest of the sources and of the versions they were built for, so that a library of
another torch, another Python or older sources is never loaded.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import pathlib
import sys
import sysconfig
import tempfile
from typing import Any, Final

import torch

from memwatch.errors import MemwatchError

_HERE: Final = pathlib.Path(__file__).parent
_NAME: Final = "_recorder"
_FLAGS: Final = ("-O2", "-g0", "-std=c++20", "-fvisibility=hidden")
_FIRST_PYTHON: Final = (3, 11)
_OFF: Final = "MEMWATCH_NATIVE"


@functools.cache
def path() -> pathlib.Path:
    """Give the file that holds, or would hold, the library for this torch and this Python."""
    digest = hashlib.sha256(f"{torch.__version__} {sys.version} {_FLAGS}".encode())
    for source in sorted((_HERE / "src").iterdir()):
        digest.update(source.read_bytes())
    return _HERE / "built" / f"{_NAME}-{digest.hexdigest()[:16]}{sysconfig.get_config_var('EXT_SUFFIX')}"


def load() -> Any:
    """Return the module, or None where it is not built or MEMWATCH_NATIVE=0 switches it off."""
    return None if os.environ.get(_OFF) == "0" else _load()


@functools.cache
def _load() -> Any:
    spec = importlib.util.spec_from_file_location(f"{__package__}.{_NAME}", path())
    if spec is None or spec.loader is None or not path().exists():
        return None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError:  # the system's libraries have changed since it was built
        return None
    return module


def is_built() -> bool:
    """Tell whether the library for this torch, this Python and these sources is there."""
    return path().exists()


def build() -> pathlib.Path:
    """Compile the library with the machine's C++ compiler; about a minute.

    Returns:
        The file, which is replaced whole.

    Raises:
        MemwatchError: this Python is too old, or there is no compiler, no header of Python's, or no place to write.
    """
    if sys.version_info < _FIRST_PYTHON:
        raise MemwatchError(
            f"the native recorder needs Python 3.11; this is {sys.version.split()[0]}: the Python recorder is used"
        )
    try:
        with tempfile.TemporaryDirectory() as folder:
            made = _compile(folder)
            path().parent.mkdir(exist_ok=True)
            partial = path().with_suffix(f".{os.getpid()}")
            partial.write_bytes(made.read_bytes())
            partial.replace(path())
            for other in path().parent.glob(f"{_NAME}-*"):
                if other != path():  # of an older torch or older sources
                    other.unlink()
    except (Exception, SystemExit) as error:  # setuptools exits, and has errors of many kinds
        raise MemwatchError(
            f"the native recorder could not be built: {error}. It needs a C++ compiler and the headers of Python "
            "(on Debian: apt-get install g++ python3-dev); without it the Python recorder is used"
        ) from error
    _load.cache_clear()
    return path()


def _compile(folder: str) -> pathlib.Path:
    from setuptools import Distribution
    from torch.utils.cpp_extension import BuildExtension, CppExtension

    sources = [str(source) for source in sorted((_HERE / "src").glob("*.cpp"))]
    extension = CppExtension(_NAME, sources, extra_compile_args=list(_FLAGS))
    command: Any = BuildExtension.with_options(use_ninja=False)
    distribution = Distribution(
        {"name": _NAME, "ext_modules": [extension], "cmdclass": {"build_ext": command}}
    )
    task: Any = distribution.get_command_obj("build_ext")
    task.build_lib = task.build_temp = folder
    task.ensure_finalized()
    task.run()
    return next(pathlib.Path(folder).rglob(f"{_NAME}*{sysconfig.get_config_var('SHLIB_SUFFIX') or '.so'}"))
