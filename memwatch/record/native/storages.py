"""The storages of a native recorder: C++ keeps the counts, for it changes them at every birth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memwatch.record.tables.storages import Storages

if TYPE_CHECKING:
    from memwatch.record.tables.strings import Strings


def _count(name: str) -> Any:
    return property(
        lambda storages: getattr(storages.native, name),
        lambda storages, value: setattr(storages.native, name, value),
    )


class NativeStorages(Storages):
    """Number the storages the program touches, with C++ beside."""

    count = _count("count")
    live_bytes = _count("live_bytes")
    watch_bytes = _count("watch_bytes")
    entry_count = _count("entry_count")
    entry_gone_bytes = _count("entry_gone_bytes")
    hold = _count("hold")

    def __init__(self, strings: Strings, ops_started: list[int], *, estimate: bool, library: Any) -> None:
        self.native = library.Storages()
        super().__init__(strings, ops_started, estimate=estimate, rows=library.Rows)
        self.native.drive(self)

    def bury(self) -> None:
        """Append the deaths since the last time, as of now; no other thread can come in between."""
        self.native.bury(self._ops_started[0])
