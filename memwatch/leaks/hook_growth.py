"""Hooks that each call registers and nobody removes: they hold no tensor, but each further call runs all of them.

torch numbers the handles of hooks one after the other, whatever they hang on: modules, tensors, optimizers. So the
number before and after a call tells, at no cost, whether it registered any. Only if each measured call did are the
tables listed that still have them.
"""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections import OrderedDict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from torch.utils.hooks import RemovableHandle

from memwatch.heap.paths import steps_of
from memwatch.heap.search import search
from memwatch.heap.snapshot import Snapshot
from memwatch.kinds.leaks import LeakKind
from memwatch.kinds.remedies import Remedy
from memwatch.leaks.cause import cause_of
from memwatch.leaks.leak import Leak
from memwatch.leaks.series import series_of
from memwatch.words.edges import edge_phrase
from memwatch.words.leaks import advice, holder_phrase, path_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memwatch.heap.roots import Held
    from memwatch.kinds.edges import Edge

_ONE_GROWTH: Final = 2  # counts: what grew once may have been set up


def next_hook_number() -> int:
    """Return the number that the next registered hook will have."""
    return int(getattr(RemovableHandle, "next_id", 0))


def are_registered_since(number: int) -> bool:
    """Return True if a table still has a hook with this number or a later one."""
    tables = [table for table in gc.get_objects() if type(table) is OrderedDict]
    return any(each >= number for table in tables for each in _numbers(table))


def leaks_of_hooks(
    numbers: Sequence[int], held: Iterable[Held], beside: Iterable[Leak], *, period: int = 1
) -> list[Leak]:
    """Return the tables of hooks that have hooks of every call.

    Args:
        numbers: the next hook's number before the measured calls and after each.
        held: objects that live on after the calls: the function and its arguments.
        beside: leaks of tensors; a table on their paths is not reported again.
        period: the number of calls in a row of which one at least must have left a hook.
    """
    numbers = numbers[::-period][::-1]
    calls = (len(numbers) - 1) * period
    if len(numbers) <= _ONE_GROWTH or any(before == after for before, after in pairwise(numbers)):
        return []
    tables = [table for table in gc.get_objects() if type(table) is OrderedDict and _has_all(table, numbers)]
    if not tables:
        return []
    told = {series_of(edge) for leak in beside for edge in leak.edges}
    leaks = []
    with Snapshot(tables, list(held)) as snapshot:
        tree = search(snapshot, snapshot.root_groups(), closed=snapshot.barriers())
        for table in tables:
            position = snapshot.position(table)
            steps = steps_of(snapshot, tree.path(position)) if tree.reaches(position) else []
            edges = tuple(step.edge for step in steps)
            if edges and series_of(edges[-1]) not in told:
                count = sum(number >= numbers[0] for number in _numbers(table))
                leaks.append(_leak(edges, count, calls))
    return sorted(leaks, key=lambda leak: -leak.count)


def _leak(edges: tuple[Edge, ...], count: int, calls: int) -> Leak:
    cut = edges[-1]
    every = max(1, round(calls / count))
    return Leak(
        kind=LeakKind.HOOKS,
        nbytes=0,
        count=count * every // calls,
        every=every,
        holder=holder_phrase(edges),
        path=path_lines(edges, branch_at=None),
        site=None,
        advice=advice(Remedy.HOOK_PER_CALL, with_graph=False),
        per_call=True,
        reference=edge_phrase(cut),
        edges=edges,
        cut=cut,
        cause=cause_of(LeakKind.HOOKS, cut, edges, 0),
    )


def _has_all(table: Any, numbers: Sequence[int]) -> bool:
    """Return True if a table has a hook of every call. A table that a call makes has only that call's hooks."""
    found = {bisect_right(numbers, number) for number in _numbers(table)}
    return found.issuperset(range(1, len(numbers)))


def _numbers(table: Any) -> list[int]:
    return [key for key in list(OrderedDict.keys(table)) if type(key) is int]
