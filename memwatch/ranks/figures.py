"""The figures of a job that every view shows: the headline, the rows of ranks, and the spread of each category."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from memwatch.kinds.roles import CATEGORIES
from memwatch.sizes import format_bytes
from memwatch.words import ranks as words

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
        """The storages that were alive at the peaks."""

    @property
    def differences(self) -> pd.DataFrame:
        """The sites of which some ranks have more than others."""

    @property
    def notes(self) -> Sequence[tuple[str, str]]:
        """Notes about the figures, each with a kind and a sentence."""

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


@dataclass(frozen=True, slots=True)
class Totals:
    """The headline; sizes in bytes.

    Attributes:
        processes: number of known processes.
        compared: number of compared processes.
        are_ranks: whether these are ranks.
        device: the kind of device of the figures.
        worst: the process with the highest peak.
        highest_bytes: its peak.
        lowest_bytes: the lowest peak.
        mean_bytes: the mean of the peaks.
        imbalance_ratio: the highest peak above the mean, as a ratio of the mean.
    """

    processes: int
    compared: int
    are_ranks: bool
    device: str
    worst: str
    highest_bytes: int
    lowest_bytes: int
    mean_bytes: int
    imbalance_ratio: float


def totals(ranks: Job) -> Totals:
    """Return the headline of a job."""
    rows = ranks.ranks.loc[ranks.compared]
    peaks = rows["peak_bytes"]
    return Totals(
        processes=len(ranks.ranks),
        compared=len(rows),
        are_ranks=ranks.are_ranks,
        device=str(rows["device"].iloc[0]).partition(":")[0] if len(rows) else "",
        worst=ranks.worst,
        highest_bytes=ranks.peak_bytes,
        lowest_bytes=int(peaks.min()) if len(rows) else 0,
        mean_bytes=round(peaks.mean()) if len(rows) else 0,
        imbalance_ratio=ranks.imbalance_ratio,
    )


@dataclass(frozen=True, slots=True)
class CategorySpread:
    """The bytes of one category at the peaks of the compared processes."""

    name: str
    lowest_bytes: int
    mean_bytes: int
    highest_bytes: int
    worst_bytes: int
    """That of the process with the highest peak."""
    highest_in: str
    """The process with most of it, empty where all have as much."""


def category_spreads(ranks: Job) -> list[CategorySpread]:
    """Return the categories that any compared process has at its peak, in the order of CATEGORIES."""
    if not ranks.compared:
        return []
    table: pd.DataFrame = ranks.categories.loc[ranks.compared]
    return [
        CategorySpread(
            name=name,
            lowest_bytes=int(sizes.min()),
            mean_bytes=round(sizes.mean()),
            highest_bytes=int(sizes.max()),
            worst_bytes=int(sizes[ranks.worst]),
            highest_in=str(sizes.idxmax()) if sizes.max() > sizes.min() else "",
        )
        for name in CATEGORIES
        if (sizes := table[name]).max() > 0
    ]


def headline(ranks: Job) -> str:
    """Return which process has the highest peak, and what to do about it; "" if nothing is known of any process."""
    found = totals(ranks)
    if not found.compared:
        return ""
    figures = {
        "worst": found.worst,
        "highest": format_bytes(found.highest_bytes),
        "share": f"{100 * found.imbalance_ratio:.1f} %",
        "count": found.compared,
    }
    is_equal = found.lowest_bytes == found.highest_bytes and found.compared > 1
    if is_equal and not found.are_ranks:
        text = words.HEADLINE_EQUAL_PROCESSES.format(**figures)
    elif not found.are_ranks or found.compared == 1:
        text = words.HEADLINE_PROCESS.format(**figures)
    elif is_equal:
        text = words.HEADLINE_EQUAL.format(**figures) + words.TO_DO_EQUAL
    else:
        text = words.HEADLINE.format(**figures) + words.TO_DO.format(**figures)
    findings = ranks.worst_reading.findings if ranks.worst_reading is not None else []
    predicted_bytes = getattr(next(iter(findings), None), "predicted_peak_bytes", None)
    if predicted_bytes is not None and found.lowest_bytes < found.highest_bytes:
        text += words.TO_DO_FINDING.format(nbytes=format_bytes(predicted_bytes))
    return text[:1].upper() + text[1:]
