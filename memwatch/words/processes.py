"""What is said of processes that a program starts."""

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
UNSEEN: Final = (
    "{what} started in the block: what other processes did with tensors is not in this capture. "
    "`memwatch run --children` records them too."
)
RECORDED: Final = (
    "{what} started in the block. Those that load torch record into files of their own, beside this one: "
    "`memwatch merge` shows them together."
)
UNREACHED: Final = " Not so {what}: {reasons}."
FORKED_AWAY: Final = "what os.fork() makes records nothing"
OTHER_ENVIRONMENT: Final = "a program with another environment does not know that it should"


def what_started(counts: Mapping[StartedAs, int]) -> str:
    """Return how many processes of which kinds started: `2 DataLoader workers and 1 fork`."""
    parts = [f"{count} {NAMES[kind][count != 1]}" for kind, count in counts.items() if count]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def started_text(counts: Mapping[StartedAs, int], unreached: Mapping[StartedAs, int], *, asked: bool) -> str:
    """Return the sentence on the processes that started in a block.

    Args:
        counts: how many of each kind.
        unreached: of these, how many cannot record although they were asked to.
        asked: whether children were asked to record.
    """
    if not asked:
        return UNSEEN.format(what=what_started(counts))
    text = RECORDED.format(what=what_started(counts))
    if any(unreached.values()):
        reasons = [
            reason
            for kind, reason in ((StartedAs.FORK, FORKED_AWAY), (StartedAs.PYTHON, OTHER_ENVIRONMENT))
            if unreached.get(kind)
        ]
        text += UNREACHED.format(what=what_started(unreached), reasons=", ".join(reasons))
    return text
