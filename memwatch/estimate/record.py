"""An estimate as plain values for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.report.records import summary_record

if TYPE_CHECKING:
    from memwatch.cards import Room
    from memwatch.devices.cuda_allocator import Outcome
    from memwatch.estimate.api import LargestBatch
    from memwatch.estimate.result import Estimate
    from memwatch.report.records.schema import EstimateRecord


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
