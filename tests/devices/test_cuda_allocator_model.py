"""The model of torch's caching allocator: which blocks and segments a row of sizes takes."""

from __future__ import annotations

import random

import pytest

from memwatch.devices.cuda_allocator import FREE, Model, Trace
from memwatch.devices.cuda_allocator.model import CachingAllocator

MIB = 1 << 20


@pytest.mark.parametrize(
    ("nbytes", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # 1 MiB is left, which is not split off
        (21 * MIB - 512, 21 * MIB - 512, 22 * MIB),
    ],
)
def test_a_size_takes_a_block_of_a_segment(nbytes, block, segment):
    """As torch's own constants have it."""
    allocator = CachingAllocator()
    allocator.allocate(0, nbytes)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (block, segment)


def test_what_is_free_is_taken_again_and_joined():
    """The allocator takes the smallest free block that is large enough, and joins two free neighbours."""
    allocator = CachingAllocator()
    for number in range(4):
        allocator.allocate(number, 4 * MIB)
    allocator.free(1)
    allocator.free(2)
    allocator.allocate(4, 8 * MIB)
    assert allocator.reserved_bytes == 20 * MIB
    allocator.allocate(5, 5 * MIB)  # 4 MiB are left
    assert allocator.reserved_bytes == 40 * MIB


@pytest.mark.parametrize(
    "settings", ["", "expandable_segments:True", "expandable_segments:True,large_segment_size_mb:40"]
)
def test_a_device_without_memory_refuses_the_first_block(settings):
    """As torch 2.14 does: it counts no retry."""
    outcome = Model().run(Trace.of_events([(0, 286, 0), (0, FREE, 0)]), settings, 0)
    assert (outcome.refused_event, outcome.retries, outcome.most_reserved_bytes) == (0, 0, 0)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_gets_lost(seed):
    """In any order of frees, a block that is wholly free is used again, and free segments hold no block."""
    chance, allocator, alive = random.Random(seed), CachingAllocator(), []
    for number in range(400):
        if alive and chance.random() < 0.5:
            allocator.free(alive.pop(chance.randrange(len(alive))))
        else:
            allocator.allocate(number, chance.choice((1, 700, 40_000, MIB, 3 * MIB, 15 * MIB)))
            alive.append(number)
        assert allocator.allocated_bytes <= allocator.reserved_bytes <= allocator.most_reserved_bytes
    for number in alive:
        allocator.free(number)
    reserved = allocator.reserved_bytes
    assert allocator.allocated_bytes == 0
    for number in range(reserved // (20 * MIB)):
        allocator.allocate(number, 2 * MIB)
    assert allocator.reserved_bytes == reserved
