"""Odd programs replay bitwise at the planned peak, or say why not."""

from __future__ import annotations

import pytest
import replay_odd_modules  # noqa: F401 (lists its programs)
import replay_odd_tensors  # noqa: F401
import replay_odd_training  # noqa: F401
import replay_odd_values  # noqa: F401
import torch
from replay_odd import ODD
from replay_recording import record
from torch import nn

import memwatch
from memwatch.errors import UnsupportedOpError
from memwatch.planner import BudgetError
from memwatch.replay.api import plan, replay


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ODD)
def test_odd_program_replays_bitwise(name):
    """Recorded in its second call, planned by order and at a tight budget, replayed twice."""
    torch.manual_seed(0)
    step = ODD[name]()
    step()
    prof = record(step)
    for budget in (None, "70%"):
        try:
            planned = plan(prof, budget=budget, time_limit_s=0.3)
        except BudgetError as error:
            planned = error.best
        for _ in range(2):
            result = replay(planned)
            assert result.identical, result
            assert result.peak_increase_bytes == planned.peak_increase_bytes


def sparse_gradients():
    table = nn.Embedding(50, 8, sparse=True)
    return table(torch.arange(20)).square().sum().backward()


def sparse_product():
    return torch.eye(8).to_sparse_csr() @ torch.ones(8, 8)


def quantized():
    return torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8).dequantize()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("step", "words"),
    [(sparse_gradients, "sparse_coo"), (sparse_product, "sparse_csr"), (quantized, "quantized")],
)
def test_what_cannot_be_replayed_is_named_when_planned(step, words):
    """Storages without plain memory are refused with the op, its line and the kind of tensor."""
    with pytest.raises(UnsupportedOpError, match=rf"op \d+ \(aten.*test_replay_odd.py:\d+\) uses a {words}"):
        plan(record(step))


def test_compiled_code_is_refused_by_name():
    """Ops inside compiled code were not seen; the error says how to record them."""
    compiled = torch.compile(lambda x: (x * 2).sin(), backend="aot_eager")
    x = torch.ones(4)
    compiled(x)
    with pytest.raises(UnsupportedOpError, match="set_stance"):
        plan(record(lambda: compiled(x)))


def test_bytes_written_by_the_host_are_found_out():
    """A result that numpy changed differs from the result of the ops. The replay names the op."""

    def step():
        y = torch.zeros(8)
        y.numpy()[3] = 5
        return y * 2

    result = replay(plan(record(step)))
    assert not result.identical
    assert result.max_abs_diff == 10
    assert "first in the result of op" in str(result)
    assert "test_replay_odd.py" in str(result)


def test_block_without_ops_says_so():
    with pytest.raises(memwatch.MemwatchError, match="lacks the arguments"):
        plan(record(lambda: None))
