"""The lines that made leaked tensors, where a profile of the same test saw them made."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from memwatch.leaks import Leak
    from memwatch.reading import Reading

Line = tuple[str, int, str]
"""File, line and function."""
Lines = tuple[Line | None, Line | None]
"""The line that made a storage, and the one that called its function."""


def with_lines(leaks: Iterable[Leak], readings: Sequence[Reading]) -> list[Leak]:
    """Return leaks with their lines, of those where one line made every storage of the size that the test left."""
    return [leak if leak.site or leak.grows else _with_line(leak, readings) for leak in leaks]


def _with_line(leak: Leak, readings: Sequence[Reading]) -> Leak:
    from memwatch.words.leaks import site_phrase

    found = {lines for reading in readings for lines in _lines_of_size(leak, reading)}
    sites = {site for site, _ in found}
    site = sites.pop() if len(sites) == 1 else None
    if site is None:
        return leak
    callers = {caller for _, caller in found}
    caller = callers.pop() if len(callers) == 1 else None
    return replace(leak, site=site_phrase(*site), caller=None if caller is None else site_phrase(*caller))


def _lines_of_size(leak: Leak, reading: Reading) -> Iterator[Lines]:
    """Yield the lines of the storages that are as large as the leak's first one, and were not freed in the test."""
    storages = reading.storages
    made = (storages["birth_event"] >= 0) & (storages["device"] == leak.device)
    fitting = storages[made & (storages["nbytes"] == leak.first_bytes)]
    if leak.kind == "retained":  # the profile goes on while the search for leaks frees the rest
        fitting = fitting[fitting["death_event"] < 0]
    for stack in fitting["stack"].unique():
        yield _lines(reading.stack(int(stack)))


def _lines(frames: Sequence[Any]) -> Lines:
    """Return the line that made a storage and the one that called its function, without the runner's."""
    from memwatch.heap.frames import is_test_runner_code
    from memwatch.own_code import is_memwatch_code

    lines: list[Line] = [frame[:3] for frame in frames if frame[3] and not is_memwatch_code(frame[0])]
    callers = [line for line in lines[1:2] if not is_test_runner_code(line[0])]
    return lines[0] if lines else None, callers[0] if callers else None
