"""Read the limits on this process's memory, and the memory in use.

If a control group reaches its limit, the kernel kills a process in it, and no error is raised. Containers have such
limits, in files of version 1 or 2 of the interface. `RLIMIT_AS` (`ulimit -v`) limits the address space. If a process
reaches it, allocations fail.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

import psutil

from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Iterator

ADDRESS_SPACE: Final = "RLIMIT_AS (ulimit -v)"
_NO_LIMIT_BYTES: Final = 1 << 62
"""Version 1 writes a number near 2**63 if there is no limit."""
_NO_OVERCOMMIT: Final = 2
"""With this setting, the kernel limits the sum of the memory that all processes have requested."""
_RECLAIMABLE: Final = ("active_file", "inactive_file", "slab_reclaimable")
"""Lines of `memory.stat` with memory that the kernel takes back before it kills a process: cached files, mostly."""


@dataclass(frozen=True)
class Limit:
    """A limit on memory, in bytes.

    Attributes:
        name: the name that messages show.
        limit_bytes: the limit.
        used_bytes: the memory that counts against it, without memory that the kernel takes back.
    """

    name: str
    limit_bytes: int
    used_bytes: int

    @property
    def used_ratio(self) -> float:
        """The share that is in use."""
        return self.used_bytes / max(self.limit_bytes, 1)

    @property
    def room_bytes(self) -> int:
        """The memory that is left."""
        return max(self.limit_bytes - self.used_bytes, 0)


@dataclass(frozen=True)
class _Group:
    """The files of one control group, of version 1 or 2."""

    folder: Path
    version: int

    def read(self) -> Limit | None:
        """Return the limit; None for a group without a limit."""
        limit_file, usage_file = (
            ("memory.max", "memory.current")
            if self.version == 2
            else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        )
        limit_bytes = _number(self.folder / limit_file)
        if limit_bytes is None or limit_bytes >= _NO_LIMIT_BYTES:
            return None
        usage_bytes = _number(self.folder / usage_file)
        if usage_bytes is None:
            return None
        used_bytes = max(usage_bytes - self._reclaimable_bytes(), 0)
        return Limit(f"the memory limit of the control group {self.folder}", limit_bytes, used_bytes)

    def _reclaimable_bytes(self) -> int:
        prefix = "" if self.version == 2 else "total_"
        wanted = {prefix + name for name in _RECLAIMABLE}
        lines = (line.split() for line in _lines(self.folder / "memory.stat"))
        return sum(
            int(line[1]) for line in lines if len(line) == 2 and line[0] in wanted and line[1].isdecimal()
        )


class MemoryLimits:
    """The limits of this process.

    Args:
        root: the folder that has `proc` and `sys`; tests put files of their own there. `RLIMIT_AS` is always read from
            this process.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._groups = list(_groups_of_this_process(root))
        pressure_files = [group.folder / "memory.pressure" for group in self._groups if group.version == 2]
        self._pressure_file = next(
            (file for file in pressure_files if file.exists()), root / "proc/pressure/memory"
        )

    def read(self) -> list[Limit]:
        """Return the limits that exist, the limit with the least room first."""
        found = [limit for group in self._groups if (limit := group.read()) is not None]
        found += [limit] if (limit := _address_space(self._root)) is not None else []
        return sorted(found, key=lambda each: each.room_bytes)

    def free_at_peak_bytes(self) -> int | None:
        """Return the memory that was free when the process was largest; None if another limit may be near.

        When the error of a failed call arrives, the memory of this call is free again. So the kernel's peaks count, and
        not the current figures.
        """
        if self._may_reach_another_limit():
            return None
        peaks = dict(line.split()[:2] for line in _lines(self._root / "proc/self/status") if line[:2] == "Vm")
        if not {"VmPeak:", "VmHWM:", "VmRSS:"} <= peaks.keys():
            return None
        address_space, resident, now = (int(peaks[name]) << 10 for name in ("VmPeak:", "VmHWM:", "VmRSS:"))
        limits = self.read()
        rooms = [each.limit_bytes - address_space for each in limits if each.name == ADDRESS_SPACE]
        others = [each.room_bytes for each in limits if each.name != ADDRESS_SPACE]
        others.append(psutil.virtual_memory().available)
        rooms += [room - (resident - now) for room in others]
        return max(min(rooms), 0)

    def peak_bytes(self) -> int | None:
        """Return the most memory that this process had in RAM; None if the system does not count it."""
        lines = [line.split() for line in _lines(self._root / "proc/self/status")]
        return next((int(words[1]) << 10 for words in lines if words[:1] == ["VmHWM:"]), None)

    def _may_reach_another_limit(self) -> bool:
        """Return whether requests may fail because of a limit that :meth:`read` does not read."""
        try:
            import resource
        except ImportError:  # Windows
            return True
        most_mappings = _number(self._root / "proc/sys/vm/max_map_count")
        return (
            resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
            or _number(self._root / "proc/sys/vm/overcommit_memory") == _NO_OVERCOMMIT
            or (most_mappings is not None and 2 * len(_lines(self._root / "proc/self/maps")) > most_mappings)
        )

    def stalled_percent(self) -> float:
        """Return how long processes waited for memory, in percent of the last 10 s.

        The kernel counts this for a control group of version 2, or else for the whole machine. 0 if it does not.
        """
        lines = [line.split() for line in _lines(self._pressure_file)]
        words = [word for first, *others in filter(None, lines) if first == "some" for word in others]
        return next((float(word.removeprefix("avg10=")) for word in words if word.startswith("avg10=")), 0.0)


def _groups_of_this_process(root: Path) -> Iterator[_Group]:
    """Yield the control groups of this process and their parents. A limit of a parent counts too."""
    mounts = [words for line in _lines(root / "proc/self/mountinfo") if "-" in (words := line.split())]
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, own = (line + "::").split(":", 2)
        own = own.removesuffix("::")  # added above, so that a damaged line also has three parts
        version = 2 if not controllers else 1
        if version == 1 and "memory" not in controllers.split(","):
            continue
        for words in mounts:
            kind, options = words[words.index("-") + 1], words[-1].split(",")
            if kind != ("cgroup2" if version == 2 else "cgroup") or (
                version == 1 and "memory" not in options
            ):
                continue
            mounted, place = words[3], root / words[4].lstrip("/")
            # a container sees a part of the tree: the mounted folder has the files of `mounted`
            is_below = PurePosixPath(own).is_relative_to(mounted)
            below = os.path.relpath(own, mounted) if is_below else "."
            folder = place / below if below != "." else place
            yield from (_Group(each, version) for each in (folder, *folder.parents) if _is_in(each, place))
            break


def _is_in(folder: Path, place: Path) -> bool:
    return folder == place or place in folder.parents


def _address_space(root: Path) -> Limit | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit_bytes = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit_bytes == resource.RLIM_INFINITY:
        return None
    pages = _lines(root / "proc/self/statm")
    if not pages:
        return None
    return Limit(ADDRESS_SPACE, limit_bytes, int(pages[0].split()[0]) * resource.getpagesize())


def _number(file: Path) -> int | None:
    lines = _lines(file)
    return int(lines[0]) if lines and lines[0].isdecimal() else None


def _lines(file: Path) -> list[str]:
    """Return the lines of a small file, none if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        pass_on(error)
        return []
