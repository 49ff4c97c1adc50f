"""The graphs that backwards run through, as far as Python sees them: which leaves each of their nodes leads to.

The engine has a list of the nodes, which Python cannot read. So the graph is walked from the nodes that run ops, each
node once. A gradient that no node before made by an op is copied by an op of the leaf's own node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memwatch._torch.autograd import NO_TASK, AccumulateGrad, sequence_nr_of
from memwatch.capture.schema import NONE

if TYPE_CHECKING:
    from torch import Tensor


class BackwardGraphs:
    """Remember, by its number, which nodes of each backward were walked.

    Attributes:
        visited: those of the backward that was entered last, and the number of no node.
    """

    def __init__(self) -> None:
        self.visited: set[int] = {NONE}
        self._visited_of: dict[int, set[int]] = {}

    def enter(self, task: int, *, within: int) -> bool:
        """Take a backward for the one that runs, within another or none; return whether it is a new one."""
        if within == NO_TASK:
            self._visited_of.clear()
        is_new = task not in self._visited_of
        self.visited = self._visited_of.setdefault(task, {NONE})
        return is_new

    def leaves_from(self, node: Any) -> list[Tensor]:
        """Return the leaves that a node leads to, but for those beyond nodes that were visited before."""
        leaves, waiting = [], [node]
        while waiting:
            here = waiting.pop()
            if isinstance(here, AccumulateGrad):
                leaves.append(here.variable)
                continue
            number = sequence_nr_of(here)
            if number in self.visited:
                continue
            self.visited.add(number)
            waiting += [following for following, _ in here.next_functions if following is not None]
        return leaves
