"""One training as a block: the common actions of all callbacks at its beginning, at its steps and at its end."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from memwatch.errors import MemwatchError
from memwatch.job import JobPlace, named_for
from memwatch.profile import Profile, profile
from memwatch.reading import peak_of_steps
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

PEAK: Final = "memwatch/peak_bytes"
PEAK_INCREASE: Final = "memwatch/peak_increase_bytes"
HIGHEST_PEAK: Final = "memwatch/highest_peak_bytes"
"""Names under which a trainer's logger gets the figures; the last is of all ranks, on rank 0."""
STEP_PEAK: Final = "memwatch/step_peak_bytes"
STEP_CATEGORY: Final = "memwatch/step_peak_bytes/{category}"
STEPS: Final = "memwatch/steps"
"""Names of the figures that are logged while the training runs.

They are the highest peak since the last log, its parts, and the number of steps since then.
"""
_SHARE_RATIO: Final = 0.02
"""The most of a training's time that the figures of its steps may take: a guess."""
_MOST_OPS: Final = 1_000_000
"""Ops. A longer recording is not read while it grows, because that takes hundreds of megabytes. A guess."""
_STEP_CURVE: Final = "step_curve"
"""The table with the peaks of steps where not every step is recorded: a row comes some steps after its step."""
_FAKE: Final = "fake"


class Training:
    """A block around a training.

    Args:
        path: the file of the capture, which may hold `{rank}`, `{pid}` and `{host}`; None keeps it in memory. A second
            training adds `-2` to the name of each file.
        page: the file of the page, written at the end; by default there is no page. Each rank has its own file.
        schedule: the steps to record; see `memwatch.profile`.
        log: called with the figures of steps while the training runs, unless it is None.
        options: the other options of `memwatch.profile`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        page: str | os.PathLike[str] | None = None,
        schedule: Any = None,
        log: Callable[[dict[str, int]], object] | None = None,
        **options: Any,
    ) -> None:
        self._path, self._page, self._trainings = path, page, 0
        self._options = options if schedule is None else {**options, "schedule": schedule}
        self._chooses_steps = schedule is not None or options.get("keep", "all") != "all"
        self.profile: Profile | None = None
        self._is_open = False
        self._log = log
        self._logged = 0
        self._began_s = self._spent_s = self._last_s = 0.0

    def begin(self) -> Profile:
        """Enter the block. A block that an error of the trainer left open ends first."""
        self.end()
        self._trainings += 1
        self.profile = profile(self._named(self._path), **self._options)
        self.profile.__enter__()
        self._is_open = True
        self._logged, self._began_s, self._spent_s, self._last_s = 0, time.monotonic(), 0.0, 0.0
        if self._log is not None:
            self.profile.on_step = self._log_steps
        return self.profile

    def _named(self, path: str | os.PathLike[str] | None) -> Path | None:
        """Return the file of this training in this process. A later training of one callback gets its number."""
        if path is None:
            return None
        # ranks are known only now: trainers make the process group
        return self._numbered(named_for(JobPlace.here(), path))

    def _numbered(self, file: Path) -> Path:
        return file if self._trainings == 1 else file.with_stem(f"{file.stem}-{self._trainings}")

    def step(self) -> None:
        """Mark the start of a new iteration."""
        if self._is_open and self.profile is not None:
            self.profile.step()

    def _log_steps(self) -> None:
        """Log the peak of the steps since the last log, if that is affordable; a training never fails for it."""
        assert self.profile is not None
        assert self._log is not None
        now_s = time.monotonic()
        # the next reading may take twice as long as the last one, because the recording is longer
        is_due = self._spent_s + 2 * self._last_s <= _SHARE_RATIO * (now_s - self._began_s)
        if not (is_due or not self._spent_s) or self.profile.num_ops_started > _MOST_OPS:
            return
        try:
            figures = self._figures_of_steps()
        except Exception as error:
            pass_on(error)
            self.profile.on_step = None
            warnings.warn(f"memwatch: steps are not logged any more: {error}", RuntimeWarning, stacklevel=2)
            return
        self._last_s = time.monotonic() - now_s
        self._spent_s += self._last_s
        if figures:
            self._log(figures)

    def _figures_of_steps(self) -> dict[str, int]:
        assert self.profile is not None
        reading = self.profile.so_far()
        if reading is None or (self._chooses_steps and not reading.capture.rows(_STEP_CURVE)):
            return {}
        found = peak_of_steps(reading, self._logged)
        if found is None:
            return {}
        self._logged += found.steps
        parts = {STEP_CATEGORY.format(category=name): nbytes for name, nbytes in found.categories}
        return {STEP_PEAK: found.peak_bytes, STEPS: found.steps, **parts}

    def end(self, *, together: bool = False) -> dict[str, int]:
        """Leave the block, write the page, and return figures for a logger.

        Without an open block the result is empty.

        A file that cannot be written is a warning: a training that has succeeded must not fail for it.

        Args:
            together: whether all ranks come here, so that their figures can be gathered.
        """
        if not self._is_open or self.profile is None:
            return {}
        self._is_open = False
        self.profile.on_step = None
        self.profile.__exit__(None, None, None)
        try:
            figures = {
                PEAK: self.profile.peak_bytes,
                PEAK_INCREASE: self.profile.peak_increase_bytes,
            }
            place = JobPlace.here()
            page = self._named(self._page)
            if page is not None:
                self.profile.report(page, force=True)
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
            page = self._numbered(Path(self._page))
            ranks.report(page.with_name(f"{page.stem}.ranks{page.suffix}"), force=True)
        return {HIGHEST_PEAK: ranks.peak_bytes}
