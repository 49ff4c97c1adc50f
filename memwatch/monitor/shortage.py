"""The facts of the moment when memory ran out, or nearly did, and the changes that would have left room."""

from __future__ import annotations

import dataclasses
import dis
import html
import json
import os
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psutil
import torch

from memwatch.device_names import CPU, is_host
from memwatch.devices import Failure, adapter_of, devices_in_use, is_of_host, is_of_numpy, is_out_of_memory
from memwatch.devices.adapters import reserved_in
from memwatch.job import program_name
from memwatch.monitor.live_memory import (
    ARRAY,
    GRADIENT,
    NOBODY,
    OBJECT,
    OTHER,
    PARAMETER,
    SAVED,
    STATE,
    LiveMemory,
)
from memwatch.monitor.process import of_process
from memwatch.monitor.process import record_of as record_of_process
from memwatch.sizes import format_bytes
from memwatch.text import visible
from memwatch.words.processes import (
    NO_CHANGE_FOR_RAISED,
    OTHER_PROCESS,
    RAISED,
    RAN_OUT,
    REQUEST_FAILED,
    TOO_LARGE,
    TOO_LARGE_UNKNOWN,
    reserved_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from memwatch.devices.adapters import Reserved
    from memwatch.monitor.limits import Limit
    from memwatch.monitor.live_memory import Group
    from memwatch.monitor.rows import ProcessRows

ESTIMATED: Final = "estimated"
_LEAST_SHARE: Final = 0.01
"""A change that saves less than this share of the memory is not listed, and neither is a smaller container. A guess."""
_MOST_ERROR_LETTERS: Final = 400  # characters of a line of the error's text; a guess


@dataclass(frozen=True)
class Change:
    """A change to the program, and the bytes that it would save.

    Attributes:
        change: what to do.
        category: the memory that it concerns: a category of tensors, or a row of the process.
        saved_bytes: the saved bytes, estimated from the memory in use. Nobody ran the changed program.
        is_upper_bound: whether the change saves less if the program needs part of that memory anyway.
        basis: always `estimated`.
    """

    change: str
    category: str
    saved_bytes: int
    is_upper_bound: bool = True
    basis: str = ESTIMATED


@dataclass
class Shortage:
    """The facts of the moment when memory ran out, or nearly did.

    Attributes:
        error: class and text of the error; empty if a limit was nearly reached.
        limit: the limit that was nearly reached; None for an error.
        asked_bytes: the size of the request that failed; None if the error does not contain it.
        in_worker: whether another process or thread raised the error first.
        in_process: whether that was another process. The other attributes then describe this process, whose memory
            did not run out.
        is_of_host: whether the memory of the host ran out, not that of an accelerator.
        is_memory_error: whether the error is a `MemoryError` without the size of a request.
        is_raised: whether a `raise` statement raised the error, and not an allocator. The error may also be the answer
            of the program to an error of an allocator: then this is False.
        free_bytes: the memory that was free when the process was largest; None if it is not known.
        peak_bytes: the most memory that the process had in RAM; None if it is not known.
        limits: the limits on the process, the limit with the least room first.
        reserved: the memory that the caching allocator of each device holds.
        rows: the memory of the process; None if it could not be read.
        trimmable_bytes: about the bytes that `malloc_trim(0)` would return to the system.
        live: the tensors and other large objects that are alive, with their holders.
        recent: the latest samples: a time in seconds since the epoch, and the resident bytes of the process.
        notes: sentences about facts that are not known.
        time_s: the time of the report, in seconds since the epoch.
        pid: the number of the process.
        program: its name.
    """

    error: str = ""
    limit: Limit | None = None
    asked_bytes: int | None = None
    in_worker: bool = False
    in_process: bool = False
    is_of_host: bool = True
    is_memory_error: bool = False
    is_raised: bool = False
    free_bytes: int | None = None
    peak_bytes: int | None = None
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
        """Take the facts from an error. The shown text is the one that Python stores, not the result of `__str__`."""
        failure = Failure.of(error)
        self.asked_bytes, self.in_worker = failure.asked_bytes, failure.in_worker
        self.in_process, self.is_of_host = failure.in_process, is_of_host(error)
        # `isinstance` may ask the object for its class
        is_memory_error = issubclass(type(error), MemoryError)
        self.is_memory_error = is_memory_error and not failure.by_limit and not failure.in_worker
        self.is_raised = all(_is_raised(each) for each in _shortages_of(error))
        # Python stores no text for numpy's error: only its own `__str__` makes one
        text = str(error) if is_of_numpy(error) else BaseException.__str__(error)
        lines = text.strip().splitlines()
        # between the first and the last line, the error of a worker has the worker's traceback
        ends = lines if len(lines) < 2 else [lines[0], lines[-1]]
        text = " ... ".join(line[:_MOST_ERROR_LETTERS] for line in ends)
        name = type(error).__qualname__ if is_of_numpy(error) else type(error).__name__
        self.error = f"{name}: {text}" if text else name

    def note_failure(self, what: str, read: Callable[[], None]) -> None:
        """Call a function that reads some facts. If it fails, add a note that names the missing facts.

        Args:
            what: the facts, in words.
            read: the function.
        """
        try:
            read()
        except MemoryError:
            self.notes.append(f"{what}: not known, because there was no memory to find out")
        except Exception as error:
            self.notes.append(f"{what}: not known ({type(error).__name__}: {error})")

    def read_reserved(self) -> None:
        """Read the memory that the caching allocators of accelerators hold."""
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
        """The containers of Python with at least 1 % of RSS and a known holder: kind, holder, entries, bytes."""
        least_bytes = 0 if self.rows is None else _LEAST_SHARE * self.rows.rss_bytes
        return [
            (each.kind, each.holder, each.entries, each.nbytes)
            for each in self.live.containers
            if each.nbytes >= least_bytes and each.holder != NOBODY
        ]

    @property
    def is_too_large(self) -> bool:
        """Whether the request would have failed even with all changes. Then its own size is the problem."""
        if self.asked_bytes is None or not self.is_of_host or self.in_process:
            return False
        rooms = [each.room_bytes for each in self.limits] or [psutil.virtual_memory().available]
        # some changes save the same bytes, so all of them together save less than this sum
        return self.asked_bytes > min(rooms) + sum(each.saved_bytes for each in self._possible_changes)

    @property
    def is_far_from_limits(self) -> bool:
        """Whether more memory was free than the process ever had.

        The guess is that one request was larger than all that, if the program did not raise the error itself. The size
        of the request is not known, so no change can be compared with it.
        """
        if not self.is_memory_error or self.asked_bytes is not None or self.limit is not None:
            return False
        return None not in (self.free_bytes, self.peak_bytes) and (self.free_bytes or 0) >= (
            self.peak_bytes or 0
        )

    @property
    def changes(self) -> list[Change]:
        """The changes that would have left room, by the saved bytes, largest first."""
        # if another process ran out of memory, changes of this process would not have helped it
        is_hopeless = self.in_process or self.is_too_large or self.is_far_from_limits
        return [] if is_hopeless else self._possible_changes

    @property
    def _possible_changes(self) -> list[Change]:
        # memory of the host is no help to an accelerator that ran out, nor the reverse
        devices = [device for device in self.devices if is_host(device) == self.is_of_host]
        found: list[Change] = []
        containers = {holder: nbytes for _, holder, _, nbytes in reversed(self.large_containers)}
        for device in devices:
            groups = [group for group in self.live.groups if group.device == device]
            where = "" if device == CPU else f" on {device}"
            found += [*_changes_of_training(groups, where), *_changes_of_holders(groups, where, containers)]
        total = sum(group.nbytes for group in self.live.groups if group.device in devices)
        if not self.is_of_host:
            found += self._changes_of_pieces()
        else:
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

    def _changes_of_pieces(self) -> Iterator[Change]:
        """Yield a change for each allocator that had enough free memory, but no piece as large as the request."""
        for device, held in self.reserved.items():
            if held.largest_free_bytes < (self.asked_bytes or 0) <= held.free_bytes:
                yield Change(
                    f"set PYTORCH_ALLOC_CONF=expandable_segments:True: {device} had enough free "
                    "memory, but in pieces too small for the request",
                    "reserved",
                    held.free_bytes,
                )


def _changes_of_training(groups: list[Group], where: str) -> list[Change]:
    """Return the changes for memory that any training has. They need only the bytes of each category."""

    def of(category: str) -> list[Group]:
        return [group for group in groups if group.category == category]

    # without the graphs that an attribute or a container keeps: checkpoints of layers would not free those
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


def _changes_of_holders(groups: list[Group], where: str, containers: Mapping[str, int]) -> list[Change]:
    """Return a change for each holder of a kept graph, and for each holder of memory that is not of training.

    Args:
        groups: the tensors, arrays and buffers of a device.
        where: the device, in words.
        containers: the bytes of the large containers by their holders. They have changes of their own, which also save
            the arrays and the buffers in the container.
    """
    kept_graphs = [
        Change(f"detach the tensors{where} that keep autograd's graph: {group.holder}", SAVED, group.nbytes)
        for group in groups
        if group.category == SAVED and group.is_kept and group.holder != NOBODY
    ]
    return kept_graphs + [
        Change(f"free earlier, or move elsewhere{where}: {group.holder}", group.category, group.nbytes)
        for group in groups
        if group.category in (OTHER, ARRAY, OBJECT)
        and group.holder != NOBODY
        and not (group.category != OTHER and containers.get(group.holder, 0) >= group.nbytes)
    ]


def _shortages_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and the errors of allocators among its causes and contexts. No code of the program runs."""
    waiting, seen = [error], {id(error)}
    while waiting:
        link = waiting.pop()
        if link is error or _is_of_allocator(link):
            yield link
        for linked in (_CAUSE(link), _CONTEXT(link)):
            if linked is not None and id(linked) not in seen:
                seen.add(id(linked))
                waiting.append(linked)


def _is_of_allocator(error: BaseException) -> bool:
    # `isinstance` may ask the object for its class
    if issubclass(type(error), (MemoryError, torch.OutOfMemoryError)):
        return True
    # code of the program may make the text of another class, or of an argument
    is_plain = type(error) is RuntimeError and all(type(text) is str for text in _ARGS(error))
    return is_plain and is_out_of_memory(error)


_CAUSE: Final = BaseException.__dict__["__cause__"].__get__
_CONTEXT: Final = BaseException.__dict__["__context__"].__get__
_TRACEBACK: Final = BaseException.__dict__["__traceback__"].__get__
_ARGS: Final = BaseException.__dict__["args"].__get__


def _is_raised(error: BaseException) -> bool:
    """Return whether a `raise` statement of Python code raised an error. C code fails in another instruction."""
    trace = _TRACEBACK(error)
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    code = trace.tb_frame.f_code.co_code
    return bool(0 <= trace.tb_lasti < len(code) and code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"])


_SHORT: Final = 4  # most rows of a list in the note on an error; a guess
_LONG: Final = 12  # most rows of a list in the report; a guess
_SIZE: Final = 12  # characters of the column with the sizes; a guess


NOTES: Final = tuple(f"memwatch: {text}" for text in (RAN_OUT, RAISED, REQUEST_FAILED))
"""The first words of the notes."""


def head_of(found: Shortage) -> str:
    """Return the sentence on what happened."""
    if found.is_far_from_limits:
        return RAISED if found.is_raised else REQUEST_FAILED
    if found.limit is None:
        asked = (
            ""
            if found.asked_bytes is None
            else f"; the request that failed: {format_bytes(found.asked_bytes)}"
        )
        where = " in a worker, another process or thread" if found.in_worker else ""
        return f"{RAN_OUT}{where}{asked}"
    limit = found.limit
    return (
        f"memory has nearly run out: {format_bytes(limit.used_bytes)} are in use, "
        f"{100 * limit.used_ratio:.0f} % of the {format_bytes(limit.limit_bytes)} that {limit.name} allows"
    )


def note_of(found: Shortage) -> str:
    """Return the note for the error: the live memory, and the changes that would have left room."""
    return "\n".join(
        [f"memwatch: {head_of(found)}", *_whose(found), *_live(found, _SHORT), *_changes(found, _SHORT)]
    )


def report_of(found: Shortage) -> str:
    """Return the whole report."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.time_s))
    lines = [
        f"memwatch: {head_of(found)}",
        f"{visible(found.program)}, process {found.pid}, {when}",
        *([f"error: {visible(found.error)}"] if found.error else []),
        *_whose(found),
        "",
        *_live(found, _LONG),
        "",
        *_changes(found, _LONG),
        "",
    ]
    for device, held in found.reserved.items():
        lines.append(f"{device}: {reserved_text(held)}")
    lines += [
        f"limit: {format_bytes(each.used_bytes)} are in use, "
        f"{100 * each.used_ratio:.0f} % of the {format_bytes(each.limit_bytes)} that {each.name} allows"
        for each in found.limits
    ]
    if found.recent:
        lines += ["RSS at the latest samples:"]
        lines += [
            f"{format_bytes(nbytes):>{_SIZE}}  {found.time_s - time_s:,.1f} s before"
            for time_s, nbytes in found.recent[-_LONG:]
        ]
    if found.rows is not None:
        lines += ["", of_process(found.rows).rstrip("\n")]
    lines += [f"note: {visible(note)}" for note in found.notes]
    return "\n".join(lines) + "\n"


def _whose(found: Shortage) -> list[str]:
    return [OTHER_PROCESS] if found.in_process else []


def _live(found: Shortage, most: int) -> list[str]:
    lines: list[str] = []
    for device in found.devices:
        groups = [group for group in found.live.groups if group.device == device]
        by_category = found.bytes_by_category(device)
        lines.append(f"{format_bytes(sum(by_category.values()))} are alive on {device}, by category:")
        lines += [f"{format_bytes(nbytes):>{_SIZE}}  {name}" for name, nbytes in by_category.items()]
        lines.append("by holder:")
        lines += [
            f"{format_bytes(group.nbytes):>{_SIZE}}  {visible(group.holder)} ({group.category})"
            for group in groups[:most]
        ]
        if len(groups) > most:
            rest_bytes = sum(group.nbytes for group in groups[most:])
            lines.append(f"{format_bytes(rest_bytes):>{_SIZE}}  {len(groups) - most:,} more")
    if containers := found.large_containers:
        lines.append("large containers of Python:")
        lines += [
            f"{format_bytes(nbytes):>{_SIZE}}  {visible(holder)} (`{visible(kind)}` of "
            f"{entries:,} entries; the bytes come from a sample)"
            for kind, holder, entries, nbytes in containers
        ]
    if found.live.why_unknown:
        lines.append(f"the holders are not all known: {found.live.why_unknown}")
    return lines


def _why_no_change(found: Shortage) -> str | None:
    """Return why the report offers no change; None if it lists changes."""
    if found.is_too_large and found.asked_bytes is not None:
        return TOO_LARGE.format(asked=format_bytes(found.asked_bytes))
    if found.is_far_from_limits and found.free_bytes is not None:
        free = format_bytes(found.free_bytes)
        return (NO_CHANGE_FOR_RAISED if found.is_raised else TOO_LARGE_UNKNOWN).format(free=free)
    return None if found.changes else "memwatch knows no change that would have left room"


def _changes(found: Shortage, most: int) -> list[str]:
    why_none = _why_no_change(found)
    if why_none is not None:
        return [why_none]
    return [
        "changes that would have left room, estimated from these bytes:",
        *(
            f"{format_bytes(each.saved_bytes):>{_SIZE}}  {'at most: ' if each.is_upper_bound else ''}"
            f"{visible(each.change)} ({each.category})"
            for each in found.changes[:most]
        ),
    ]


def record_of(found: Shortage) -> dict[str, Any]:
    """Return the report as a record; see `OutOfMemoryRecord` in docs/json.md."""
    return {
        "program": found.program,
        "pid": found.pid,
        "time_s": found.time_s,
        "error": found.error,
        "asked_bytes": found.asked_bytes,
        "in_worker": found.in_worker,
        "limit": None if found.limit is None else dataclasses.asdict(found.limit),
        "limits": [dataclasses.asdict(each) for each in found.limits],
        "live": [dataclasses.asdict(each) for each in found.live.groups],
        "containers": [
            {"kind": kind, "holder": holder, "entries": entries, "nbytes": nbytes}
            for kind, holder, entries, nbytes in found.large_containers
        ],
        "changes": [dataclasses.asdict(each) for each in found.changes],
        "reserved": [
            {
                "device": device,
                "reserved_bytes": held.reserved_bytes,
                "allocated_bytes": held.allocated_bytes,
                "free_bytes": held.free_bytes,
                "largest_free_bytes": held.largest_free_bytes,
            }
            for device, held in found.reserved.items()
        ],
        "process": None if found.rows is None else record_of_process(found.rows),
        "recent": [{"time_s": time_s, "rss_bytes": nbytes} for time_s, nbytes in found.recent],
        "notes": [*found.notes, *([found.live.why_unknown] if found.live.why_unknown else [])],
    }


def json_of(found: Shortage) -> str:
    """Return the record as JSON."""
    return json.dumps(record_of(found), indent=2) + "\n"


# The report as a page: one file without scripts.
#
# The page of a capture contains 0.2 MB of scripts and styles. Memory is short here, so this page does without them.
_HEAD: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="Content-Security-Policy"
content="default-src 'none'; style-src 'unsafe-inline'"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; font: 15px/1.4 system-ui, sans-serif }}
body {{ max-width: 70rem; margin: 2rem auto; padding: 0 1rem }}
h1 {{ font-size: 1.4rem }} h2 {{ font-size: 1.1rem; margin-top: 2rem }}
table {{ border-collapse: collapse; width: 100% }}
td, th {{ padding: .2rem .6rem; text-align: left; vertical-align: top; overflow-wrap: anywhere }}
td:first-child, th:first-child {{ text-align: right; white-space: nowrap; width: 7rem }}
meter {{ width: 8rem }} td:nth-child(2) {{ width: 9rem }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere }}
.lead {{ font-size: 1.1rem; margin: .4rem 0 }}
@media (max-width: 700px) {{ :is(td, th):nth-child(2) {{ display: none }} td:first-child {{ width: 5rem }} }}
</style>
"""


_CODE: Final = re.compile("`([^`]+)`")


def page_of(found: Shortage) -> str:
    """Return the page as HTML. All texts are escaped."""
    title = head_of(found)
    parts = [_HEAD.format(title=html.escape(visible(title))), f"<h1>{_marked(_sentence(title))}</h1>"]
    parts += [f'<p class="lead">{_marked(_sentence(text))}</p>' for text in _first_of(found)]
    if found.error:
        parts.append(f"<pre>{html.escape(visible(found.error))}</pre>")
    parts += [f"<p>{_marked(text)}</p>" for text in _whose(found)]
    for device in found.devices:
        by_category = found.bytes_by_category(device)
        groups = [group for group in found.live.groups if group.device == device]
        parts.append(_table(f"Alive on {device}, by category", "category", by_category.items()))
        parts.append(
            _table(
                f"Alive on {device}, by holder",
                "holder",
                ((f"{group.holder} ({group.category})", group.nbytes) for group in groups),
            )
        )
    containers = (
        (f"{holder} (`{kind}` of {entries:,} entries)", nbytes)
        for kind, holder, entries, nbytes in found.large_containers
    )
    changes = (
        (f"{'at most: ' if each.is_upper_bound else ''}{each.change} ({each.basis})", each.saved_bytes)
        for each in found.changes
    )
    rows = () if found.rows is None else ((f"{row.row}: {row.how}", row.nbytes) for row in found.rows.rows)
    parts.append(_table("Large containers of Python", "holder", containers))
    parts.append(_table("Changes that would have left room", "change", changes))
    parts.append(_table("The process", "row, and how it is known", rows))
    parts.append(f"<h2>Everything as text</h2><pre>{html.escape(report_of(found))}</pre></html>")
    return "\n".join(part for part in parts if part) + "\n"


def _first_of(found: Shortage) -> list[str]:
    """Return the largest holder and the change that leaves most room, as sentences."""
    groups = found.live.groups
    largest = max(groups, key=lambda group: group.nbytes, default=None)
    lines = []
    if largest is not None:
        lines.append(f"{format_bytes(largest.nbytes)} are kept by {largest.holder} ({largest.category}).")
    why_none = _why_no_change(found)
    if why_none is None:
        first = found.changes[0]
        bound = "at most " if first.is_upper_bound else ""
        lines.append(
            f"The change that leaves most room, {bound}{format_bytes(first.saved_bytes)}: {first.change}."
        )
    else:
        lines.append(f"{why_none.removesuffix('.')}.")
    return lines


def _sentence(text: str) -> str:
    """Return a text that begins with a capital."""
    return text[:1].upper() + text[1:]


def _marked(text: str) -> str:
    """Return a text as HTML. Names between backticks are code."""
    return _CODE.sub(r"<code>\1</code>", html.escape(visible(text)))


def _table(title: str, what: str, rows: Iterable[tuple[str, int]]) -> str:
    """Return a table of texts and bytes, with a bar for each row; empty text if there are no rows."""
    listed = list(rows)
    if not listed:
        return ""
    most = max(1, *(nbytes for _, nbytes in listed))
    lines = (
        f"<tr><td>{format_bytes(nbytes)}</td>"
        f'<td aria-hidden="true"><meter value="{nbytes / most:.4f}"></meter></td>'
        f"<td>{_marked(text)}</td></tr>"
        for text, nbytes in listed
    )
    header = f'<tr><th scope="col">bytes</th><td></td><th scope="col">{html.escape(what)}</th></tr>'
    return f"<h2>{html.escape(title)}</h2><table>{header}{''.join(lines)}</table>"
