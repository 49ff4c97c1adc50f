"""The reference graph of a live process: Python's edges, autograd's hidden ones, roots, paths, names."""

from __future__ import annotations

from memwatch.heap.dominators import retained_bytes
from memwatch.heap.holders import Holder, holders_of
from memwatch.heap.paths import Step, steps_of
from memwatch.heap.search import Tree, search
from memwatch.heap.snapshot import Snapshot

__all__ = ["Holder", "Snapshot", "Step", "Tree", "holders_of", "retained_bytes", "search", "steps_of"]
