"""Show an estimate as text, and as plain values for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from rich.table import Table
from rich.text import Text

from memwatch.report.console import clip, to_text
from memwatch.report.records import summary_record
from memwatch.sizes import format_bytes
from memwatch.words.places import short_place
from memwatch.words.processes import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from memwatch.cards import Room
    from memwatch.devices.cuda_allocator import Outcome
    from memwatch.estimate.api import LargestBatch
    from memwatch.estimate.result import Estimate
    from memwatch.estimate.workspace import Workspace
    from memwatch.report.records.schema import EstimateRecord

_ROWS: Final = 5
"""Rows of the tables in the summary of an estimate. A guess."""
_SHOWN: Final = 3
"""Ops or places that a sentence names. A guess."""
_ELSEWHERE: Final = "buffers of collectives' libraries, fragmentation"


def text_of(
    estimate: Estimate,
    following: str = "",
    *,
    room: Room | None = None,
    outcome: Outcome | None = None,
) -> str:
    """Return an estimate and the summary of its recording as text for a terminal.

    Args:
        estimate: the estimate.
        following: the line with the next step, "" for none.
        room: the device in question.
        outcome: the allocator's result on it; None without a device in question.
    """
    reading, workspace = estimate.reading, estimate.workspace
    head = estimate_text(
        tensor_bytes=estimate.tensor_bytes,
        rounding_bytes=estimate.rounding_bytes,
        block_bytes=estimate.block_bytes,
        reserved_bytes=estimate.reserved_bytes,
        reserved_rests_on="" if estimate.reserved_bytes is None else _reserved_rests_on(estimate),
        workspace_bytes=None if workspace is None else workspace.nbytes,
        workspace_rests_on="" if workspace is None else _rests_on(workspace),
        assumed=[]
        if room is None
        else [(each.nbytes, f"{each.name}: {each.source}") for each in room.assumed],
        not_counted=_not_counted(workspace),
        device=reading.device,
        run=_run(estimate),
        notes=[*_fits(room, outcome), *_reads(estimate), *estimate.remarks],
    )
    return f"{head}\n{reading.summary(rows=_ROWS, following=following)}"


def _reserved_rests_on(estimate: Estimate) -> str:
    settings = f" with {estimate.settings}" if estimate.settings else " by default"
    kind = "modelled" if estimate.is_model else "computed"
    return f"{kind} by {estimate.allocator}: its segments for these blocks{settings}, on one stream"


def _fits(room: Room | None, outcome: Outcome | None) -> list[str]:
    if room is None or outcome is None:
        return []
    named = f"{room.name} ({format_bytes(room.total_bytes)})" if room.assumed else f"a device of {room.name}"
    if not outcome.fits:
        return [f"does not fit {named}"]
    left = format_bytes(room.tensor_bytes - outcome.most_reserved_bytes)
    retries = ""
    if outcome.retries:
        times = counted(outcome.retries, "time")
        retries = f"; the allocator has to give free segments back and retry {times}, which is slow"
    context = "" if room.assumed else "the CUDA context and "
    return [f"fits {named}: {left} are left for {context}what is not counted{retries}"]


def _rests_on(workspace: Workspace) -> str:
    ran = "ran here once at smaller sizes" if workspace.is_scaled else "ran here once"
    threads = counted(torch.get_num_threads(), "thread")
    return f"added by the workspace of kernels: the ops near the peak {ran}, with {threads}"


def _not_counted(workspace: Workspace | None) -> str:
    if workspace is None:
        return f"workspace of kernels and of their libraries, {_ELSEWHERE}"
    if not workspace.unknown:
        return _ELSEWHERE
    names, more = workspace.unknown[:_SHOWN], len(workspace.unknown) - _SHOWN
    others = f" and {more} other ops" if more > 0 else ""
    return f"workspace of {', '.join(names)}{others}, {_ELSEWHERE}"


def _run(estimate: Estimate) -> str:
    world, steps = estimate.job.world_size, estimate.steps
    rank = "" if world is None else f"rank {estimate.job.rank} of {world:,}, "
    return f"{rank}{counted(steps, 'step')} of the optimizer" if steps else f"{rank}no step of an optimizer"


def _reads(estimate: Estimate) -> list[str]:
    notes = []
    if estimate.branches:
        notes.append(
            "where the program asked about values, as by `if mask.any()`, the answer was no: "
            f"{_lines(estimate.branches)}. If this skipped work, the peak is higher than estimated"
        )
    numbers = [each for each in estimate.reads if each not in estimate.branches]
    if numbers:
        notes.append(f"where the program read a value, as by `loss.item()`, it got 0: {_lines(numbers)}")
    return notes


def _lines(places: Sequence[str]) -> str:
    shown, more = map(short_place, places[:_SHOWN]), len(places) - _SHOWN
    others = f" and {counted(more, 'other line')}" if more > 0 else ""
    return f"{', '.join(shown)}{others}"


def estimate_record(
    estimate: Estimate,
    room: Room | None = None,
    outcome: Outcome | None = None,
    largest: LargestBatch | None = None,
) -> EstimateRecord:
    """Return the figures of an estimate, and the summary of its recording.

    Args:
        estimate: the estimate.
        room: the device in question; None without one.
        outcome: the allocator's result on the device in question; None without one.
        largest: the search for a batch size; None without one.
    """
    workspace = estimate.workspace
    return {
        "device": estimate.reading.device,
        "tensor_bytes": estimate.tensor_bytes,
        "workspace_bytes": None if workspace is None else workspace.nbytes,
        "workspace_is_scaled": workspace is not None and workspace.is_scaled,
        "workspace_unknown": [] if workspace is None else list(workspace.unknown),
        "reserved_bytes": estimate.reserved_bytes,
        "allocator": None if estimate.reserved_bytes is None else estimate.allocator,
        "fits": None if outcome is None else outcome.fits,
        "most_reserved_on_device_bytes": None if outcome is None else outcome.most_reserved_bytes,
        "retries": None if outcome is None else outcome.retries,
        "assumed_bytes": 0 if room is None else room.total_bytes - room.tensor_bytes,
        "largest_batch_size": None if largest is None else largest.batch_size,
        "rounding_bytes": estimate.rounding_bytes,
        "block_bytes": estimate.block_bytes,
        "rank": estimate.job.rank,
        "world_size": estimate.job.world_size or 0,
        "steps": estimate.steps,
        "reads": list(estimate.reads),
        "remarks": list(estimate.remarks),
        "summary": summary_record(estimate.reading),
    }


def estimate_text(
    *,
    tensor_bytes: int,
    rounding_bytes: int,
    block_bytes: int,
    reserved_bytes: int | None,
    reserved_rests_on: str,
    workspace_bytes: int | None,
    workspace_rests_on: str,
    not_counted: str,
    assumed: Sequence[tuple[int, str]],
    device: str,
    run: str,
    notes: Sequence[str] = (),
) -> str:
    """Return the figures of an estimate, each with its source.

    Args:
        tensor_bytes: the peak of tensors.
        rounding_bytes: bytes that the peak gains because the allocator hands out whole blocks.
        block_bytes: the size of a block.
        reserved_bytes: bytes that a caching allocator takes from the device for these tensors. None if the device
            has no such allocator.
        reserved_rests_on: the source of `reserved_bytes`.
        workspace_bytes: bytes of the kernels' own buffers at the peak. None if unknown.
        workspace_rests_on: the source of `workspace_bytes`.
        not_counted: the kinds of memory that no figure includes.
        assumed: memory of the card that tensors cannot use: bytes, and their use with the source.
        device: the device of the tensors.
        run: the rank that ran, and its steps.
        notes: sentences that follow.

    Returns:
        The text, ending with a newline.
    """
    peak_bytes = tensor_bytes + rounding_bytes + (workspace_bytes or 0)
    head = Text("Estimated peak ").append(format_bytes(peak_bytes), style="bold red")
    head.append(f" on {clip(device, 40)}: {run}")
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(format_bytes(tensor_bytes), "counted", "the sizes of the program's tensors")
    if workspace_bytes is not None:
        about = "" if workspace_bytes == 0 else "about "
        table.add_row(about + format_bytes(workspace_bytes), "estimated", workspace_rests_on)
    blocks = f"added by rounding: every tensor takes whole blocks of {block_bytes} B"
    if reserved_bytes is not None:
        blocks += ", and rests that the allocator does not split off"
    table.add_row(format_bytes(rounding_bytes), "modelled", blocks)
    table.add_row("?", "not counted", not_counted)
    if reserved_bytes is not None:
        table.add_row(format_bytes(reserved_bytes), "reserved", reserved_rests_on)
    for nbytes, what in assumed:
        table.add_row(format_bytes(nbytes), "assumed", what)
    parts: list[RenderableType] = [head, "", table, *(Text(f"- {clip(note)}") for note in notes)]
    return to_text(*parts)
