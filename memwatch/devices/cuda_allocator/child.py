"""Run a trace of allocations and frees in torch's own CUDA allocator, in this process and without a GPU.

Usage: `python -I child.py FOLDER`. The process does not import torch. It loads a stand-in for the CUDA driver, which
also loads torch's allocator and runs the trace. FOLDER has the stand-in under the names of CUDA's libraries, and
`LD_LIBRARY_PATH` begins with FOLDER, so that the dynamic loader finds the stand-in first.

Standard input has a line of JSON, and then three arrays of 64-bit integers with a value for each event: the blocks, the
sizes (-1 for a free) and the streams. Standard output gets a line of JSON, and then two such arrays: the reserved and
the allocated bytes after each event.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any, BinaryIO, Final, TypeAlias

_MESSAGE_CHARS: Final = 4096
"""Bytes of the buffer for the error message of the stand-in. A guess."""
_FIGURES: Final = ("most_reserved_bytes", "retries", "refused_event", "device_bytes")
Column: TypeAlias = "ctypes.Array[ctypes.c_int64]"
_CUDA: Final = ("libcudart", "libcuda.so", "libnvidia-ml")
"""How the file names of CUDA's libraries begin."""


class Places(ctypes.Structure):
    """The index of each virtual function in the table of torch's allocator class. It is `Places` of `replay.cpp`."""

    _fields_ = [(name, ctypes.c_int64) for name in ("allocate", "raw_deleter", "init")]


class Outcome(ctypes.Structure):
    """The figures of a trace that was run. It is `Outcome` of `replay.cpp`."""

    _fields_ = [(name, ctypes.c_int64) for name in _FIGURES]


def main(folder: str) -> int:
    """Run the trace from standard input, and write the answer to standard output."""
    order = json.loads(sys.stdin.buffer.readline())
    driver = load_driver(order["names"])
    if foreign := _foreign(folder):  # before any code of torch runs
        return _answer({"error": f"another CUDA library is loaded: {foreign}"})
    figures, reserved, allocated = replay(driver, order, sys.stdin.buffer)
    if foreign := _foreign(folder):  # `replay` has loaded torch's libraries, and all that they need
        return _answer({"error": f"another CUDA library is loaded: {foreign}"})
    return _answer(figures, *([] if "error" in figures else [reserved, allocated]))


def load_driver(names: list[str]) -> ctypes.CDLL:
    """Load the stand-in under the name of each library of CUDA that torch needs, before torch's library does."""
    return [ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL) for name in names][-1]


def replay(
    driver: ctypes.CDLL, order: dict[str, Any], trace: BinaryIO
) -> tuple[dict[str, object], Column, Column]:
    """Run a trace from a file. Return its figures, and the reserved and the allocated bytes after each event.

    If the allocator cannot be loaded or rejects its settings, the figures are an "error" and its "status".
    """
    count = order["count"]
    columns = [(ctypes.c_int64 * count).from_buffer_copy(trace.read(8 * count)) for _ in range(3)]
    reserved, allocated = (ctypes.c_int64 * count)(), (ctypes.c_int64 * count)()
    outcome, message = Outcome(), ctypes.create_string_buffer(_MESSAGE_CHARS)
    status = driver.memwatch_replay(
        os.fsencode(order["c10"]),
        os.fsencode(order["c10_cuda"]),
        ctypes.byref(Places(**order["places"])),
        ctypes.c_int64(order["device_bytes"]),
        ctypes.c_int64(count),
        *columns,
        reserved,
        allocated,
        ctypes.byref(outcome),
        message,
        ctypes.c_int64(_MESSAGE_CHARS),
    )
    text = message.value.decode(errors="replace")
    if status:
        return {"error": text, "status": status}, reserved, allocated
    return {name: getattr(outcome, name) for name in _FIGURES} | {"message": text}, reserved, allocated


def _foreign(folder: str) -> str:
    """Return the path of a loaded library of CUDA that is not the stand-in; "" if there is none.

    With such a library, the process could use a GPU.
    """
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        # The sixth column is the path. Only lines of memory that has a path contain "/".
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")}
    loaded = (path for path in paths if os.path.basename(path).startswith(_CUDA))
    return next((path for path in loaded if os.path.dirname(path) != folder), "")


def _answer(figures: dict[str, object], *arrays: Column) -> int:
    out = sys.stdout.buffer
    out.write(json.dumps(figures).encode() + b"\n")
    for array in arrays:
        out.write(array)
    out.flush()
    # Exit without destructors. torch's static objects would free memory that the stand-in no longer has.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
