"""Special cases of CUDA's allocator: workspaces, reserved memory, graphs, expandable segments, no memory left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cuda_events import counted

import memwatch
from memwatch.report.facts import describe_meta

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
FLOAT_BYTES = 4


def matmul():
    left, right = torch.randn(512, 512), torch.randn(512, 512)
    return left @ right


def test_the_workspace_of_cublas_is_told_from_tensors(on_cuda):
    """The first product of matrices makes it, and keeps it: no storage of the program's, but memory of that op."""
    torch._C._cuda_clearCublasWorkspaces()
    with memwatch.profile() as prof:
        most_bytes, kept = counted(matmul)
    del kept
    assert prof.peak_increase_bytes == most_bytes
    unnamed = prof.at_peak[prof.at_peak["category"].isin(["workspace", "unknown"])]
    assert unnamed["nbytes"].sum() == most_bytes - 3 * 512 * 512 * FLOAT_BYTES
    assert set(unnamed["op_name"]) == {"aten.mm.default"}


def test_the_workspace_of_a_convolution_is_told_from_tensors(on_cuda):
    """The workspace of cuDNN within an op is in the peak, whichever algorithm it chooses."""
    convolution = torch.nn.Conv2d(64, 64, 3, padding=1)
    images = torch.randn(8, 64, 64, 64, requires_grad=True)
    convolution(images).sum().backward()
    with memwatch.profile() as prof:
        most_bytes, _ = counted(lambda: convolution(images).sum().backward())
    assert prof.peak_increase_bytes == most_bytes


def test_reserved_memory_is_among_the_facts(on_cuda):
    """Reserved bytes that are not in use are reported by device."""
    held = torch.empty(64 * MIB, dtype=torch.uint8)
    del held
    with memwatch.profile() as prof:
        torch.ones(8)
    assert prof.meta["reserved_bytes"][str(on_cuda)] == torch.cuda.memory_reserved()
    assert "reserved by allocators" in dict(describe_meta(prof.meta))


def test_no_memory_left_is_told_with_what_was_live(on_cuda):
    """The error of the allocator carries the summary, and the device can be used again."""
    half = torch.empty(int(torch.cuda.mem_get_info()[1] * 0.006), dtype=torch.uint8)
    torch.cuda.set_per_process_memory_fraction(0.01)
    prof = memwatch.profile()
    try:
        with pytest.raises(torch.OutOfMemoryError) as raised, prof:
            half + half
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert prof.peak_bytes >= half.nbytes
    if sys.version_info >= (3, 11):  # an error has notes since
        assert any(str(on_cuda) in note for note in raised.value.__notes__)


def test_a_tensor_that_another_stream_uses_is_freed_when_the_program_frees_it(on_cuda):
    """The allocator keeps the block for the stream. The curve shows the memory of the program."""
    other = torch.cuda.Stream()
    with memwatch.profile() as prof:
        large = torch.empty(32 * MIB, dtype=torch.uint8)
        with torch.cuda.stream(other):
            large.add_(1)
        large.record_stream(other)
        del large
        after = torch.empty(16 * MIB, dtype=torch.uint8)
    del after
    torch.cuda.synchronize()
    assert prof.peak_increase_bytes in (32 * MIB, 48 * MIB)  # the stream may have ended by then


def test_a_graph_is_recorded_and_replayed(on_cuda):
    """Capturing under observation works, and a replay, which runs no op, gives the same values."""
    x = torch.ones(1024)
    y = x * 2 + 1
    graph = torch.cuda.CUDAGraph()
    with memwatch.profile() as prof:
        with torch.cuda.graph(graph):
            y = x * 2 + 1
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, torch.full_like(y, 3))
    assert not prof.ops["failed"].any()


@pytest.mark.parametrize("expandable", ["False", "True"])
def test_segments_of_either_kind_give_the_same_peak(expandable):
    """Expandable segments reserve otherwise, and hand out the same bytes."""
    program = """
        import torch, memwatch
        with torch.device("cuda"), memwatch.profile() as prof:
            kept = [torch.empty(nbytes, dtype=torch.uint8) for nbytes in (1 << 20, 3 << 20, 24 << 20)]
        print(prof.peak_increase_bytes, torch.cuda.max_memory_allocated())
    """
    program = "\n".join(line.strip().replace("kept", "    kept") for line in program.splitlines())
    setting = {"PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{expandable}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | setting, capture_output=True, text=True, check=True
    )
    ours, torchs = done.stdout.split()
    assert ours == torchs
