"""One training as a block: what all callbacks do at its beginning, at its steps and at its end."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from memwatch.errors import MemwatchError
from memwatch.job import JobPlace, named_for
from memwatch.profile import Profile, profile

if TYPE_CHECKING:
    import os

PEAK: Final = "memwatch/peak_bytes"
PEAK_INCREASE: Final = "memwatch/peak_increase_bytes"
HIGHEST_PEAK: Final = "memwatch/highest_peak_bytes"
"""Names under which a trainer's logger gets the figures; the last is of all ranks, on rank 0."""
_FAKE: Final = "fake"


class Training:
    """A block around a training.

    Args:
        path: where the capture goes, which may hold `{rank}`, `{pid}` and `{host}`; None keeps it in memory.
        page: where the page goes at the end; None writes none. Of several ranks each has its own.
        schedule: which steps are recorded; see `memwatch.profile`.
        options: the other options of `memwatch.profile`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        page: str | os.PathLike[str] | None = None,
        schedule: Any = None,
        **options: Any,
    ) -> None:
        self._path, self._page = path, page
        self._options = options if schedule is None else {**options, "schedule": schedule}
        self.profile: Profile | None = None
        self._is_open = False

    def begin(self) -> Profile:
        """Enter the block; one that an error of the trainer left open ends first."""
        self.end()
        # ranks are known only now: trainers make the process group
        path = None if self._path is None else named_for(JobPlace.here(), self._path)
        self.profile = profile(path, **self._options)
        self.profile.__enter__()
        self._is_open = True
        return self.profile

    def step(self) -> None:
        """Mark the start of a new iteration."""
        if self._is_open and self.profile is not None:
            self.profile.step()

    def end(self, *, together: bool = False) -> dict[str, int]:
        """Leave the block, write the page, and return figures for a logger; nothing where no block is open.

        What cannot be written is a warning: a training that has succeeded must not fail for it.

        Args:
            together: whether all ranks come here, so that their figures can be gathered.
        """
        if not self._is_open or self.profile is None:
            return {}
        self._is_open = False
        self.profile.__exit__(None, None, None)
        try:
            figures = {
                PEAK: self.profile.peak_bytes,
                PEAK_INCREASE: self.profile.peak_increase_bytes,
            }
            place = JobPlace.here()
            if self._page is not None:
                self.profile.report(named_for(place, self._page), force=True)
            if together and place.is_one_of_many and place.backend != _FAKE:
                figures |= self._of_all_ranks()
        except MemwatchError as error:
            warnings.warn(f"memwatch: {error}", RuntimeWarning, stacklevel=2)
            return {}
        return figures

    def _of_all_ranks(self) -> dict[str, int]:
        assert self.profile is not None
        ranks = self.profile.gather()
        if ranks is None:
            return {}
        if self._page is not None:
            page = Path(self._page)
            ranks.report(page.with_name(f"{page.stem}.ranks{page.suffix}"), force=True)
        return {HIGHEST_PEAK: ranks.peak_bytes}
