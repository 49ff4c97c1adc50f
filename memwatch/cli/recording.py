"""Make a recording from the options of `memwatch run`, and write the summary of a rank into its capture.

The summary lets `memwatch merge` read a few kilobytes from each of thousands of files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from memwatch.errors import MemwatchError

if TYPE_CHECKING:
    import argparse
    import os
    from pathlib import Path

    from memwatch.profile import Profile
    from memwatch.settings import Settings

_DEFAULTS: Final = {
    "output": None, "limit": None, "every": None, "first": None, "stacks": True, "replay": False,
    "children": False, "html": False, "live": False, "quiet": False,
}  # fmt: skip
"""The options of `memwatch run` that settings may set, each with its value where neither sets it."""


def fill_options(options: argparse.Namespace, settings: Settings) -> None:
    """Set each option of `memwatch run` that was not given to its value in the settings, or to its default."""
    for name, default in _DEFAULTS.items():
        if getattr(options, name, None) is None:
            value = settings.get("limits.live" if name == "limit" else f"run.{name}")
            setattr(options, name, default if value is None else value)


def recording_of(options: argparse.Namespace, capture: str | os.PathLike[str]) -> Profile:
    """Return the recording of this process into a file, not yet open."""
    from memwatch.profile import Sampled, profile

    return profile(
        capture,
        stacks=options.stacks,
        replay=options.replay,
        limit_bytes=_limits(options.limit),
        schedule=Sampled(options.every or 0, options.first or 0) if options.every or options.first else None,
    )


def plain_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options as JSON values, so that another process can make its own recording."""
    plain = (type(None), bool, int, float, str)
    return {
        name: value
        for name, value in vars(options).items()
        if isinstance(value, plain)
        or (isinstance(value, list) and all(isinstance(each, plain) for each in value))
    }


def _limits(given: list[str] | None) -> str | dict[str, str] | None:
    """Return the limit of every device, or limits by device.

    Raises:
        MemwatchError: one limit is of every device, and there are others.
    """
    if given is None:
        return None
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    if not all("=" in limit for limit in given):
        raise MemwatchError(
            "give --limit one size for every device, or a DEVICE=SIZE for each, as cuda:0=8GiB"
        )
    return dict(limit.split("=", 1) for limit in given)


def leave_summary(recording: Profile, capture: Path) -> None:
    """Write the summary of a finished recording into its file, if this process is one of many ranks.

    Raises:
        CaptureError: the file cannot be read or written.
    """
    if recording.failure is not None:
        return
    from memwatch.capture.rank_summary import add_summary, read_head
    from memwatch.ranks.summary import summarise

    meta = read_head(capture).meta
    if meta.get("rank") is not None and meta.get("world_size", 1) > 1:
        add_summary(capture, summarise(recording.capture))
