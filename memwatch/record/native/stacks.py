"""Call stacks captured in C++, interned and symbolised in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from memwatch.record.tables.stacks import Stacks

if TYPE_CHECKING:
    from types import CodeType

    from memwatch.record.tables.strings import Strings


class NativeStacks(Stacks):
    """Intern the running call stack, which C++ walks."""

    def __init__(self, strings: Strings, boundary: CodeType, *, enabled: bool, library: Any) -> None:
        super().__init__(strings, boundary, enabled=enabled)
        self.native: Final = library.Stacks(self)
        self.capture = self.native.capture  # type: ignore[method-assign]  # the twin
