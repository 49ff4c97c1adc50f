"""Memory that compiled code makes and reads without a recorded op."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import memwatch

ROWS, IN, HIDDEN = 333, 131, 257


@pytest.fixture(autouse=True)
def _compiled_anew():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_what_the_backward_of_a_compiled_function_makes_is_on_the_line_of_its_call(backend):
    """As in eager mode, line and module belong to the forward, not to `backward()`."""
    net = nn.Sequential(nn.Linear(IN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 7))
    compiled = torch.compile(net, backend=backend)
    compiled(torch.randn(ROWS, IN)).mean().backward()
    with memwatch.profile() as prof:
        for _ in range(2):
            line = f"{__file__}:{sys._getframe().f_lineno + 1}"
            y = compiled(torch.randn(ROWS, IN))
            y.square().mean().backward()
            net.zero_grad()
    made = prof.at_peak[prof.at_peak["nbytes"] == 4 * ROWS * HIDDEN]
    assert len(made) == 3  # one saved, and two in backward
    assert set(made["line"]) == {line}
    assert set(made["module"]) == {"compiled"}


def test_nothing_is_told_unused_that_compiled_code_may_read():
    """No recorded op reads it, because the reads of compiled code are not recorded."""

    def wave(x):
        return torch.sin(x) * x

    compiled = torch.compile(wave, backend="aot_eager")
    with torch.no_grad():
        compiled(torch.randn(501, 203))
        with memwatch.profile() as prof:
            results = []
            for _ in range(4):
                x = torch.randn(501, 203)
                results.append(compiled(x))
            torch.cat(results)
    assert [str(finding) for finding in prof.findings if "`x`" in str(finding)] == []
