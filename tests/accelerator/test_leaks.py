"""Leaks and retained bytes of the device: by themselves, never added to the host's."""

from __future__ import annotations

import torch

import memwatch

KIB = 1024
kept: list = []


def keep():
    """Leak on both devices and on the host."""
    kept.append(torch.empty(3 * KIB, dtype=torch.uint8, device="pretend:0"))
    kept.append(torch.empty(2 * KIB, dtype=torch.uint8, device="pretend:1"))
    kept.append(torch.empty(KIB, dtype=torch.uint8))


def test_leaks_are_of_one_device():
    """Each with the bytes of its own device on each call."""
    leaks = memwatch.find_leaks(keep)
    kept.clear()
    assert sorted((leak.device, leak.nbytes) for leak in leaks) == [
        ("cpu", KIB), ("pretend:0", 3 * KIB), ("pretend:1", 2 * KIB),
    ]  # fmt: skip


def test_retained_bytes_are_those_of_the_tensors_device():
    """To cut the reference to a tensor frees so much of its device, whatever of others goes with it."""
    tensor = torch.empty(3 * KIB, dtype=torch.uint8, device="pretend:0")
    tensor.copies = [
        torch.empty(KIB, dtype=torch.uint8),
        torch.empty(2 * KIB, dtype=torch.uint8, device="pretend:0"),
    ]
    kept.append(tensor)
    del tensor
    found = memwatch.why_alive(kept[0])
    kept.clear()
    assert found.retained_bytes == (5 * KIB,)
