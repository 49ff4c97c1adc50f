"""Errors of a worker process or thread that torch raises again in the main process.

| torch | here |
| --- | --- |
| torch._utils.ExceptionWrapper.reraise | is_raised_again(code) |
| torch._utils.ExceptionWrapper | notice_errors(notice) |
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Final

from memwatch._torch.lookup import Part

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

_again: Final = Part(
    "an error of a DataLoader worker that ran out of memory looks like an error of this process"
)
_WRAPPER: Final[Any] = _again.take("torch._utils.ExceptionWrapper", None)
_RERAISE: Final = getattr(_again.take("torch._utils.ExceptionWrapper.reraise", None), "__code__", None)


def is_raised_again(code: CodeType) -> bool:
    """Return whether this is the code that raises errors of workers again."""
    return code is _RERAISE


def notice_errors(notice: Callable[[BaseException], None]) -> Callable[[], None]:
    """Have a function called with each error that torch wraps, to raise it again in another thread or process.

    At that moment, the memory of the worker is still as it was when the error arrived.

    Args:
        notice: called with the error, before torch makes a text of it. It must not raise.

    Returns:
        A function that ends this.
    """
    if _WRAPPER is None:
        return lambda: None
    before = _WRAPPER.__init__

    @functools.wraps(before)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        given = args[0] if args else kwargs.get("exc_info")
        error = (sys.exc_info() if given is None else given)[1]
        if isinstance(error, BaseException):
            notice(error)
        before(self, *args, **kwargs)

    def end() -> None:
        if _WRAPPER.__init__ is initialise:
            _WRAPPER.__init__ = before

    _WRAPPER.__init__ = initialise
    return end
