"""`memwatch.estimate` and `memwatch.largest_batch_size`: estimates of functions, and the search for a batch size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from memwatch.cards import Room, card_named
from memwatch.device_names import is_host
from memwatch.errors import MemwatchError, OptionError
from memwatch.estimate.job import Job
from memwatch.estimate.program import estimate_program
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from memwatch.devices.cuda_allocator import Outcome
    from memwatch.estimate.result import Estimate

_MOST_SAMPLES = 1 << 20
"""If a program fits with this batch size, memwatch assumes that the program ignores the batch size. A guess."""


def estimate(
    step: Callable[..., Any],
    *args: Any,
    device: str | None = None,
    world_size: int | None = None,
    rank: int = 0,
    steps: int = 3,
    path: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> Estimate:
    """Estimate the peak memory of a function that builds a model and trains it.

    The function runs once, on fake tensors. They have sizes and no memory, so the model may be larger than this
    machine. No GPU is needed. The run ends when the function returns, or after some steps of the first optimizer.

    Build the model inside the function. Tensors that exist before have real memory, and an estimate does not count it.

    Args:
        step: the function.
        *args: its positional arguments.
        device: `"cuda"`, or a card such as `"H100"`: the program finds such a GPU.
        world_size: the number of ranks of a job, if the function is part of one.
        rank: the rank that is estimated.
        steps: steps of the first optimizer after which the run ends.
        path: write the capture to this file, which all commands of memwatch read.
        **kwargs: its other keyword arguments.

    Returns:
        The estimate: `tensor_bytes`, `reserved_bytes`, `fits("80 GiB")`, `fits("H100")`, and `reading` with all tables.

    Raises:
        MemwatchError: the function uses parameters that exist already, or values that fake tensors do not have.
        Exception: the function itself raised it.
    """
    if not callable(step):
        raise OptionError(
            f"estimate() runs a function, and {step!r} is not one; pass the function, without calling it"
        )

    def program() -> None:
        step(*args, **kwargs)

    kind = "cuda" if device is not None and card_named(device) is not None else device
    with torch.random.fork_rng(devices=[]):
        return estimate_program(
            lambda: program,
            job=Job(rank, world_size),
            steps=steps,
            device=kind,
            path=path,
            only_new_parameters=True,
        )


@dataclass(frozen=True)
class LargestBatch:
    """The largest batch size with which a program fits a device.

    Attributes:
        batch_size: the batch size. 0 means that the program does not fit with a batch of one.
        device: the device.
        estimate: the estimate of this batch size; of a batch of one if that does not fit.
        reserved_bytes: the most bytes that the allocator reserves with it on the device.
        tried: whether each batch size that was estimated fits.
    """

    batch_size: int
    device: str
    estimate: Estimate
    reserved_bytes: int
    tried: dict[int, bool]

    def __str__(self) -> str:
        if not self.batch_size:
            return f"a batch of 1 does not fit {self.device}"
        # the allocator ran without the workspace of kernels, with which this batch may not fit
        more = (
            f", and {self.batch_size + 1:,} does not fit. Choose a smaller batch size, because the workspace of "
            "kernels is not counted"
        )
        return (
            f"the largest batch size whose tensors fit {self.device} is {self.batch_size:,}: "
            f"it reserves {format_bytes(self.reserved_bytes)}{more if self.batch_size + 1 in self.tried else ''}"
        )


def largest_batch_size(
    step: Callable[[int], Any],
    device: int | str,
    *,
    world_size: int | None = None,
    rank: int = 0,
    steps: int = 3,
    at_most: int | None = None,
) -> LargestBatch:
    """Find the largest batch size with which a training function fits a device.

    Each batch size that is tried is estimated, and run through torch's CUDA allocator. The result fits, and the next
    larger batch size does not. The search assumes that memory grows with the batch size.

    Args:
        step: builds the model, and trains it on batches of the size that it is called with. See `estimate`.
        device: a card such as `"H100"`, or the memory that torch can use, such as `"80 GiB"`.
        world_size: the number of ranks of a job, if the function is part of one.
        rank: the rank that is estimated.
        steps: steps of the first optimizer after which each run ends.
        at_most: the largest batch size of interest; by default about a million.

    Raises:
        MemwatchError: the function puts no tensors on `"cuda"`, or its memory does not depend on the batch size.
        Exception: the function itself raised it.
    """

    def estimated(batch_size: int) -> Estimate:
        return estimate(step, batch_size, device="cuda", world_size=world_size, rank=rank, steps=steps)

    return find_largest(estimated, device, at_most=at_most)


def find_largest(
    estimated: Callable[[int], Estimate], device: int | str, *, at_most: int | None = None
) -> LargestBatch:
    """Find the largest batch size whose estimate fits a device; see `largest_batch_size`.

    Args:
        estimated: returns the estimate of a batch size.
        device: the device.
        at_most: the largest batch size of interest.
    """
    room = Room.of(device)
    if at_most is not None and at_most < 1:
        raise OptionError("the largest batch size of interest must be 1 or more")
    last = _MOST_SAMPLES if at_most is None else at_most
    tried: dict[int, bool] = {}
    # These bytes assume a device without a limit, so that batches that are too large also help to predict the result.
    reserved_bytes: dict[int, int] = {}
    best: tuple[Estimate, Outcome] | None = None
    fits, fails, batch_size = 0, last + 1, 1
    while True:
        found = estimated(batch_size)
        if is_host(found.reading.device):
            raise MemwatchError(
                "the program put its tensors on the CPU, so memwatch cannot say whether they fit a GPU; "
                'put them on "cuda"'
            )
        outcome = found.on_device(device)
        tried[batch_size], reserved_bytes[batch_size] = outcome.fits, found.reserved_bytes or 0
        if outcome.fits:
            fits, best = batch_size, (found, outcome)
        else:
            fails, best = batch_size, best or (found, outcome)
        if fails - fits == 1:
            break
        batch_size = _next(reserved_bytes, fits, fails, room.tensor_bytes)
    if fits == last and at_most is None:
        raise MemwatchError(
            f"a batch of {fits:,} fits too: the memory of the program does not depend on the batch size that it gets"
        )
    return LargestBatch(fits, room.name, best[0], best[1].most_reserved_bytes, tried)


def _next(tried: dict[int, int], fits: int, fails: int, limit_bytes: int) -> int:
    """Return the batch size to try next, between the largest that fits and the smallest that fails.

    Memory grows about linearly with the batch size. So a line through two sizes predicts the result.
    """
    if fails in tried and len(tried) % 3 == 0:
        guess = (
            fits + fails
        ) // 2  # halve every third time, which bounds the tries if the prediction is poor
    elif fails in tried and fits:
        guess = fits + _on_line(tried, fits, fails, limit_bytes)
    else:
        low, high = sorted(tried)[-2:] if len(tried) > 1 else (fits, fits)
        guess = high + _on_line(tried, low, high, limit_bytes)
    return min(max(guess, fits + 1), fails - 1)


def _on_line(tried: dict[int, int], low: int, high: int, limit_bytes: int) -> int:
    """Return the distance from a batch size up to the limit, by a line through two sizes.

    If their memory does not grow, return `high`, which doubles the batch size.
    """
    growth_bytes = tried[high] - tried[low]
    if growth_bytes <= 0:
        return high
    start_bytes = tried[low] if tried[high] > limit_bytes else tried[high]
    return (limit_bytes - start_bytes) * (high - low) // growth_bytes
