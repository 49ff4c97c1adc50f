"""The summary that a rank leaves in its capture, so that a merge of thousands reads some kilobytes of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from memwatch.profile import Profile


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
