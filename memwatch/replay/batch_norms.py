"""Batch norms of a traced graph that write their running statistics in place, as in eager PyTorch.

In a traced graph, a batch norm returns new statistics, and a later op copies them into the old ones. This module
makes the batch norm write them in place, so that no new statistics wait for the copy. Then it can also run again. The
second run leaves the statistics out, which leaves its other results the same.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final

import torch

from memwatch._torch.modules import (
    RETURNS_STATISTICS,
    WITHOUT_STATISTICS,
    WRITES_STATISTICS,
    can_compute_batch_norms_again,
)

if TYPE_CHECKING:
    from torch import fx

_COPY: Final = torch.ops.aten.copy_.default
_BACKWARD: Final = torch.ops.aten.native_batch_norm_backward.default
_STATISTICS: Final = (3, 4)
"""Indices of the running statistics among the arguments, and of the new statistics among the results."""
_TRAINING: Final = 5  # position of the argument `training` of a batch norm
_TRAINING_OF_BACKWARD: Final = 7  # the same for its backward


def write_statistics(graph: fx.Graph) -> None:
    """Make the batch norms of a graph write their running statistics, unless another op uses the new statistics."""
    if not can_compute_batch_norms_again():
        return
    for node in graph.find_nodes(op="call_function", target=_BACKWARD):
        # it takes the statistics as arguments and does not read them
        if node.args[_TRAINING_OF_BACKWARD] is True:
            for place in _STATISTICS:
                node.update_arg(place, None)
    chains = _chains_of_whole_norms(graph)
    norms: set[Any] = {item.args[0] for chain in chains.values() for item in chain}
    for copy, chain in chains.items():
        written: Any = copy.args[0]
        graph.erase_node(copy)
        for item in chain:
            item.replace_all_uses_with(written)
            graph.erase_node(item)
    for norm in norms:
        norm.target = WRITES_STATISTICS
        norm.meta["val"] = tuple(norm.meta["val"][: min(_STATISTICS)])


def _chains_of_whole_norms(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """Return the chain of each copy. Drop chains with a batch norm whose second statistic is in no chain."""
    chains: dict[fx.Node, list[fx.Node]] = {}
    for copy in graph.find_nodes(op="call_function", target=_COPY):
        found = _chain(copy)
        if found:
            chains[copy] = found
    while True:
        known = {item for chain in chains.values() for item in chain}
        halves = [copy for copy, chain in chains.items() if not all(_other(item) in known for item in chain)]
        if not halves:
            return chains
        for copy in halves:
            del chains[copy]


def _chain(copy: fx.Node) -> list[fx.Node]:
    """Return the chain of new statistics between an input and the copy into it; empty if another op uses them."""
    values: tuple[Any, ...] = copy.args
    written, item = values[:2]
    found: list[Any] = []
    users = {copy}
    while written.op == "placeholder" and item is not written:
        norm, place = _made_by(item)
        if norm is None or not users.issuperset(item.users):
            return []
        found.append(item)
        users.add(norm)
        item = norm.args[place]
    return found if users.issuperset(written.users) else []


def _made_by(item: Any) -> tuple[Any, int]:
    """Return the batch norm whose new statistic a value is, and its index; None for other values."""
    if getattr(item, "target", None) is not operator.getitem:
        return None, 0
    norm, place = item.args
    is_training = norm.target is RETURNS_STATISTICS and norm.args[_TRAINING] is True
    return (norm, place) if is_training and place in _STATISTICS else (None, 0)


def _other(item: fx.Node) -> fx.Node | None:
    """Return the second new statistic of the same batch norm: the variance for a mean, the mean for a variance."""
    values: tuple[Any, ...] = item.args
    norm, place = values
    users: dict[Any, fx.Node] = {user.args[1]: user for user in norm.users if user.target is operator.getitem}
    return users.get(sum(_STATISTICS) - place)


def written_once(node: fx.Node) -> tuple[fx.Node, ...]:
    """Return the nodes that only the first run of a node writes."""
    if node.target is not WRITES_STATISTICS or node.args[_TRAINING] is not True:
        return ()
    values: tuple[Any, ...] = node.args
    return tuple(values[place] for place in _STATISTICS)


def remove_statistics(node: fx.Node) -> None:
    """Replace a batch norm that runs again by a batch norm that writes no statistics."""
    if written_once(node):
        x, weight, bias, _, _, *rest = node.args
        node.target = WITHOUT_STATISTICS
        node.args = (x, weight, bias, *rest)
