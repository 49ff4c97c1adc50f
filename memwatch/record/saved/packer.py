"""The part of a recorder that packs what autograd saves: each backend has one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.record.saved.disguise import Disguise, Hooks
    from memwatch.record.tables.rows import Table


class Packer(Protocol):
    """Packs what autograd saves, and appends rows of `packs` and `unpacks`."""

    @property
    def packs(self) -> Table:
        """Rows of the tensors that were saved."""

    @property
    def unpacks(self) -> Table:
        """Rows of their uses and their release."""

    @property
    def hooks(self) -> Hooks:
        """The pair (pack, unpack) that torch calls."""

    @property
    def python_functions(self) -> tuple[Callable[..., Any], ...]:
        """The functions of Python's that torch calls through `hooks`: dynamo must leave them alone."""

    @property
    def disguise(self) -> Disguise:
        """What hides the hooks from a program that looks."""

    def set_outer(self, hooks: Hooks | None) -> None:
        """Have the hooks that the program pushed before do the packing."""

    def set_keeper(self, keeper: object) -> None:
        """Have every pack hold an object from now on: the disguise lasts as long as it lives."""

    def living_by_sequence(self) -> dict[int, list[int]]:
        """Return the numbers of the storages that autograd keeps now, by the sequence number of the node."""

    def close(self) -> None:
        """Append no more rows, and let go of the block; packs in the program's graph go on working."""
