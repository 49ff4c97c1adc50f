"""Measure the peak of a test body, even if the body opens a profile of its own."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    import pandas as pd

    from memwatch.profile import Profile
    from memwatch.reading import Reading


class Measurement:
    """Profiles a block. Only one profile can be open at a time, so the measurement pauses while the block profiles.

    Args:
        holders: whether the profiles search for holders.
        holders_from_bytes: they search only while the block's own live bytes are at least this.

    Attributes:
        readings: the finished profiles in order, those of the measurement and those of the block.
        own: number of finished profiles of the block itself. A profile that it entered twice counts twice.
    """

    def __init__(self, *, holders: bool = False, holders_from_bytes: int = 0) -> None:
        self.readings: list[Reading] = []
        self._holders, self._holders_from_bytes = holders, holders_from_bytes
        self.own = 0
        self._open: Profile | None = None
        self._restore: Callable[[], None] | None = None

    def __enter__(self) -> Measurement:
        self._resume()
        self._restore = _pause_for_own_profiles(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._restore is not None:
            self._restore()
        self._pause()

    def _resume(self) -> None:
        import memwatch

        self._open = memwatch.profile(holders=self._holders)
        self._open.holders_from_bytes = self._holders_from_bytes
        self._open.__enter__()

    def owns(self, profile: Profile) -> bool:
        """Return True for the profile of the measurement, False for a profile that the block opened."""
        return profile is self._open

    def _pause(self) -> bool:
        profile, self._open = self._open, None
        if profile is None:
            return False
        profile.__exit__(None, None, None)
        self.readings.append(profile)
        return True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the measurement, because the block enters a profile. Resume if the profile cannot be entered."""
        paused = self._pause()
        try:
            yield
        except BaseException:
            if paused:
                self._resume()
            raise

    def keep(self, profile: Profile) -> None:
        """Keep the figures of a profile that the block enters again, because its next recording replaces this one."""
        from memwatch.reading import Reading

        self.readings = [Reading(each.capture) if each is profile else each for each in self.readings]

    def left(self, profile: Profile) -> None:
        """Count a profile of the block that has just ended, and resume."""
        self.own += 1
        self.readings.append(profile)
        self._resume()

    @property
    def device(self) -> str:
        """The device that the figures are about: `cpu`, or the accelerator with the highest peak if one was used."""
        return max(self.readings, key=lambda reading: (reading.device != "cpu", reading.peak_bytes)).device

    @property
    def highest(self) -> Reading:
        """The reading with the highest peak on `device`."""
        device = self.device
        there = (reading.on(device) for reading in self.readings if device in reading.devices)
        return max(there, key=lambda reading: reading.peak_bytes)

    @property
    def baseline_bytes(self) -> int:
        """The bytes that were alive on `device` before the block."""
        return _sizes(self.readings[0], self.device)[0]

    def peak_increase_bytes(self, device: str | None = None) -> int:
        """Return the most bytes that the block added on a device, by default on `device`.

        For `"cuda"`, return the figure of the CUDA device to which the block added most.
        """
        if device is None:
            return self._increase_bytes(self.device)
        known = {name for reading in self.readings for name in reading.devices}
        wanted = [name for name in known if device in (name, name.partition(":")[0])]
        return max(map(self._increase_bytes, wanted), default=0)

    def _increase_bytes(self, device: str) -> int:
        sizes = [_sizes(reading, device) for reading in self.readings]
        first_bytes = sizes[0][0]
        return max(baseline_bytes - first_bytes + increase for baseline_bytes, increase in sizes)


def _most_at_once(reading: Reading) -> pd.DataFrame:
    """Return the block's own storages that were alive when their sum was highest.

    This moment can differ from the peak's, because the block may free older storages before it.
    """
    storages = reading.part("storages", ("counted", "nbytes", "birth_event", "death_event"))
    made = storages[storages["counted"] & (storages["birth_event"] >= 0)]
    freed = made[made["death_event"] >= 0]
    born, died = made.set_index("birth_event")["nbytes"], freed.set_index("death_event")["nbytes"]
    delta_bytes = born.groupby(level=0).sum().sub(died.groupby(level=0).sum(), fill_value=0)
    event = delta_bytes.sort_index().cumsum().idxmax() if len(made) else 0
    is_alive = (made["birth_event"] <= event) & ((made["death_event"] < 0) | (made["death_event"] > event))
    columns = ("nbytes", "line", "op_name", "stack")
    return reading.part("storages", columns, made.index[is_alive])


def _pause_for_own_profiles(measurement: Measurement) -> Callable[[], None]:
    """Patch `Profile` so that the measurement pauses while a profile of the block is open.

    Returns:
        A function that undoes the patch.
    """
    from memwatch.profile import Profile

    enter, leave = Profile.__enter__, Profile.__exit__
    inside: list[Profile] = []

    @functools.wraps(enter)
    def entering(self: Profile) -> Profile:
        if inside or measurement.owns(self):  # inside a profile of the block, memwatch refuses another one
            return enter(self)
        measurement.keep(self)
        with measurement.paused():
            entered = enter(self)
        inside.append(self)
        return entered

    @functools.wraps(leave)
    def leaving(self: Profile, *error: Any) -> None:
        leave(self, *error)
        if self in inside:
            inside.remove(self)
            measurement.left(self)

    def restore() -> None:
        Profile.__enter__, Profile.__exit__ = enter, leave  # type: ignore[method-assign]

    Profile.__enter__, Profile.__exit__ = entering, leaving  # type: ignore[method-assign]
    return restore


def _sizes(reading: Reading, device: str) -> tuple[int, int]:
    """Return the bytes that were alive on a device at entry, and the peak increase there."""
    if device not in reading.devices:
        return 0, 0
    there = reading.on(device)
    return there.baseline_bytes, there.peak_increase_bytes


def describe(measurement: Measurement) -> dict[str, Any]:
    """Return the figures of a test as plain data."""
    reading = measurement.highest
    return {
        "peak_bytes": int(reading.peak_bytes),
        "baseline_bytes": measurement.baseline_bytes,
        "peak_increase_bytes": int(measurement.peak_increase_bytes()),
        "device": reading.device,
        "allocations": sum(_allocations(part, reading.device) for part in measurement.readings),
        "own_profiles": measurement.own,
    }


def _allocations(reading: Reading, device: str) -> int:
    if device not in reading.devices:
        return 0
    return int((reading.on(device).part("timeline", ("delta_bytes",))["delta_bytes"] > 0).sum())


def largest_lines(reading: Reading, *, top: int, stack_depth: int) -> list[dict[str, Any]]:
    """Return the lines that made the storages of `_most_at_once`, largest first. Each has op and stack of one storage.

    Args:
        reading: the profile.
        top: how many lines to return; 0 for all.
        stack_depth: frames to return for each line.
    """
    from memwatch.words.places import place

    rows: list[dict[str, Any]] = []
    for line, group in _most_at_once(reading).groupby("line", sort=False):
        frames = [frame for frame in reading.stack(int(group["stack"].iloc[0])) if frame[3]]
        rows.append(
            {
                "nbytes": int(group["nbytes"].sum()),
                "count": len(group),
                "line": str(line),
                "op": str(group["op_name"].iloc[0]),
                "stack": [
                    f"{place(file, number)} in {function}"
                    for file, number, function, _ in frames[:stack_depth]
                ],
            }
        )
    rows.sort(key=lambda row: row["nbytes"], reverse=True)
    return rows[:top] if top else rows
