"""Read malloc's own figure right before and right after the import of torch.

`import torch` alone allocates about 70 MiB in C++. `memwatch.process_memory()` may be called hours later, and without
these figures it could not tell that memory from a leak. Only the difference counts: the program's own blocks may be
freed later, and a leak of the same size would take their place unseen. If the program imported torch first, the figure
is that of the import of memwatch, and never more than an import of torch allocates.
"""

from __future__ import annotations

import os
import sys
from typing import Final

_in_use: dict[str, int | None] = {"before": None, "after": None}
_MOST_OF_IMPORT_BYTES: Final = 96 << 20
"""Most bytes that count for an import of torch that memwatch did not see. With torch 2.13, malloc's blocks have 87 MiB
right after it, Python's objects included. A leak that is hidden by memory from before is at most this large."""


def read_when_torch_is_imported() -> None:
    """Read the figure before and after the import of torch; if torch has been imported, read it now."""
    if "torch" in sys.modules:
        in_use = _malloc_bytes()
        if in_use is not None:
            _in_use.update(before=0, after=min(in_use, _MOST_OF_IMPORT_BYTES))
        return
    from memwatch.children import when_torch_is_imported

    def read(moment: str) -> None:
        _in_use[moment] = _malloc_bytes()

    when_torch_is_imported(lambda: read("after"), before=lambda: read("before"))


def malloc_bytes_of_import() -> int | None:
    """Return the bytes that the import of torch added to malloc's blocks; None if they are not known."""
    before, after = _in_use["before"], _in_use["after"]
    return None if before is None or after is None else max(after - before, 0)


def _malloc_bytes() -> int | None:
    """Return the bytes of malloc's blocks in use; None without `mallinfo2`, which glibc has since version 2.33.

    The call takes about 7 µs.
    """
    if os.name != "posix":
        return None
    import ctypes  # torch imports it too

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
        return None
    read.restype = Figures
    figures = read()
    # blocks in arenas, and blocks with a mapping of their own
    return int(figures.uordblks) + int(figures.hblkhd)
