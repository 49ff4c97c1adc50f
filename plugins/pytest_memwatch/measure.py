"""Measure the peak of a test body, also when the body opens its own profile in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

    from memwatch.profile import Profile
    from memwatch.reading import Reading


class Measurement:
    """Profiles a block; stands back while the block has a profile of its own: only one can be open."""

    def __init__(self) -> None:
        self.readings: list[Profile] = []
        self._open: Profile | None = None

    def __enter__(self) -> Measurement:
        self.resume()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pause()

    def resume(self) -> None:
        """Go on measuring."""
        import memwatch

        self._open = memwatch.profile(holders=False)
        self._open.__enter__()

    def pause(self) -> bool:
        """Stop measuring, and say whether that was necessary."""
        profile, self._open = self._open, None
        if profile is None:
            return False
        profile.__exit__(None, None, None)
        self.adopt(profile)
        return True

    def adopt(self, profile: Profile) -> None:
        """Count a finished profile as a part of the block."""
        self.readings.append(profile)

    @property
    def highest(self) -> Profile:
        """The part with the highest peak."""
        return max(self.readings, key=lambda reading: reading.peak_bytes)

    def peak_increase_bytes(self, device: str | None = None) -> int:
        """Return the most that the block added, bytes: on one device, or on the one the profile is about."""
        first = self.readings[0].baseline_bytes
        return max(
            reading.baseline_bytes - first + _increase_bytes(reading, device) for reading in self.readings
        )


def _increase_bytes(reading: Reading, device: str | None) -> int:
    """Sum what was allocated in the block, on one device, and find the maximum over time."""
    if device is None:
        return reading.peak_increase_bytes
    born = reading.storages.query("birth_event >= 0")
    there = born.index[(born["device"] == device) | born["device"].str.startswith(f"{device}:")]
    timeline = reading.timeline
    live = timeline["delta_bytes"].where(timeline["storage"].isin(there), 0).cumsum()
    return max(0, int(live.max())) if len(live) else 0


def describe(measurement: Measurement, *, top: int, stack_depth: int) -> dict[str, Any]:
    """Return the figures of a test as plain data.

    Args:
        measurement: finished.
        top: most allocations to list; 0 for all.
        stack_depth: frames for each.
    """
    reading = measurement.highest
    return {
        "peak_bytes": int(reading.peak_bytes),
        "baseline_bytes": int(measurement.readings[0].baseline_bytes),
        "peak_increase_bytes": int(measurement.peak_increase_bytes()),
        "device": reading.device,
        "allocations": int(sum((part.timeline["delta_bytes"] > 0).sum() for part in measurement.readings)),
        "top": largest_lines(reading, top=top, stack_depth=stack_depth),
    }


def largest_lines(reading: Reading, *, top: int, stack_depth: int) -> list[dict[str, Any]]:
    """List the lines that made what the block had allocated at its peak, largest first."""
    from memwatch.heap.names import place

    there = reading.storages.loc[reading.at_peak.index]
    there = there[there["birth_event"] >= 0]
    rows: list[dict[str, Any]] = []
    for line, group in there.groupby("line", sort=False):
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
