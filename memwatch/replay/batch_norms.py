"""Batch norms of a traced graph, which write their running statistics themselves, as in eager PyTorch.

AOTAutograd makes them return new statistics, which are copied into the old ones later. Written in place, none wait for
that, and a batch norm can be computed again: the second time without them, which changes nothing else of it.
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
"""Where the running statistics are among the arguments of each of them, and the new ones among the results."""
_TRAINING: Final = 5
_TRAINING_OF_BACKWARD: Final = 7


def write_statistics(graph: fx.Graph) -> None:
    """Let the batch norms of a graph write their running statistics, where nothing else uses the new ones."""
    if not can_compute_batch_norms_again():
        return
    for node in graph.find_nodes(op="call_function", target=_BACKWARD):
        if node.args[_TRAINING_OF_BACKWARD] is True:  # it is given them, and reads none
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
    """Return the chain behind each copy, of those batch norms both of whose new statistics are in chains."""
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
    """Return the new statistics that lead from an input to what is copied into it; nothing if others use them."""
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
    """Return the batch norm in training that makes a value as new statistics, and which; None if none does."""
    if getattr(item, "target", None) is not operator.getitem:
        return None, 0
    norm, place = item.args
    is_training = norm.target is RETURNS_STATISTICS and norm.args[_TRAINING] is True
    return (norm, place) if is_training and place in _STATISTICS else (None, 0)


def _other(item: fx.Node) -> fx.Node | None:
    """Return the other half of new statistics."""
    values: tuple[Any, ...] = item.args
    norm, place = values
    users: dict[Any, fx.Node] = {user.args[1]: user for user in norm.users if user.target is operator.getitem}
    return users.get(sum(_STATISTICS) - place)


def written_once(node: fx.Node) -> tuple[fx.Node, ...]:
    """Return what only the first computation of a node writes."""
    if node.target is not WRITES_STATISTICS or node.args[_TRAINING] is not True:
        return ()
    values: tuple[Any, ...] = node.args
    return tuple(values[place] for place in _STATISTICS)


def without_statistics(node: fx.Node) -> None:
    """Make a batch norm that is computed again one that writes nothing."""
    if written_once(node):
        x, weight, bias, _, _, *rest = node.args
        node.target = WITHOUT_STATISTICS
        node.args = (x, weight, bias, *rest)
