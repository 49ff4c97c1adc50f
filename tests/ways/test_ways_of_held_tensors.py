"""Checkpoints around modules whose tensors stay in the forward: a variable or autocast's cache keeps them."""

from __future__ import annotations

import contextlib
import gc

import pytest
import torch
from torch import nn
from ways import run_lines

import memwatch


class _Block(nn.Module):
    def __init__(self, *, has_bias=True):
        super().__init__()
        self.up, self.down = nn.Linear(256, 1_024, bias=has_bias), nn.Linear(1_024, 256, bias=has_bias)

    def forward(self, x):
        h = self.up(x)
        g = nn.functional.gelu(h)
        y = self.down(g)
        return x + y


class _Replacing(_Block):
    def forward(self, x):
        h = self.up(x)
        h = nn.functional.gelu(h)
        h = self.down(h)
        return x + h


class _InOneLine(_Block):
    """The next block's calls look like those of this one."""

    def forward(self, x):
        return x + self.down(nn.functional.gelu(h := self.up(x))) + 0 * h[:, :256]


class _Sorted(nn.Module):
    """The order that `sort` saves for backward is twice as large as the sorted values."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(256, 1_024)

    def forward(self, x):
        return self.up(x).sort(-1).values


class _WithFirst(nn.Module):
    """Keeps the result of its first module in a variable for the whole forward."""

    def __init__(self):
        super().__init__()
        self.first, self.down = _Sorted(), nn.Linear(1_024, 256)
        self.blocks = nn.ModuleList(_Block() for _ in range(3))

    def forward(self, x):
        first = self.first(x)
        y = self.down(first)
        for block in self.blocks:
            y = block(y)
        return y.mean() + first.mean()


class _Training:
    def __init__(self, make_block, *, is_cast, **options):
        gc.collect()
        torch.manual_seed(0)
        self.model = nn.Sequential(*(make_block(**options) for _ in range(4)), nn.Linear(256, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.is_cast = is_cast


def _recorded(training):
    with memwatch.profile() as prof:
        for _ in range(3):
            x = torch.randn(1_024, 256)
            region = torch.autocast("cpu", torch.bfloat16) if training.is_cast else contextlib.nullcontext()
            with region:
                loss = training.model(x).float().pow(2).mean()
            training.optimizer.zero_grad()  # late: the gradients are alive in forward
            loss.backward()
            training.optimizer.step()
            del loss
    return prof


@pytest.mark.parametrize("make_block", [_Block, _Replacing, _InOneLine])
@pytest.mark.parametrize(("is_cast", "options"), [(True, {}), (True, {"has_bias": False}), (False, {})])
def test_a_checkpoint_leaves_what_variables_and_autocast_keep(make_block, is_cast, options):
    """The peak is in the forward of the last block, whose variables have two of its tensors."""
    plain = _Training(make_block, is_cast=is_cast, **options)
    found = [way for way in _recorded(plain).ways.itertuples() if way.kind == "checkpoint"]
    assert found
    del plain  # its memory would count
    for way in found:
        changed = _Training(make_block, is_cast=is_cast, **options)
        run_lines(way.lines, plain=changed)
        assert _recorded(changed).peak_bytes == pytest.approx(way.peak_bytes, rel=0.005)
        del changed


def test_a_checkpoint_frees_the_results_of_an_op_that_no_variable_has():
    def training():
        found = _Training(_Block, is_cast=False)
        found.model = _WithFirst()
        found.optimizer = torch.optim.SGD(found.model.parameters())
        return found

    plain = training()
    found = [way for way in _recorded(plain).ways.itertuples() if way.kind == "checkpoint"]
    assert any("first" in way.modules for way in found)
    del plain  # its memory would count
    for way in found:
        changed = training()
        run_lines(way.lines, plain=changed)
        assert _recorded(changed).peak_bytes == pytest.approx(way.peak_bytes, rel=0.005)
        del changed
