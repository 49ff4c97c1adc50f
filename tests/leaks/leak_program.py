"""A leak program: a function that leaks, its clean twin, and the expected report of the checker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Program:
    """A leaking function and the same function with the one reference cut."""

    name: str
    leak: Callable[[], object]
    clean: Callable[[], object]
    kind: str
    words: tuple[str, ...]
    """Words that the holder must contain."""

    def __str__(self) -> str:
        return self.name


def collect(namespace: dict[str, object], rows: list[tuple[str, str, tuple[str, ...]]]) -> list[Program]:
    """Pair ``leak_x`` with ``clean_x`` for every row ``(x, kind, words)``."""
    return [
        Program(n, namespace[f"leak_{n}"], namespace[f"clean_{n}"], kind, words) for n, kind, words in rows
    ]  # type: ignore[arg-type]
