"""The memory of kernels is estimated by running them once, at their real size or at smaller sizes."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import memwatch
from memwatch.estimate import known_values, workspace
from memwatch.estimate.calls import Call, Shape
from memwatch.estimate.program import estimate_program
from memwatch.estimate.words import text_of


def train_convolutions():
    """The peak is inside a backward that needs workspace."""
    net = nn.Sequential(nn.Conv2d(4, 64, 3, padding=1), nn.Conv2d(64, 96, 3, padding=1), nn.BatchNorm2d(96))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.ones(2, 4, 32, 32)).mean().backward()
        optimizer.step()


def estimate(program, **options):
    """Return the estimate of a function."""
    gc.collect()
    return estimate_program(lambda: program, **options)


@pytest.mark.parametrize("most_bytes", [16 << 20, 128 << 10], ids=["at their sizes", "at smaller sizes"])
def test_tensors_and_workspace_are_what_a_real_run_takes(most_bytes, monkeypatch, one_thread):
    """Convolutions and batch norms copy their operands. The estimate of these copies is exact to the byte.

    The workspace of a convolution is measured at smaller sizes and scaled. A processor without AVX-512 pads
    differently at those, and copies more with each thread: with one thread the difference is 0.84 %.
    """
    with memwatch.profile(stacks=False, holders=False) as prof:
        train_convolutions()
    monkeypatch.setattr(workspace, "_SMALL_BYTES", most_bytes)
    monkeypatch.setattr(workspace, "_LONGEST_KEPT", 2)
    found = estimate(train_convolutions, steps=2)
    assert found.workspace.nbytes > 100_000
    assert found.workspace.is_scaled == (most_bytes < 1 << 20)
    off_ratio = 0.01 if found.workspace.is_scaled and not torch.cpu._is_avx512_supported() else 0
    assert found.tensor_bytes + found.workspace.nbytes == pytest.approx(prof.peak_bytes, rel=off_ratio, abs=0)


def train_recurrent():
    """The LSTM of oneDNN keeps 15 times the output of each layer for its backward, but nothing in the last pass."""
    net = nn.LSTM(24, 40, num_layers=2, bidirectional=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        net(torch.ones(57, 6, 24))[0].sum().backward()
        optimizer.step()
    with torch.no_grad():
        net(torch.ones(57, 18, 24))


def test_results_whose_size_a_kernel_chooses_have_it(monkeypatch):
    """A fake kernel shows them empty: an estimate was half of the peak, and its runs of kernels crashed."""
    with memwatch.profile(stacks=False, holders=False) as prof:
        train_recurrent()
    found = estimate(train_recurrent, steps=5)
    assert found.tensor_bytes > 2_000_000
    assert found.tensor_bytes + found.workspace.nbytes == prof.peak_bytes
    assert found.workspace.unknown == ()
    assert found.remarks == ()
    monkeypatch.setattr(known_values, "_SMALL_BYTES", 60 << 10)
    scaled = estimate(train_recurrent, steps=5)
    assert scaled.tensor_bytes == pytest.approx(found.tensor_bytes, rel=0.03)
    assert "aten::mkldnn_rnn_layer keeps for its backward follows from runs at smaller sizes" in str(
        scaled.remarks
    )


def test_a_result_whose_size_cannot_be_told_is_named(monkeypatch):
    """It counts as nothing, and the text says so."""
    monkeypatch.setattr(known_values, "_sizes", lambda call: None)
    found = estimate(train_recurrent, steps=1)
    assert "aten::mkldnn_rnn_layer keeps a buffer for its backward, and its kernel chooses the size" in str(
        found.remarks
    )


def test_an_op_that_is_not_run_is_named():
    """The side effects of a foreign op are unknown, so memwatch does not run it, and the text names it."""

    @torch.library.custom_op("memwatch_test::unknown", mutates_args=())
    def unknown(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError

    unknown.register_fake(torch.empty_like)
    found = estimate(lambda: unknown(torch.ones(1000)))
    assert found.workspace.unknown == ("memwatch_test::unknown",)
    assert "workspace of memwatch_test::unknown" in " ".join(text_of(found).split())


def test_no_kernel_of_another_device_runs_here():
    """Their workspace stays unknown; what the caching allocator reserves is modelled."""
    found = estimate(lambda: torch.ones(3 << 20, device="cuda").mul(2), device="cuda")
    assert found.workspace is None
    assert found.tensor_bytes == 2 * 12 << 20
    assert found.reserved_bytes == found.tensor_bytes
    assert "workspace of kernels" in " ".join(text_of(found).split())


def test_the_generator_is_where_it_was():
    """An op that draws numbers ran, and the program that follows draws what it would have drawn."""
    torch.manual_seed(0)
    estimate(lambda: torch.nn.functional.dropout(torch.ones(1000), 0.5))
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(0)))


def test_a_process_that_is_not_over_in_time_is_ended(monkeypatch):
    """Nothing is known of its calls then; a kernel that does not return would hold up the estimate."""
    shape = Shape((64, 64), (64, 1), torch.float32, "cpu")
    calls = {"sort": Call(torch.ops.aten.sort.default, (shape,), ())}
    assert list(workspace.run_calls(calls, 1.0)) == ["sort"]
    monkeypatch.setattr(workspace, "_BEYOND_S", -0.9)  # it takes longer to import torch
    assert workspace.run_calls(calls, 1.0) == {}
