"""torch's own memory snapshots (`_dump_snapshot()`): read into a capture, and written from one."""

from __future__ import annotations

from memwatch.memory_snapshot.fields import SnapshotError
from memwatch.memory_snapshot.read import read_snapshot
from memwatch.memory_snapshot.write import snapshot_of

__all__ = ["SnapshotError", "read_snapshot", "snapshot_of"]
