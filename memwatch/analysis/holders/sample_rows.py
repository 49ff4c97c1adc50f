"""The rows that the recorder's samples wrote: the storage, the sample, and the path of the holder."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.holders.holder import holder_of
from memwatch.analysis.holders.paths import HolderPath
from memwatch.capture.paths import Path, read_paths
from memwatch.capture.schema import NONE
from memwatch.kinds.edges import Edge, EdgeKind
from memwatch.kinds.holders import HolderKind

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.holders.holder import Holder
    from memwatch.capture.columns import IntArray

_UNKNOWN: Final[Path] = (Edge(EdgeKind.EVALUATION_STACK),)
"""What a sample told whose path was never written, for the program was killed: nothing is known of it."""
_NO_ROWS: Final = np.zeros(0, dtype=np.int64)


class SampleRows:
    """The table `holders`, with each path read as a holder.

    Attributes:
        table: its columns.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        rows = facts.capture.tables["holders"]
        is_peek = rows["sample"] == NONE
        self.table = {name: rows[name][~is_peek] for name in ("sample", "op", "storage", "path")}
        self._peeks = {name: rows[name][is_peek] for name in ("op", "storage", "path")}
        self._known: dict[int, Holder] = {}

    @cached_property
    def paths(self) -> dict[int, Path]:
        """The recorded retention paths, by number."""
        return read_paths(self._facts.capture)

    def holder(self, path: int) -> Holder:
        """Return the holder that a path shows; the same one each time, for its words take time to make."""
        holder = self._known.get(path)
        if holder is None:
            holder = self._known[path] = holder_of(self.paths.get(path, _UNKNOWN))
        return holder

    def peeked(self, allocation: int, op: int) -> list[Holder]:
        """Return the holders of an allocation that a peek during an op found."""
        peeks, storage = self._peeks, int(self._facts.allocations.storage[allocation])
        rows = np.flatnonzero((peeks["op"] == op + 1) & (peeks["storage"] == storage))
        return list(dict.fromkeys(map(self.holder, peeks["path"][rows].tolist())))

    @property
    def peeked_storages(self) -> Collection[int]:
        """The storages that peeks found."""
        return set(self._peeks["storage"].tolist())

    def with_kind(self, kind: HolderKind) -> NDArray[np.bool_]:
        """Return, for each row, whether its holder is of a kind."""
        return self._is_of_kind.get(kind, np.zeros(len(self.table["path"]), dtype=bool))

    @cached_property
    def _is_of_kind(self) -> dict[HolderKind, NDArray[np.bool_]]:
        numbers: dict[HolderKind, list[int]] = {}
        for number, path in self.paths.items():
            numbers.setdefault(HolderPath(path).kind, []).append(number)
        return {kind: np.isin(self.table["path"], found) for kind, found in numbers.items()}

    @cached_property
    def is_graph(self) -> NDArray[np.bool_]:
        """Per row: whether a variable's autograd graph holds the storage, and not the variable."""
        return self.with_kind(HolderKind.GRAPH)

    @cached_property
    def _rows_by_storage(self) -> dict[int, IntArray]:
        found: dict[int, list[int]] = {}
        for row, storage in enumerate(self.table["storage"].tolist()):
            found.setdefault(storage, []).append(row)
        return {storage: np.array(rows) for storage, rows in found.items()}

    @property
    def storages(self) -> Collection[int]:
        """The storages that any row is about."""
        return self._rows_by_storage.keys()

    def of(self, allocation: int) -> IntArray:
        """Return the rows about an allocation."""
        return self._rows_by_storage.get(int(self._facts.allocations.storage[allocation]), _NO_ROWS)

    def same_sample(self, rows: IntArray, row: int) -> IntArray:
        """Return the rows about the storage of one row in the same sample."""
        table = self.table
        same = (table["sample"][rows] == table["sample"][row]) & (
            table["storage"][rows] == table["storage"][row]
        )
        chosen: IntArray = rows[same]
        return chosen

    def seen_in(self, rows: IntArray) -> list[Holder]:
        """Return the holders in some rows, each once."""
        return list(dict.fromkeys(map(self.holder, self.table["path"][rows].tolist())))
