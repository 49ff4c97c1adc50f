"""The code for an optimizer that does not exist before the training: a library or another function makes it."""

from __future__ import annotations

import gc
import runpy
import sys
import traceback

import pytest
from torch.optim import optimizer as torch_optimizer

import memwatch

_LIBRARY = """
import torch


class Wrapped(torch.optim.Optimizer):
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.param_groups, self.state = optimizer.param_groups, optimizer.state

    def step(self):
        self.optimizer.step()


class Trainer:
    def __init__(self, model, optimizer=None):
        self.model, self.optimizer = model, optimizer

    def train(self, batch, steps=3):
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach={foreach})
        self.optimizer = Wrapped(self.optimizer)
        for _ in range(steps):
            self.model(batch).square().mean().backward()
            self.optimizer.step()
            self.model.zero_grad()


def fit(module, batch, steps=3):
    optimizer = Wrapped(module.configure())
    for _ in range(steps):
        module.net(batch).square().mean().backward()
        optimizer.step()
        module.net.zero_grad()
"""
_SCRIPT = """
import torch
from torch import nn
from trainer_of_tests import Trainer


def main():
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)])
    trainer = Trainer(model)
    batch = torch.randn(4, 256)
    # LINES
    trainer.train(batch)


main()
"""
_OWN = """
import torch
from torch import nn


class Runner:
    def __init__(self):
        self.model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)])

    def run(self):
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach=False)
        batch = torch.randn(4, 256)
        # LINES
        for _ in range(3):
            self.model(batch).square().mean().backward()
            self.opt.step()
            self.model.zero_grad()


def main():
    # gc cannot see the hooks of a parameter, so a global would be kept by the globals of a hook
    runner = Runner()
    runner.run()


main()
"""
_HOOK = """
import torch
from torch import nn
from trainer_of_tests import fit


class Module:
    def __init__(self):
        self.net = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)])

    def configure(self):
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3, foreach=False)
        # LINES
        return optimizer


fit(Module(), torch.randn(4, 256))
"""
_LARGEST_ERROR_RATIO = 0.02


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Return a function that runs a script with a library and some lines, and returns the profile."""
    hooks, register = [], torch_optimizer.register_optimizer_step_pre_hook

    def registered(hook):
        hooks.append(register(hook))
        return hooks[-1]

    monkeypatch.setattr(torch_optimizer, "register_optimizer_step_pre_hook", registered)

    def run(script, lines="", foreach=False):
        packages = tmp_path / "site-packages"
        packages.mkdir(exist_ok=True)
        (packages / "trainer_of_tests.py").write_text(_LIBRARY.format(foreach=foreach))
        monkeypatch.syspath_prepend(str(packages))
        monkeypatch.delitem(sys.modules, "trainer_of_tests", raising=False)
        place = next(line for line in script.splitlines() if "# LINES" in line)
        indent = place[: place.index("#")]
        file = tmp_path / "program.py"
        file.write_text(script.replace(place, "\n".join(indent + line for line in lines.splitlines())))
        gc.collect()
        with memwatch.profile(holders=False) as prof:
            runpy.run_path(str(file), run_name="__main__")
        while hooks:
            hooks.pop().remove()
        return prof

    return run


def _way(prof, kind):
    return next(way for way in prof.ways.itertuples() if way.kind == kind)


@pytest.mark.parametrize(
    ("kind", "foreach"), [("fused", False), ("foreach", True), ("sgd", False), ("adafactor", False)]
)
def test_the_code_for_the_optimizer_of_a_library_works_before_the_training(record, kind, foreach):
    way = _way(record(_SCRIPT, foreach=foreach), kind)
    assert "trainer.optimizer.optimizer" not in way.lines
    assert record(_SCRIPT, way.lines, foreach).peak_bytes == pytest.approx(
        way.peak_bytes, rel=_LARGEST_ERROR_RATIO
    )


def test_no_step_in_the_backward_is_offered_for_the_optimizer_of_a_library(record):
    """Its hooks would come too late for the first backward. The twin's optimizer exists before the training."""
    assert "step_in_backward" not in set(record(_SCRIPT).ways["kind"])
    early = _SCRIPT.replace(
        "trainer = Trainer(model)",
        "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n    trainer = Trainer(model, optimizer)",
    )
    prof = record(early)
    assert prof.capture.meta["expressions"]["optimizers"] == ["optimizer"]
    way = _way(prof, "step_in_backward")
    assert record(early, way.lines).peak_bytes == pytest.approx(way.peak_bytes, rel=_LARGEST_ERROR_RATIO)


