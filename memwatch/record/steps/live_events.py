"""The allocator's events of a program of which some stretches are not recorded.

The live curve goes on through such a stretch, but what was made and freed within it is left out. So the events that are
kept are few, and still exact: the live bytes at every moment outside of these stretches, and at the highest moment
of all, are what the allocator says. What each step's highest moment was is measured before anything is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.capture.schema import RECORDED_BY_NAME

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.capture.packed import IntArray

_COLUMNS: Final = RECORDED_BY_NAME["allocator"].names
_TIME, _ADDRESS, _BYTES, _DEVICE = map(_COLUMNS.index, ("time_ns", "address", "nbytes", "device"))
_WRITTEN: Final = -1
"""The stretch of blocks whose birth is in the capture already."""
_WAITED: Final = -2
"""The stretch of what waits, where a recorded stretch follows."""
_NOWHERE: Final = 0
"""The address of a death at an unknown place: it counts, and is in no table."""


class Heard(NamedTuple):
    """New events, measured.

    Attributes:
        rows: rows of the table `allocator`, in order.
        live_bytes: live bytes on the device of each row after it.
        is_known: whether each is the birth of a block, or the free of one whose birth was heard.
    """

    rows: IntArray
    live_bytes: IntArray
    is_known: NDArray[np.bool_]


class LiveEvents:
    """Measure the live bytes after each event, and leave out what need not be kept.

    Attributes:
        live_bytes: what is live on each device, by string id, after the last event that was measured.
        highest_bytes: the most that ever was.
    """

    def __init__(self) -> None:
        self.live_bytes: dict[int, int] = {}
        self.highest_bytes: dict[int, int] = {}
        self._with_books: set[int] = set()
        self._alive = self._waiting = _none()

    def enter(self, device: int, nbytes: int, *, has_books: bool) -> None:
        """Begin with what is live on a device when the block is entered.

        Args:
            device: string id of the device.
            nbytes: what is live.
            has_books: whether its allocator said so: then it tells of the frees of that, too.
        """
        self.live_bytes[device] = self.highest_bytes[device] = nbytes
        if has_books:
            self._with_books.add(device)

    def hears_frees_of(self, devices: IntArray) -> NDArray[np.bool_]:
        """Return for which devices the frees of what was there at entry are heard."""
        return np.isin(devices, list(self._with_books))

    def measure(self, rows: IntArray) -> Heard:
        """Return new events with the live bytes after each of them.

        Args:
            rows: rows of the table `allocator` in order, and deaths of what was there at entry as rows at address 0.
        """
        blocks = self._blocks(rows)
        before, _ = _neighbours(blocks)
        nbytes = np.append(blocks[:, _BYTES], 0)
        earlier_bytes = nbytes[before[len(blocks) - len(rows) :]]
        follows_birth, is_birth = earlier_bytes > 0, rows[:, _BYTES] > 0
        is_known = is_birth | follows_birth
        is_of_entry = self.hears_frees_of(rows[:, _DEVICE]) | (rows[:, _ADDRESS] == _NOWHERE)
        change = np.where(is_birth | (is_of_entry & ~is_known), rows[:, _BYTES], 0)
        change -= np.where(follows_birth, earlier_bytes, 0)  # its free, or one that was missed
        live = np.zeros(len(rows), dtype=np.int64)
        for device in np.unique(rows[:, _DEVICE]).tolist():
            here = rows[:, _DEVICE] == device
            live[here] = self.live_bytes.get(device, 0) + np.cumsum(change[here])
            self.live_bytes[device] = int(live[here][-1])
        return Heard(rows, live, is_known | is_of_entry)

    def sift(self, heard: Heard, bounds_ns: IntArray, is_left_out: NDArray[np.bool_]) -> IntArray:
        """Return the rows to keep: all of recorded stretches, and of others what matters outside of them.

        What is still alive in an unrecorded stretch that has not ended waits for the next call.

        Args:
            heard: the events since the last call.
            bounds_ns: when a stretch ends and another begins, in order, shape (n,).
            is_left_out: of each stretch whether it is unrecorded, shape (n + 1,).
        """
        rows, written = self._blocks(heard.rows), len(self._alive)
        first = written + len(self._waiting)
        stretch = np.searchsorted(bounds_ns, heard.rows[:, _TIME], side="right")
        left_out = np.ones(len(rows), dtype=bool)
        left_out[:written], left_out[first:] = False, is_left_out[stretch]
        splits = self._new_peaks(heard, left_out[first:])
        part = np.full(len(rows), 0 if is_left_out[0] else _WAITED)
        part[:written] = _WRITTEN
        part[first:] = stretch + np.searchsorted(splits, np.arange(len(stretch)), side="left")
        before, after = _neighbours(rows)
        is_birth = rows[:, _BYTES] > 0
        # a block whose free was missed ends where its address is allocated again: several births before one free
        partner = np.where(is_birth, after, _first_births(before, is_birth)[before])
        has_partner = np.where(is_birth, after, before) >= 0
        kept = ~(left_out & has_partner & (part[partner] == part) & (is_birth | is_birth[partner]))
        kept[first:] &= (heard.is_known | ~left_out[first:]) & (heard.rows[:, _ADDRESS] != _NOWHERE)
        waits = kept & (part == len(bounds_ns) + len(splits)) & bool(is_left_out[-1])
        lives = (
            is_birth & kept & ((after < 0) | waits[after])
        )  # as the file knows it, until what ends it is written
        self._alive, self._waiting = rows[lives & ~waits], rows[waits]
        kept[:written] = False  # these are in the capture
        written_now: IntArray = rows[kept & ~waits]
        return written_now

    def rest(self) -> IntArray:
        """Return what waits: the recording ends."""
        rest, self._waiting = self._waiting, _none()
        return rest

    def _blocks(self, rows: IntArray) -> IntArray:
        return np.concatenate([self._alive, self._waiting, rows])

    def _new_peaks(self, heard: Heard, left_out: NDArray[np.bool_]) -> IntArray:
        """Return which events of unrecorded stretches are higher than all there was; note the highest."""
        found = []
        for device in np.unique(heard.rows[:, _DEVICE]).tolist():
            here = np.flatnonzero(heard.rows[:, _DEVICE] == device)
            top = int(here[np.argmax(heard.live_bytes[here])])
            if heard.live_bytes[top] > self.highest_bytes.get(device, 0):
                self.highest_bytes[device] = int(heard.live_bytes[top])
                if left_out[top]:
                    found.append(top)
        return np.array(sorted(found), dtype=np.int64)


def _none() -> IntArray:
    return np.zeros((0, len(_COLUMNS)), dtype=np.int64)


def _neighbours(rows: IntArray) -> tuple[IntArray, IntArray]:
    """Return, for each row, the one before and the one after it at the same address of a device; -1 for none."""
    order = np.lexsort((np.arange(len(rows)), rows[:, _ADDRESS], rows[:, _DEVICE]))
    places = rows[order][:, [_DEVICE, _ADDRESS]]
    is_same = (places[1:] == places[:-1]).all(axis=1)
    before, after = (np.full(len(rows), -1, dtype=np.int64) for _ in range(2))
    before[order[1:][is_same]] = order[:-1][is_same]
    after[order[:-1][is_same]] = order[1:][is_same]
    return before, after


def _first_births(before: IntArray, is_birth: NDArray[np.bool_]) -> IntArray:
    """Return, for each birth, the first one at its address since a free was heard there; any other row itself."""
    first: IntArray = np.where(is_birth & (before >= 0) & is_birth[before], before, np.arange(len(before)))
    while not np.array_equal(first, first[first]):
        first = first[first]
    return first
