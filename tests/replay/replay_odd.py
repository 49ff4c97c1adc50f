"""The list of odd programs: things that users do and a plain training step does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ODD: dict[str, Callable[[], Callable[[], object]]] = {}


def program(build: Callable[[], Callable[[], object]]) -> Callable[[], Callable[[], object]]:
    """List a program: a function that prepares and gives one step."""
    ODD[build.__name__] = build
    return build
