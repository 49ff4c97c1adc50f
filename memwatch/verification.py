"""verify(): does observing a function change its peak? Run it with the allocator's events alone, then observed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memwatch.analysis.facts.facts import Facts
from memwatch.analysis.observer import observer_effects
from memwatch.profile import allocator_only, profile
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Verification:
    """The peak of a function, as the allocator reports it, without and with observation."""

    plain_peak_increase_bytes: int
    observed_peak_increase_bytes: int
    effects: tuple[str, ...]

    @property
    def difference_bytes(self) -> int:
        """How much the observed peak lies above the plain one."""
        return self.observed_peak_increase_bytes - self.plain_peak_increase_bytes

    def __str__(self) -> str:
        """Return both peaks, and the effects of observing that explain a difference, as text."""
        plain, observed = self.plain_peak_increase_bytes, self.observed_peak_increase_bytes
        lines = [
            f"peak increase without observation: {format_bytes(plain)} ({plain} bytes)",
            f"peak increase under memwatch:      {format_bytes(observed)} ({observed} bytes)",
            "no difference" if not self.difference_bytes else f"difference: {self.difference_bytes:+d} bytes",
        ]
        return "\n".join([*lines, *(f"- {text}" for text in self.effects)])


def verify(function: Callable[..., Any], *args: Any, intercept: str = "auto", **kwargs: Any) -> Verification:
    """Run a function with the allocator's events alone, then under `profile()`, and compare the peaks.

    In the first run memwatch changes nothing in torch, so the program runs as it is. The function runs twice, so it
    must do the same work both times.

    Args:
        function: the function to measure.
        *args: its positional arguments.
        intercept: as in `profile()`.
        **kwargs: its keyword arguments.

    Returns:
        Both peaks in bytes; `str()` of the result is a sentence.

    Raises:
        MemwatchError: a torch profiler is already running, so that the allocator's events are not available.
    """
    capture = allocator_only(lambda: function(*args, **kwargs))
    prof = profile(intercept=intercept)
    with prof:
        result = function(*args, **kwargs)
    del result
    plain = Facts(capture, prof.device).curve.peak_increase_bytes
    effects = tuple(effect.text for effect in observer_effects(prof._tables.facts))
    return Verification(plain, prof.peak_increase_bytes, effects)
