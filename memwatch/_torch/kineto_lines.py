"""Keep what kineto prints when it starts and stops off the program's stderr."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def without_kineto_lines() -> Iterator[None]:
    """Drop the `USDT:` lines that kineto prints to stderr in the block; pass on all other output at its end.

    C++ prints them to file descriptor 2, which `contextlib.redirect_stderr` does not reach.
    """
    try:
        saved = os.dup(2)
    except OSError as error:  # the program closed its stderr: nothing can be printed
        pass_on(error)
        yield
        return
    with open(os.memfd_create("memwatch"), "w+b", buffering=0) as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            held.seek(0)
            rest = b"".join(line for line in held.readlines() if not line.startswith(b"USDT:"))
            if rest:  # what other threads, or torch's C++ code, printed meanwhile
                os.write(2, rest)