@pytest.mark.parametrize("kind", ["fused + step_in_backward", "sgd"])
def test_the_code_names_the_function_in_which_its_optimizer_exists(record, kind):
    """`runner.opt` exists only once `runner.run()` has made it, so the code belongs into `run`."""
    prof = record(_OWN)
    expressions = prof.capture.meta["expressions"]
    assert (expressions["function"].rpartition(".")[2], expressions["optimizers"]) == ("run", ["self.opt"])
    way = _way(prof, kind)
    assert record(_OWN, way.lines).peak_bytes == pytest.approx(way.peak_bytes, rel=_LARGEST_ERROR_RATIO)


@pytest.mark.parametrize("kind", ["fused", "fused + step_in_backward", "sgd"])
def test_an_optimizer_that_no_variable_leads_to_is_changed_where_the_program_makes_it(record, kind):
    prof = record(_HOOK)
    assert prof.capture.meta["expressions"]["made_in"][0].rpartition(".")[2] == "configure"
    way = _way(prof, kind)
    assert "configure" in way.lines
    assert record(_HOOK, way.lines).peak_bytes == pytest.approx(way.peak_bytes, rel=_LARGEST_ERROR_RATIO)


@pytest.mark.words
def test_the_code_for_modules_and_for_such_an_optimizer_names_a_place_for_each(record):
    """The lines of a checkpoint belong before the training, where the optimizer does not exist yet."""
    blocks = (
        "nn.Sequential(*[nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)])"
    )
    script = _HOOK.replace("nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)])", blocks)
    ways = record(script.replace("torch.randn(4, 256)", "torch.randn(192, 64)")).ways
    (lines,) = ways["lines"][ways["kind"] == "checkpoint + step_in_backward"]
    place, *comments = [line for line in lines.splitlines() if line.startswith("#")]
    (about_optimizer,) = (comment for comment in comments if "stands for your optimizer" in comment)
    assert "before the training loop" in place
    assert "put the lines that use it into" in about_optimizer
    assert "configure" in about_optimizer


_MANY = """
import torch
from torch import nn
from trainer_of_tests import Trainer


def main():
    for rate in [0.1] * 12:
        torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=rate)
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)])
    trainer = Trainer(model)
    batch = torch.randn(4, 256)
    # LINES
    trainer.train(batch)


main()
"""


def test_the_optimizer_of_a_library_is_known_after_many_that_have_died(record):
    """The makings of a few optimizers are kept, because a program may make thousands."""
    assert record(_MANY).capture.meta["expressions"]["made_by_library"] == [True]


def test_a_failing_optimizer_raises_its_own_error_while_a_block_is_open():
    def error():
        with pytest.raises(ValueError, match="empty") as raised:
            torch_optimizer.Optimizer([], {})
        return raised.value

    plain, own = error(), torch_optimizer.Optimizer.__init__
    with memwatch.profile():
        recorded = error()
    assert torch_optimizer.Optimizer.__init__ is own
    assert (type(recorded), recorded.args, recorded.__context__) == (type(plain), plain.args, None)
    innermost = [traceback.extract_tb(each.__traceback__)[-1] for each in (plain, recorded)]
    assert innermost[0] == innermost[1]
