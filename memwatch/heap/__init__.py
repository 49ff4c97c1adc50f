"""The references of a live process: what refers to what, from which roots, and how to name it.

Two strategies stand on one model. The snapshot (`snapshot`, `search`) sees the whole process and takes tenths of a
second: it is for leaks. The bounded searches (`reference_search` from the running calls, `referrer_search` from a
tensor) run inside the user's program at new peaks. Both name what they find as `Edge`s (`edges_of`, `paths`).
"""

from __future__ import annotations

from memwatch.heap.dominators import retained_bytes
from memwatch.heap.paths import Step, steps_of
from memwatch.heap.search import Tree, search
from memwatch.heap.snapshot import Snapshot

__all__ = ["Snapshot", "Step", "Tree", "retained_bytes", "search", "steps_of"]
