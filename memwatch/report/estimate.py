"""An estimate as text for a terminal: the peak first, what is counted and what is modelled, then the summary."""

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
    device: str,
    run: str,
    notes: Sequence[str] = (),
    width: int | None = None,
    color: bool | None = None,
) -> str:
    """Return the figures of an estimate, each with what it rests on.

    Args:
        tensor_bytes: the peak of tensors.
        rounding_bytes: what the peak grows by in whole blocks.
        block_bytes: the size of a block.
        device: where they are.
        run: which rank ran, and how far.
        notes: sentences that follow.
        width: characters in a line; by default the terminal's, or COLUMNS.
        color: whether to colour; by default only on a terminal.

    Returns:
        The text, ending with a newline.
    """
    head = Text("Estimated peak ").append(format_bytes(tensor_bytes + rounding_bytes), style="bold red")
    head.append(f" on {clip(device, 40)}: {run}")
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(format_bytes(tensor_bytes), "counted", "the sizes of the program's tensors")
    table.add_row(
        format_bytes(rounding_bytes), "modelled", f"every tensor takes whole blocks of {block_bytes} B"
    )
    table.add_row(
        "?", "not counted", "workspace of kernels, buffers of collectives' libraries, fragmentation"
    )
    parts: list[RenderableType] = [head, "", table, *(Text(f"- {clip(note)}") for note in notes)]
    return to_text(*parts, width=width, color=color)
