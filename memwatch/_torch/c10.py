"""c10's log level, a global variable of its shared library."""

from __future__ import annotations

import ctypes
import functools
import pathlib

import torch

from memwatch.signal_handlers import pass_on


@functools.cache
def log_level_flag() -> ctypes.c_int | None:
    """Return the variable that holds the level below which c10 prints nothing; None if it is not found."""
    try:
        library = ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib" / "libc10.so"))
        return ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    except (OSError, ValueError) as error:
        pass_on(error)
        return None
