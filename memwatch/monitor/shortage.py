"""The facts of the moment when memory ran out, or nearly did, and the changes that would have left room."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from memwatch.device_names import CPU
from memwatch.devices import Failure, adapter_of, devices_in_use
from memwatch.devices.reserved import reserved_in
from memwatch.job import program_name
from memwatch.monitor.live_memory import (
    ARRAY,
    GRADIENT,
    NOBODY,
    OTHER,
    PARAMETER,
    SAVED,
    STATE,
    LiveMemory,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.devices.reserved import Reserved
    from memwatch.monitor.limits import Limit
    from memwatch.monitor.live_memory import Group
    from memwatch.monitor.rows import ProcessRows

ESTIMATED: Final = "estimated"
_LEAST_SHARE: Final = 0.01
"""A change or a container that saves less than this share of the memory is not listed."""
_MOST_ERROR_LETTERS: Final = 400


@dataclass(frozen=True)
class Change:
    """A change to the program, and the bytes that it would save.

    Attributes:
        change: what to do.
        category: the memory that it concerns: a category of tensors, or a row of the process.
        saved_bytes: the bytes, computed from the live bytes of the category. Nobody ran the changed program.
        is_upper_bound: whether it saves less than that if the program needs part of the memory anyway.
        basis: always `estimated`.
    """

    change: str
    category: str
    saved_bytes: int
    is_upper_bound: bool = True
    basis: str = ESTIMATED


@dataclass
class Shortage:
    """The facts of the moment.

    Attributes:
        error: class and text of the error; empty if a limit was nearly reached.
        limit: the limit that was nearly reached.
        asked_bytes: the request that failed, where the error has it.
        in_worker: whether another process or thread raised the error first.
        limits: the limits on the process, the limit with the least room first.
        reserved: the memory that the caching allocator of each device holds.
        rows: the memory of the process, if it could be read.
        trimmable_bytes: about what `malloc_trim(0)` would return to the system.
        live: what is alive.
        recent: resident bytes of the process at the watch's last looks, with their times.
        notes: sentences about facts that are not known.
    """

    error: str = ""
    limit: Limit | None = None
    asked_bytes: int | None = None
    in_worker: bool = False
    limits: list[Limit] = field(default_factory=list)
    reserved: dict[str, Reserved] = field(default_factory=dict)
    rows: ProcessRows | None = None
    trimmable_bytes: int = 0
    live: LiveMemory = field(default_factory=LiveMemory)
    recent: list[tuple[float, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    time_s: float = field(default_factory=time.time)
    pid: int = field(default_factory=os.getpid)
    program: str = field(default_factory=program_name)

    def set_error(self, error: BaseException) -> None:
        """Take the facts from an error, without running code of its class."""
        failure = Failure.of(error)
        self.asked_bytes, self.in_worker = failure.asked_bytes, failure.in_worker
        lines = BaseException.__str__(error).strip().splitlines()
        # the error of a worker has the worker's traceback in between
        ends = lines if len(lines) < 2 else [lines[0], lines[-1]]
        text = " ... ".join(line[:_MOST_ERROR_LETTERS] for line in ends)
        self.error = f"{type(error).__name__}: {text}" if text else type(error).__name__

    def note_failure(self, what: str, read: Callable[[], None]) -> None:
        """Call a function that reads some facts. If it fails, the report has a note about that instead."""
        try:
            read()
        except MemoryError:
            self.notes.append(f"{what}: not known, because there was no memory to find out")
        except Exception as error:
            self.notes.append(f"{what}: not known ({type(error).__name__}: {error})")

    def read_reserved(self) -> None:
        """Read what the caching allocators hold."""
        for device in devices_in_use():
            if device != CPU:
                held = reserved_in(adapter_of(device).segments(device))
                if held.reserved_bytes:
                    self.reserved[device] = held

    def bytes_by_category(self, device: str) -> dict[str, int]:
        """Return the live bytes of each category on a device, largest first."""
        found: dict[str, int] = {}
        for group in self.live.groups:
            if group.device == device:
                found[group.category] = found.get(group.category, 0) + group.nbytes
        return dict(sorted(found.items(), key=lambda each: -each[1]))

    @property
    def devices(self) -> list[str]:
        """The devices with live tensors, by their bytes, largest first."""
        total: dict[str, int] = {}
        for group in self.live.groups:
            total[group.device] = total.get(group.device, 0) + group.nbytes
        return sorted(total, key=lambda device: -total[device])

    @property
    def large_containers(self) -> list[tuple[str, str, int, int]]:
        """The containers of Python that matter beside RSS: kind, holder, entries, bytes."""
        least_bytes = 0 if self.rows is None else _LEAST_SHARE * self.rows.rss_bytes
        return [
            (each.kind, each.holder, each.entries, each.nbytes)
            for each in self.live.containers
            if each.nbytes >= least_bytes and each.holder != NOBODY
        ]

    @property
    def changes(self) -> list[Change]:
        """The changes that would have left room, by the saved bytes, largest first."""
        found: list[Change] = []
        for device in self.devices:
            groups = [group for group in self.live.groups if group.device == device]
            where = "" if device == CPU else f" on {device}"
            found += [*_changes_of_training(groups, where), *_changes_of_holders(groups, where)]
        for device, held in self.reserved.items():
            asked_bytes = self.asked_bytes or 0
            # the allocator had enough, but in pieces that are too small for the request
            if held.largest_free_bytes < asked_bytes <= held.free_bytes:
                found.append(
                    Change(
                        f"set PYTORCH_ALLOC_CONF=expandable_segments:True: {device} had enough free "
                        "memory, but in pieces too small for the request",
                        "reserved",
                        held.free_bytes,
                    )
                )
        total = sum(group.nbytes for group in self.live.groups)
        if self.rows is not None:
            total = max(total, self.rows.rss_bytes)
            found.append(
                Change(
                    "set MALLOC_ARENA_MAX=2, or call glibc's malloc_trim(0) at times",
                    "malloc, free",
                    self.trimmable_bytes,
                )
            )
        found += [
            Change(f"drop entries of the `{kind}` held by {holder}", "Python objects", nbytes)
            for kind, holder, _, nbytes in self.large_containers
        ]
        listed = [each for each in found if each.saved_bytes >= max(_LEAST_SHARE * total, 1)]
        return sorted(listed, key=lambda each: -each.saved_bytes)


def _changes_of_training(groups: list[Group], where: str) -> list[Change]:
    """Return the changes for memory that every training has, from its bytes alone."""

    def of(category: str) -> list[Group]:
        return [group for group in groups if group.category == category]

    # the layers of a running forward; a graph that an attribute or a container keeps is not one
    saved = sum(group.nbytes for group in of(SAVED) if not group.is_kept)
    gradients = sum(group.nbytes for group in of(GRADIENT))
    largest_gradient = max((group.largest_bytes for group in of(GRADIENT)), default=0)
    float32_state = sum(group.float32_bytes for group in of(STATE))
    float32_parameters = sum(group.float32_bytes for group in of(PARAMETER))
    return [
        Change(f"checkpoint the layers (torch.utils.checkpoint){where}", SAVED, saved),
        Change(f"halve the batch{where}", SAVED, saved // 2, is_upper_bound=False),
        Change(
            f"run the optimizer's step inside backward, one parameter at a time{where}",
            GRADIENT,
            gradients - largest_gradient,
        ),
        Change(
            f"use an optimizer with 8-bit state{where}", STATE, float32_state * 3 // 4, is_upper_bound=False
        ),
        Change(
            f"keep the parameters in bfloat16{where}",
            PARAMETER,
            float32_parameters // 2,
            is_upper_bound=False,
        ),
    ]


def _changes_of_holders(groups: list[Group], where: str) -> list[Change]:
    """Return a change for each holder of other memory: to drop it as soon as nobody needs it."""
    kept_graphs = [
        Change(f"detach the tensors{where} that keep autograd's graph: {group.holder}", SAVED, group.nbytes)
        for group in groups
        if group.category == SAVED and group.is_kept and group.holder != NOBODY
    ]
    return kept_graphs + [
        Change(f"free earlier, or move elsewhere{where}: {group.holder}", group.category, group.nbytes)
        for group in groups
        if group.category in (OTHER, ARRAY) and group.holder != NOBODY
    ]
