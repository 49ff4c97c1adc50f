"""Show an estimate as text for a terminal: the peak, its counted and modelled parts, then the summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from memwatch.report.console import clip, to_text
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType


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
    width: int | None = None,
    color: bool | None = None,
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
        assumed: memory of the card that no tensor can have: bytes, and what takes them with the source.
        device: the device of the tensors.
        run: the rank that ran, and how far it got.
        notes: sentences that follow.
        width: characters in a line; by default the terminal's, or COLUMNS.
        color: whether to colour; by default only on a terminal.

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
    return to_text(*parts, width=width, color=color)
