"""Figures of a job that the terminal and the page show: the totals, the headline and the spread of each category."""

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
    """The properties of `Ranks` that the terminal and the page read. `Ranks` imports both, so they cannot import it."""

    @property
    def compared(self) -> list[str]:
        """The processes that are compared with each other."""

    @property
    def are_ranks(self) -> bool:
        """Whether the compared processes are ranks of a job."""

    @property
    def ranks(self) -> pd.DataFrame:
        """One row per process."""

    @property
    def steps(self) -> pd.DataFrame:
        """The peak of every step in every process."""

    @property
    def categories(self) -> pd.DataFrame:
        """The bytes at the peak of each process, with a column for each category."""

    @property
    def sites(self) -> pd.DataFrame:
        """The largest groups of storages that were alive at the peaks."""

    @property
    def differences(self) -> pd.DataFrame:
        """The sites with more bytes at the peak of one rank than at the peak of another."""

    @property
    def notes(self) -> Sequence[tuple[str, str]]:
        """Notes about the figures, each with a kind and a sentence."""

    @property
    def worst(self) -> str:
        """The compared process with the highest peak; empty if no process has figures."""

    @property
    def worst_path(self) -> str:
        """The path of the capture of `worst`; empty if it has no file."""

    @property
    def worst_reading(self) -> Reading | None:
        """The recording of `worst`; None if its tables cannot be read."""

    @property
    def peak_bytes(self) -> int:
        """The peak of `worst`, bytes."""

    @property
    def imbalance_ratio(self) -> float:
        """The highest peak divided by the mean of the peaks, minus 1."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The peaks of a job in a few numbers, sizes in bytes.

    Attributes:
        processes: number of known processes, also of those that are not compared.
        compared: number of compared processes.
        are_ranks: whether the compared processes are ranks.
        device: the kind of device that the figures are about, such as `cuda`; empty without compared processes.
        worst: the compared process with the highest peak.
        highest_bytes: the peak of `worst`.
        lowest_bytes: the lowest peak of the compared processes.
        mean_bytes: the mean of their peaks.
        imbalance_ratio: the highest peak divided by the mean, minus 1.
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
    """Return the totals of a job."""
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
    """The bytes of one category at the peaks of the compared processes.

    Attributes:
        name: the category.
        lowest_bytes: the least bytes in any process.
        mean_bytes: the mean of the processes.
        highest_bytes: the most bytes in any process.
        worst_bytes: the bytes in the process with the highest peak.
        highest_in: the first process with `highest_bytes`; empty if all processes have the same bytes.
    """

    name: str
    lowest_bytes: int
    mean_bytes: int
    highest_bytes: int
    worst_bytes: int
    highest_in: str


def category_spreads(ranks: Job) -> list[CategorySpread]:
    """Return a spread for each category that a compared process has at its peak, in the order of CATEGORIES."""
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
    """Return which process has the highest peak, and what to do about it; "" without compared processes."""
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
