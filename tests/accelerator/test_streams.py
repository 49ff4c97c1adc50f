"""The effect of streams, segments and pinned memory on a device's figures."""

from __future__ import annotations

import pretend
import torch

import memwatch
from memwatch.devices import adapter_of
from memwatch.devices.adapters import reserved_in

KIB, MIB = 1024, 1 << 20
DEVICE = "pretend:0"


def make(nbytes, device=DEVICE):
    return torch.empty(nbytes, dtype=torch.uint8, device=device)


def counted(what):
    return pretend.stats(DEVICE)[what]


def test_memory_that_a_stream_still_uses_is_freed_and_not_given_out_again():
    """A tensor that dies while another stream uses it is live no more; the allocator needs other memory meanwhile."""
    other = torch.Stream(device=DEVICE)
    tensor = make(15 * MIB)
    address = tensor.data_ptr()
    pretend.hold(0, 1, True)
    with memwatch.profile() as prof:
        tensor.record_stream(other)
        del tensor
        waiting = reserved_in(adapter_of(DEVICE).segments(DEVICE)).waiting_bytes
        active_bytes = counted("active_bytes.all.current")
        again = make(15 * MIB)
        live_bytes = counted("allocated_bytes.all.current")
    assert waiting == active_bytes == 16 * MIB
    assert again.data_ptr() != address
    assert prof.timeline["live_bytes"].iloc[-1] == live_bytes == 16 * MIB
    assert prof.timeline["live_bytes"].tolist() == [16 * MIB, 0, 16 * MIB]
    assert prof.meta["reserved_bytes"][DEVICE] == 32 * MIB


def test_a_stream_that_is_done_gives_the_memory_back():
    """Then the next tensor lies where the first one lay."""
    other = torch.Stream(device=DEVICE)
    tensor = make(15 * MIB)
    address = tensor.data_ptr()
    with memwatch.profile() as prof:
        tensor.record_stream(other)
        del tensor
        again = make(15 * MIB)
    assert again.data_ptr() == address
    assert prof.meta["reserved_bytes"][DEVICE] == counted("reserved_bytes.all.current") == 16 * MIB


def test_reserved_bytes_are_known_at_the_peak():
    """The allocator's segments at the peak, at most and at the end, as its own counters have them."""
    with memwatch.profile() as prof:
        kept = make(3 * MIB)
        at_peak_bytes = counted("reserved_bytes.all.current")
        del kept
        small = make(KIB)
        torch.accelerator.empty_cache()
        last = make(KIB)
    assert prof.reserved.at_peak_bytes == at_peak_bytes == 20 * MIB
    assert prof.reserved.most_bytes == counted("reserved_bytes.all.peak") == 22 * MIB
    assert prof.reserved.at_end_bytes == counted("reserved_bytes.all.current") == 2 * MIB
    del small, last


def free_blocks():
    blocks = [block for segment in pretend.memory_snapshot() for block in segment["blocks"]]
    return [block["size"] for block in blocks if block["state"] == "inactive"]


def test_the_largest_free_block_at_the_peak_is_known():
    """Every second tensor dies, so the free memory at the peak is in many pieces."""
    with memwatch.profile() as prof:
        held = [make(4 * MIB) for _ in range(10)]
        del held[::2]
        held += [make(6 * MIB), make(30 * MIB)]
        free = free_blocks()
        assert counted("allocated_bytes.all.current") == counted("allocated_bytes.all.peak")
    assert prof.reserved.at_peak_bytes - prof.peak_bytes == sum(free)
    assert prof.reserved.largest_free_bytes == max(free)


def test_segments_that_were_there_at_entry_are_known_too():
    """Their blocks too, if they are live at the peak."""
    before = [make(6 * MIB) for _ in range(3)]
    del before[1]
    with memwatch.profile() as prof:
        large = make(2 * MIB)
        free = free_blocks()
        del large
    assert prof.reserved.largest_free_bytes == max(free)


def test_what_cannot_be_known_is_not_told():
    """A segment that was there at entry and is gone at the end may have had any holes."""
    before = make(6 * MIB)
    with memwatch.profile() as prof:
        large = make(2 * MIB)
        del large, before
        torch.accelerator.empty_cache()
    assert prof.reserved.at_peak_bytes == 20 * MIB
    assert prof.reserved.largest_free_bytes is None


def test_pinned_memory_is_pinned():
    """Copies of the device's bytes go to pinned memory of the host."""
    copy = adapter_of(DEVICE).host_copy(5 * KIB)
    assert copy.is_pinned()
    assert copy.nbytes == pretend.pinned_bytes() == 5 * KIB
