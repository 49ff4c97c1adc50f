"""What a report reads: the part of a reading that the views need, as protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

Frame = tuple[str, int, str, bool]
"""One stack frame: file, line, function, and whether it is the program's own."""


class Finding(Protocol):
    """One thing that would lower the peak."""

    @property
    def kind(self) -> str:
        """A short fixed word, as `drag`."""

    @property
    def nbytes(self) -> int:
        """What the peak would fall by, bytes."""

    @property
    def holder(self) -> str:
        """Who keeps the memory, in words."""

    @property
    def site(self) -> str:
        """`file:line` of the line to edit."""

    @property
    def advice(self) -> str:
        """One sentence."""

    @property
    def path(self) -> Sequence[str] | str:
        """The retention path, an edge per item or per line."""


class Reading(Protocol):
    """A profile as users read it; the tables are those of `capture.schema.DERIVED`."""

    @property
    def peak_bytes(self) -> int:
        """Most live bytes."""

    @property
    def baseline_bytes(self) -> int:
        """Live bytes at entry."""

    @property
    def peak_increase_bytes(self) -> int:
        """Peak minus baseline, bytes."""

    @property
    def device(self) -> str:
        """Device of the figures, as `cpu`."""

    @property
    def ops(self) -> pd.DataFrame:
        """Ops."""

    @property
    def storages(self) -> pd.DataFrame:
        """Storages and workspaces."""

    @property
    def uses(self) -> pd.DataFrame:
        """Uses of storages by ops."""

    @property
    def timeline(self) -> pd.DataFrame:
        """Allocations and frees in order."""

    @property
    def at_peak(self) -> pd.DataFrame:
        """Storages alive at the peak."""

    @property
    def saved(self) -> pd.DataFrame:
        """Tensors that autograd saved."""

    @property
    def modules(self) -> pd.DataFrame:
        """Modules."""

    @property
    def steps(self) -> pd.DataFrame:
        """Iterations."""

    @property
    def findings(self) -> Sequence[Finding]:
        """Findings, largest first."""

    @property
    def notes(self) -> Sequence[tuple[str, str]]:
        """What could not be seen: a kind and a sentence each."""

    @property
    def meta(self) -> Mapping[str, Any]:
        """What was recorded where."""

    def stack(self, stack_id: int) -> Sequence[Frame]:
        """Give the frames of a call stack, innermost first."""


def retention_edges(path: Sequence[str] | str) -> list[str]:
    """Split a retention path into its edges, root first."""
    return [edge for edge in (path.splitlines() if isinstance(path, str) else map(str, path)) if edge]
