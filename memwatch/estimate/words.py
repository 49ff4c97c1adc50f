"""What is said of an estimate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memwatch.report.estimate import estimate_text

if TYPE_CHECKING:
    from memwatch.estimate.result import Estimate

_ROWS: Final = 5
_SHOWN: Final = 3


def text_of(estimate: Estimate, following: str = "") -> str:
    """Return an estimate and the summary of its recording as text for a terminal.

    Args:
        estimate: the estimate.
        following: the line that says what to do next, empty for none.
    """
    reading = estimate.reading
    head = estimate_text(
        tensor_bytes=estimate.tensor_bytes,
        rounding_bytes=estimate.rounding_bytes,
        block_bytes=estimate.block_bytes,
        device=reading.device,
        run=_run(estimate),
        notes=[*_reads(estimate), *estimate.remarks],
    )
    return f"{head}\n{reading.summary(rows=_ROWS, following=following)}"


def _run(estimate: Estimate) -> str:
    world, steps = estimate.job.world_size, estimate.steps
    rank = "" if world is None else f"rank {estimate.job.rank} of {world:,}, "
    return f"{rank}{steps} steps of the optimizer" if steps else f"{rank}no step of an optimizer"


def _reads(estimate: Estimate) -> list[str]:
    if not estimate.reads:
        return []
    lines, more = estimate.reads[:_SHOWN], len(estimate.reads) - _SHOWN
    others = f" and {more} other lines" if more > 0 else ""
    return [
        f"values that the program read, as by `loss.item()`, were answered by 0: {', '.join(lines)}{others}"
    ]
