"""The devices in the summary, in the page's model and on the command line, with the figures of their counters."""

from __future__ import annotations

import pathlib
import tempfile

import pretend
import torch

import memwatch
from memwatch.report.page.model import page_model
from memwatch.report.stats import stats
from memwatch.sizes import format_bytes

KIB, MIB = 1024, 1 << 20


def make(nbytes, device="pretend:0"):
    return torch.empty(nbytes, dtype=torch.uint8, device=device)


def recorded():
    with memwatch.profile() as prof:
        kept = [make(3 * MIB), make(MIB, "pretend:1"), make(2 * MIB, "cpu")]
    del kept
    return prof


def test_the_summary_has_a_line_for_each_device():
    """A further line shows the reserved bytes of the device that the tables describe."""
    lines = recorded().summary(width=200, color=False).splitlines()
    assert lines[0] == "Peak 3.00 MiB (pretend:0)"
    assert any(line.startswith("Peak 2.00 MiB") and line.endswith("(cpu)") for line in lines)
    assert any(line.startswith("Peak 1.00 MiB") and line.endswith("(pretend:1)") for line in lines)
    reserved = next(line for line in lines if line.startswith("Reserved"))
    assert "at the peak: 20.00 MiB, of which 3.00 MiB live and 17.00 MiB free" in reserved
    assert "the largest piece has 17.00 MiB" in reserved


def test_a_block_that_uses_the_host_alone_is_about_the_host():
    """Tensors that lie on an accelerator all the time do not make it the block's device."""
    model = make(3 * MIB)
    with memwatch.profile() as prof:
        kept = make(2 * MIB, "cpu")
    with memwatch.profile() as used:
        model.add_(1)
        more = make(2 * MIB, "cpu")
    with memwatch.profile() as grown:
        on_device = make(MIB)
    del kept, more, model, on_device
    assert prof.device == "cpu"
    assert prof.on("pretend:0").peak_bytes == 3 * MIB
    assert used.device == grown.device == "pretend:0"


def test_page_and_statistics_have_the_same_figures():
    """In bytes, as the allocator counts them."""
    prof = recorded()
    held_bytes = pretend.stats("pretend:0")["reserved_bytes.all.peak"]
    figures = stats(prof)
    assert figures["peak_reserved_bytes"] == figures["most_reserved_bytes"] == held_bytes
    assert figures["devices"]["pretend:1"]["peak_reserved_bytes"] == 2 * MIB
    assert "peak_reserved_bytes" not in figures["devices"]["cpu"]
    assert format_bytes(held_bytes) in page_model(prof)["totals"]["reserved"]
    assert page_model(prof.on("cpu"))["totals"]["reserved"] is None


def test_a_file_tells_the_same():
    """The capture holds the reserved bytes."""
    prof = recorded()
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "devices.memwatch")
        prof.save(file)
        loaded = memwatch.load(file)
    assert loaded.reserved == prof.reserved
    assert loaded.on("pretend:1").reserved == prof.on("pretend:1").reserved


def test_a_copy_by_way_of_pinned_memory_counts_where_it_lies():
    """A block moves a tensor to pinned memory and back. The device's peak equals its counter."""
    tensor = make(MIB)
    pretend.reset_peaks()
    with memwatch.profile() as prof:
        pinned = torch.empty(MIB, dtype=torch.uint8, pin_memory=True)
        pinned.copy_(tensor, non_blocking=True)
        del tensor
        again = make(2 * MIB)[:MIB].copy_(pinned, non_blocking=True)
    assert pretend.pinned_bytes() == MIB
    assert prof.peak_bytes == pretend.stats("pretend:0")["allocated_bytes.all.peak"] == 2 * MIB
    assert prof.baseline_bytes == again.nbytes == MIB
