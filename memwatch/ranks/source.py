"""What the views need of a job, as a protocol: they depend on no class that has views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from memwatch.reading import Reading


class Job(Protocol):
    """Many processes as users read them; see `Ranks`."""

    @property
    def compared(self) -> list[str]:
        """The processes that are compared with each other."""

    @property
    def are_ranks(self) -> bool:
        """Whether these are ranks."""

    @property
    def ranks(self) -> pd.DataFrame:
        """One row per process."""

    @property
    def steps(self) -> pd.DataFrame:
        """Peaks of steps."""

    @property
    def categories(self) -> pd.DataFrame:
        """Bytes at the peaks by category."""

    @property
    def sites(self) -> pd.DataFrame:
        """What was alive at the peaks."""

    @property
    def differences(self) -> pd.DataFrame:
        """What some ranks have more of."""

    @property
    def notes(self) -> Sequence[tuple[str, str]]:
        """What must be known of the figures: a kind and a sentence each."""

    @property
    def worst(self) -> str:
        """The process with the highest peak."""

    @property
    def worst_path(self) -> str:
        """Its capture, empty where there is none."""

    @property
    def worst_reading(self) -> Reading | None:
        """The recording of that process, None where its tables cannot be read."""

    @property
    def peak_bytes(self) -> int:
        """Its peak."""

    @property
    def imbalance_ratio(self) -> float:
        """How far its peak is above the mean."""
