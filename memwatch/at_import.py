"""Read malloc's own figure right after torch has been imported, once, as the start of the row "native".

`import torch` alone allocates about 70 MiB in C++. `memwatch.process_memory()` may be called hours later, and without
this figure it could not tell that memory from a leak.
"""

from __future__ import annotations

import os
import sys

_in_use: list[int] = []


def read_when_torch_is_imported() -> None:
    """Read the figure now, or at the end of the import of torch if the program has not imported it."""
    if "torch" in sys.modules:
        _read()
        return
    from memwatch.children import when_torch_is_imported

    when_torch_is_imported(_read)


def malloc_bytes_at_import() -> int | None:
    """Return the bytes that malloc's blocks took when torch had been imported; None if they are not known."""
    return _in_use[0] if _in_use else None


def _read() -> None:
    """Call `mallinfo2`, which takes about 7 µs. glibc has it since version 2.33."""
    if os.name != "posix":
        return
    import ctypes  # torch has imported it

    class Figures(ctypes.Structure):
        _fields_ = [
            (name, ctypes.c_size_t)
            for name in (
                "arena", "ordblks", "smblks", "hblks", "hblkhd",
                "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
            )
        ]  # fmt: skip

    try:
        read = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return
    read.restype = Figures
    figures = read()
    # blocks in arenas, and blocks with a mapping of their own
    _in_use[:] = [int(figures.uordblks) + int(figures.hblkhd)]
