"""Silence c10's log lines while the allocator's events are recorded."""

from __future__ import annotations

from typing import Final

from memwatch._torch.c10 import log_level_flag

LOG_ERRORS_ONLY: Final = 2
_levels_before: list[int] = []


def set_log_level(level: int | None) -> None:
    """Silence c10's "block of unknown size" log line while a window is open; None puts the level back."""
    flag = log_level_flag()
    if flag is None:
        return
    if level is not None:
        _levels_before.append(flag.value)
        flag.value = max(level, flag.value)
    elif _levels_before:
        flag.value = _levels_before.pop()
