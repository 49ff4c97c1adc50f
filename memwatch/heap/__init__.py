"""The references of a live process: the objects at both ends, the roots, and the name of each reference.

There are two strategies on one model. The snapshot (`snapshot`, `search`) covers the whole process and takes tenths
of a second: it is for leaks. The bounded searches (`reference_search` from the running calls, `referrer_search` from
a tensor) run inside the user's program at new peaks. Both name references as `Edge`s (`edges_of`, `paths`).
"""

from __future__ import annotations

from memwatch.heap.paths import Step, steps_of
from memwatch.heap.search import Tree, retained_bytes, search
from memwatch.heap.snapshot import Snapshot

__all__ = ["Snapshot", "Step", "Tree", "retained_bytes", "search", "steps_of"]
