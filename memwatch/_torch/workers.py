"""Errors of a worker process or thread that torch raises again in the main process.

| torch | here |
| --- | --- |
| torch._utils.ExceptionWrapper.reraise | is_raised_again(code) |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memwatch._torch.lookup import Part

if TYPE_CHECKING:
    from types import CodeType

_again: Final = Part(
    "an error of a DataLoader worker that ran out of memory looks like an error of this process"
)
_RERAISE: Final = getattr(_again.take("torch._utils.ExceptionWrapper.reraise", None), "__code__", None)


def is_raised_again(code: CodeType) -> bool:
    """Return whether this is the code that raises errors of workers again."""
    return code is _RERAISE
