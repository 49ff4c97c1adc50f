"""The words for processes that a program starts."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class StartedAs(enum.Enum):
    """How a process was started."""

    LOADER_WORKER = 0
    MULTIPROCESSING = 1
    PYTHON = 2
    FORK = 3


NAMES: Final = {
    StartedAs.LOADER_WORKER: ("DataLoader worker", "DataLoader workers"),
    StartedAs.MULTIPROCESSING: ("process of multiprocessing", "processes of multiprocessing"),
    StartedAs.PYTHON: ("Python program", "Python programs"),
    StartedAs.FORK: ("fork", "forks"),
}
"""One of a kind, and several."""
UNSEEN: Final = "{what} started in the block: tensors of other processes are not in this capture."
ASKED_RECORD: Final = " `memwatch run --children` records them too."
ASKED_RECORD_BUT: Final = " `memwatch run --children` records them too, but not {what}: {reason}."
NEVER_RECORDED: Final = " `memwatch run --children` records none of them: {reason}."
RECORDED: Final = (
    "{what} started in the block. Each process that loads torch records into its own file, beside this one: "
    "`memwatch merge` shows them together."
)
UNREACHED: Final = "{what} started in the block without recording: {reason}."
FORKED_AWAY: Final = "a process made by os.fork() records nothing"
OTHER_ENVIRONMENT: Final = "a program with another environment does not get the setting"


def what_started(counts: Mapping[StartedAs, int]) -> str:
    """Return the number of started processes of each kind: `2 DataLoader workers and 1 fork`."""
    parts = [f"{count} {NAMES[kind][count != 1]}" for kind, count in counts.items() if count]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def started_text(counts: Mapping[StartedAs, int], unreached: Mapping[StartedAs, int], *, asked: bool) -> str:
    """Return the sentence on the processes that started in a block.

    Args:
        counts: how many of each kind.
        unreached: of these, how many do not record although they should.
        asked: whether children should record.
    """
    reached = {kind: count - unreached.get(kind, 0) for kind, count in counts.items()}
    reason = ", ".join(
        reason
        for kind, reason in ((StartedAs.FORK, FORKED_AWAY), (StartedAs.PYTHON, OTHER_ENVIRONMENT))
        if unreached.get(kind)
    )
    if asked:
        texts = [RECORDED.format(what=what_started(reached))] if any(reached.values()) else []
        if reason:
            texts.append(UNREACHED.format(what=what_started(unreached), reason=reason))
        return " ".join(texts)
    text = UNSEEN.format(what=what_started(counts))
    if not reason:
        return text + ASKED_RECORD
    way = ASKED_RECORD_BUT if any(reached.values()) else NEVER_RECORDED
    return text + way.format(what=what_started(unreached), reason=reason)
