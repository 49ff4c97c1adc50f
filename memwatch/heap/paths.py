"""Turn a chain of objects into the references a person would point at: names, attributes, cells, keys."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from memwatch.heap.classes import is_a
from memwatch.heap.shapes import Named, name_edge
from memwatch.heap.vertices import instance_of, key_text, vertex_of
from memwatch.kinds.edges import Edge, EdgeKind, Vertex, VertexKind
from memwatch.words.edges import edge_line, edge_phrase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.heap.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Step:
    """One reference of a retention path.

    Attributes:
        edge: the reference with its target.
        start: place of the referring object in the chain.
        end: place of the target in the chain.
    """

    edge: Edge
    start: int = 0
    end: int = 0

    @property
    def words(self) -> str:
        """The reference in words, such as ``closure cell `x` of hook (train.py:12)``."""
        return edge_phrase(self.edge)

    @property
    def hidden(self) -> bool:
        """True for a reference held by C++ that gc cannot see."""
        return self.edge.hidden

    def __str__(self) -> str:
        return edge_line(self.edge)


def steps_of(snapshot: Snapshot, chain: Sequence[int]) -> list[Step]:
    """Name each reference along a chain of positions.

    Args:
        snapshot: the open graph.
        chain: positions, each referring to the next; the first may be a root.

    Returns:
        Steps, fewer than references: an instance, its dictionary and a value make one attribute.
    """
    objects = [snapshot.objects[position] for position in chain]
    steps: list[Step] = []
    at = 0
    while at < len(chain) - 1:
        told = _native(snapshot, chain[at], chain[at + 1])
        edge, covered = _name_edge(objects, at) if told is None else (told, 1)
        end = min(at + covered, len(chain) - 1)
        if edge is not None:
            told = told or replace(edge, target=vertex_of(objects[end]))
            steps.append(Step(told, at, end))
        at = end
    return _from_root_logger(objects, steps)


def _from_root_logger(objects: Sequence[Any], steps: list[Step]) -> list[Step]:
    """Return a path to a logger from `logging.root`: every logger leads to all others, and many modules have one."""
    at = next((at for at, step in enumerate(steps) if type(objects[step.end]) is logging.Manager), 0)
    if not at or objects[steps[at].end] is not logging.Logger.manager:
        return steps
    owner = instance_of(logging.root)
    to_root = Edge(EdgeKind.GLOBAL, "root", owner=Vertex(VertexKind.MODULE, "logging"), target=owner)
    to_manager = Edge(EdgeKind.ATTRIBUTE, "manager", owner=owner, target=steps[at].edge.target)
    start, middle, end = steps[0].start, steps[at].start, steps[at].end
    return [Step(to_root, start, middle), Step(to_manager, middle, end), *steps[at + 1 :]]


def _native(snapshot: Snapshot, owner: int, target: int) -> Edge | None:
    """Name a reference that native code holds, once: thousands of tensors may hang on one autograd graph."""
    known = snapshot.named.get((owner, target))
    if known is not None:
        return known
    native = snapshot.native_edge(owner, target)
    if native is None:
        return None
    edge = native.between(snapshot.objects[owner], snapshot.objects[target])
    snapshot.named[owner, target] = edge
    return edge


def name_chain(chain: Sequence[Any]) -> tuple[Edge, ...]:
    """Name each reference along a chain of objects, without its target.

    Args:
        chain: objects, each referring to the next in a way that gc or a bounded search sees; the first may be a
            root.
    """
    edges: list[Edge] = []
    at = 0
    while at < len(chain) - 1:
        edge, covered = _name_edge(chain, at)
        if edge is not None:
            edges.append(edge)
        at += covered
    return tuple(edges)


def _name_edge(chain: Sequence[Any], at: int) -> Named:
    """Return `name_edge` with a plain text for name: the key of a namespace may be any object of the program."""
    edge, covered = name_edge(chain, at)
    if edge is None or edge.name is None or type(edge.name) is str:
        return edge, covered
    name = str.__str__(edge.name) if is_a(edge.name, str) else key_text(edge.name)
    return replace(edge, name=name), covered
