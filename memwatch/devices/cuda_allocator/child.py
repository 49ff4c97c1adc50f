"""Run a trace in torch's own CUDA allocator, in this process. It loads one library of memwatch, and no torch.

Usage: `python -I child.py FOLDER`. The folder has the stand-in driver under the names of CUDA's libraries, and the
dynamic loader prefers it (`LD_LIBRARY_PATH`). Standard input has a line of JSON, then the trace: the block, the size
(-1 for a free) and the stream of each event, as 64-bit integers. Standard output gets a line of JSON, then the
reserved and the allocated bytes after each event.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any, BinaryIO, Final, TypeAlias

_MESSAGE_CHARS: Final = 4096
"""Bytes of the buffer for the library's error message. A guess."""
_FIGURES: Final = ("most_reserved_bytes", "retries", "refused_event", "device_bytes")
Column: TypeAlias = "ctypes.Array[ctypes.c_int64]"
_CUDA: Final = ("libcudart", "libcuda.so", "libnvidia-ml")


class Places(ctypes.Structure):
    """Where torch's allocator has its virtual functions; `Places` of `replay.cpp`."""

    _fields_ = [(name, ctypes.c_int64) for name in ("allocate", "raw_deleter", "init")]


class Outcome(ctypes.Structure):
    """The figures of a trace; `Outcome` of `replay.cpp`."""

    _fields_ = [(name, ctypes.c_int64) for name in _FIGURES]


def main(folder: str) -> int:
    """Run the trace of standard input."""
    order = json.loads(sys.stdin.buffer.readline())
    driver = load_driver(order["names"])
    if foreign := _foreign(folder):
        return _answer({"error": f"another CUDA library is loaded: {foreign}"})
    figures, reserved, allocated = replay(driver, order, sys.stdin.buffer)
    if foreign := _foreign(folder):
        return _answer({"error": f"another CUDA library is loaded: {foreign}"})
    return _answer(figures, *([] if "error" in figures else [reserved, allocated]))


def load_driver(names: list[str]) -> ctypes.CDLL:
    """Load the stand-in under the names of CUDA's libraries, so that torch's library finds it and no other."""
    return [ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL) for name in names][-1]


def replay(
    driver: ctypes.CDLL, order: dict[str, Any], trace: BinaryIO
) -> tuple[dict[str, object], Column, Column]:
    """Run the trace that a file has. Return its figures, and the reserved and the allocated bytes after each event.

    An allocator that cannot be loaded, or that rejects its settings, gives an "error" and its "status" instead.
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
    """Return a library of CUDA's that is not the stand-in: with it the process could touch a GPU."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")}
    loaded = (path for path in paths if os.path.basename(path).startswith(_CUDA))
    return next((path for path in loaded if os.path.dirname(path) != folder), "")


def _answer(figures: dict[str, object], *arrays: Column) -> int:
    out = sys.stdout.buffer
    out.write(json.dumps(figures).encode() + b"\n")
    for array in arrays:
        out.write(array)
    out.flush()
    os._exit(0)  # torch's static objects would free memory that the driver does not have any more


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
