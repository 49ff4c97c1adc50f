"""The part of a reading that the views need, as a protocol: reports depend on no class of a recording."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pandas as pd

    from memwatch.analysis.facts.endings import CutOff
    from memwatch.analysis.findings.finding import Finding
    from memwatch.own_code import CodeOwner
    from memwatch.words.processes import ReservedBytes

Frame = tuple[str, int, str, bool]
"""One stack frame: file, line, function, and whether its code is the program's or a package's."""


class Reading(Protocol):
    """A profile as users read it; the tables are those of `capture.derived.DERIVED`."""

    @property
    def peak_bytes(self) -> int:
        """Most live bytes."""

    @property
    def baseline_bytes(self) -> int:
        """Live bytes at entry."""

    @property
    def peak_increase_bytes(self) -> int:
        """Most bytes made inside the block that were alive at one instant."""

    @property
    def peak_event(self) -> int:
        """The row of `timeline` that `at_peak` is of."""

    @property
    def reserved(self) -> ReservedBytes | None:
        """The bytes that the device's allocator reserved at the peak. None if the allocator does not cache memory."""

    @property
    def device(self) -> str:
        """Device of the figures, such as `cpu`."""

    @property
    def devices(self) -> Sequence[str]:
        """Every device that had bytes, most at the peak first."""

    def on(self, device: str) -> Reading:
        """Return the reading of another device."""

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
    def process(self) -> pd.DataFrame:
        """The parts of the process's RSS at some times."""

    @property
    def findings(self) -> Sequence[Finding]:
        """Findings, largest first."""

    @property
    def small_findings(self) -> Sequence[Finding]:
        """Further findings that lower the peak by less, largest first."""

    @property
    def ways(self) -> pd.DataFrame:
        """Changes that would lower the peak, simulated."""

    @property
    def cut_off(self) -> CutOff | None:
        """Where the recording ended before the program's work did; None for a whole recording."""

    @property
    def notes(self) -> Sequence[tuple[str, str]]:
        """Limits and side effects of this recording: a kind and a sentence each."""

    @property
    def meta(self) -> Mapping[str, Any]:
        """Metadata of the recording: command, versions, device, times."""

    def part(
        self,
        table: str,
        columns: Collection[str],
        rows: Sequence[int] | pd.Index[int] | None = None,
        *,
        coded: bool = False,
    ) -> pd.DataFrame:
        """Return some columns and rows of `ops`, `storages`, `timeline` or `uses`; texts as categories if `coded`."""

    def live_at(self, event: int) -> pd.DataFrame:
        """Return the storages alive just after a row of the timeline."""

    def held_at(self, event: int) -> pd.DataFrame:
        """Return what was live just after row `event` of the timeline, in the columns of `at_peak`."""

    def stack(self, stack_id: int) -> Sequence[Frame]:
        """Return the frames of a call stack, innermost first."""

    def code_owners(self, stack_id: int) -> Sequence[CodeOwner]:
        """Return whose code each of these frames is."""


def retention_edges(path: str) -> list[str]:
    """Return the edges of a retention path, root first."""
    return [edge for edge in path.splitlines() if edge]
