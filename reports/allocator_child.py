"""Run many traces in torch's own CUDA allocator, each in a copy of this process that has loaded the library.

`reports/allocator.py` starts it with `python -I -S allocator_child.py FOLDER_OF_CHILD`. `child.py` in that folder says
what an order is. Standard input has one order after another; each gets a line of JSON.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import sys
import zlib

sys.path.insert(0, sys.argv[1])
import child  # type: ignore[import-not-found]


def main() -> None:
    """Answer the orders of standard input."""
    driver = None
    while line := sys.stdin.buffer.readline():
        order = json.loads(line)
        if driver is None:
            driver = child.load_driver(order["names"])
            for name in ("c10", "c10_cuda"):  # a copy of the process then has nothing left to load
                ctypes.CDLL(order[name], mode=ctypes.RTLD_GLOBAL)
        columns = sys.stdin.buffer.read(3 * 8 * order["count"])
        if os.fork() == 0:
            answer(driver, order, columns)
        os.wait()


def answer(driver: ctypes.CDLL, order: dict[str, object], columns: bytes) -> None:
    """Write the figures of a trace, those after each event as one number; then end this copy of the process."""
    figures, reserved, allocated = child.replay(driver, order, io.BytesIO(columns))
    figures |= {"reserved": zlib.crc32(bytes(reserved)), "allocated": zlib.crc32(bytes(allocated))}
    os.write(1, json.dumps(figures).encode() + b"\n")
    os._exit(0)


main()
