"""One leak, as text: what, how much, where it was made, who holds it, and what to change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from memwatch.errors import MemwatchError
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

Kind = Literal["cycle", "uncollectable", "retained"]

FROM_CYCLE: Final = "(and from the cycle)"
"""Begins the first line of a path that leaves the cycle above it."""
_HEADLINES: dict[str, str] = {
    "cycle": "freed only by gc: a reference cycle through",
    "uncollectable": "never freed, not even by gc: a loop through",
    "retained": "kept alive by",
}


@dataclass(frozen=True)
class Leak:
    """Tensors that outlive the code that made them, held by one reference.

    A leak holds text only; it keeps no object of the program alive.

    Attributes:
        kind: "cycle" (garbage that only gc can free), "uncollectable" (a loop through autograd that gc cannot
            free) or "retained" (a live root reaches it).
        nbytes: leaked bytes of tensor storage; per call for :func:`memwatch.find_leaks`.
        count: leaked storages; per call for :func:`memwatch.find_leaks`.
        holder: the reference to cut, in words.
        path: the retention path, or the cycle, one reference per line.
        site: ``file.py:12 in f``, where the largest tensor was made; None if nothing saw it.
        advice: one sentence on what to change.
        tensor: the largest leaked tensor or storage, described.
        held_s: seconds that the oldest of these bytes were kept before the check.
        per_call: True if ``nbytes`` and ``count`` are per call.
        reference: the one reference to cut: the last part of ``holder`` that is older than the tensor.
        keeps_graph: True if the tensor is kept together with its autograd graph.
    """

    kind: Kind
    nbytes: int
    count: int
    holder: str
    path: tuple[str, ...]
    site: str | None
    advice: str
    tensor: str = "storage"
    held_s: float = 0.0
    per_call: bool = False
    reference: str = ""
    keeps_graph: bool = False

    def headline(self) -> str:
        """Return the leak in one line."""
        plural = "tensor" if self.count == 1 else "tensors"
        each = " on each call" if self.per_call else ""
        return (
            f"{self.kind}: {format_bytes(self.nbytes)} in {self.count} {plural}{each}, "
            f"{_HEADLINES[self.kind]} {self.holder}"
        )

    def __str__(self) -> str:
        title = {"retained": "path from the root:"}.get(self.kind, "cycle:")
        lines = [self.headline(), f"  made at: {self.site or 'unknown line'} ({self.tensor})", f"  {title}"]
        lines += [f"    {line}" for line in self.path]
        if self.kind == "cycle":
            lines.append(f"  held for {self.held_s:.3f} s so far; the next collection of gc would free it")
        return "\n".join([*lines, f"  advice: {self.advice}"])

    def draw(self, path: str | PathLike[str]) -> None:
        """Draw the retention path or the cycle with graphviz.

        Args:
            path: the picture to write; the suffix chooses the format, such as ``.svg`` or ``.png``.

        Raises:
            DrawError: the ``dot`` program is not installed or fails; the message holds the leak as text.
        """
        from memwatch.leaks.draw import draw_leak

        draw_leak(self, path)


class TensorLeakError(MemwatchError, AssertionError):
    """Tensors outlived the code that made them; :attr:`leaks` says which and why, as text."""

    def __init__(self, leaks: Sequence[Leak]) -> None:
        self.leaks = list(leaks)
        total = sum(leak.nbytes for leak in self.leaks)
        count = sum(leak.count for leak in self.leaks)
        groups = "1 group" if len(self.leaks) == 1 else f"{len(self.leaks)} groups"
        head = f"{format_bytes(total)} of tensors leaked ({count} in {groups})"
        super().__init__("\n".join([head, *map(str, self.leaks)]))

    def __reduce__(self) -> tuple[type[TensorLeakError], tuple[list[Leak]]]:
        return type(self), (self.leaks,)
