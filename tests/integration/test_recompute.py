"""What checkpointing computes again in backward: its phase, its modules and lines, its category, who keeps it."""

from __future__ import annotations

import functools
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

import memwatch
from memwatch._torch.dispatch import FREE_KEY, include_key
from memwatch.analysis.facts.grouped import Grouped as Numbered
from memwatch.analysis.findings.smaller_regions import SmallerRegions
from memwatch.record import native
from memwatch.report.facts import recomputed

WIDTH = 16
again = functools.partial(checkpoint, use_reentrant=False)
again_reentrant = functools.partial(checkpoint, use_reentrant=True)


class Block(nn.Module):
    """Three modules and an addition of its own, each on a line of its own; part of it runs without gradients."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        with torch.no_grad():
            scale = x.abs().amax()
        h = self.up(x)
        h = self.act(h)
        h = self.down(h)
        return (x + h / scale).tanh()


class Net(nn.Module):
    """Blocks that are run in any way, and a head."""

    def __init__(self, run):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 2)
        self.run = run

    def forward(self, x):
        for block in self.blocks:
            x = self.run(block, x)
        return self.head(x)


class Within(nn.Module):
    """Checkpoints a method and a lambda of its own: no module call begins in the region."""

    def __init__(self, run):
        super().__init__()
        self.block = Block()
        self.run = run

    def _middle(self, x):
        y = x.sin() * 2
        return self.block(y).exp()

    def forward(self, x):
        y = self.run(self._middle, x)
        return self.run(lambda z: z.cos().sigmoid(), y)


def _selected(ctx, op, *args, **kwargs):
    keep = op is torch.ops.aten.addmm.default
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


def _selectively(block, x):
    return again(block, x, context_fn=functools.partial(create_selective_checkpoint_contexts, _selected))


def _nested(block, x):
    return again(lambda y: again(block, y).sin().exp(), x)


def _nested_reentrant(block, x):
    return again_reentrant(lambda y: again_reentrant(block, y).sin().exp(), x)


def _to_the_end(block, x):
    with set_checkpoint_early_stop(False):
        return again(block, x)


def _offloaded(block, x):
    def region(y):
        y = block(y)
        with torch.autograd.graph.saved_tensors_hooks(
            torch.clone, lambda kept: kept
        ):  # the checkpoint's see none
            y = y.exp()
        return y.cos()

    return again(region, x)


class Sequential(nn.Module):
    """Checkpoints its blocks in three segments; torch runs the last one plainly."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))

    def forward(self, x):
        return checkpoint_sequential(self.blocks, 3, x, use_reentrant=False)


def _wrapped(implementation):
    net = Net(lambda block, x: block(x))
    for index, block in enumerate(net.blocks):
        net.blocks[index] = checkpoint_wrapper(block, implementation)
    return net


def _llama():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2,
    )  # fmt: skip
    net = transformers.LlamaForCausalLM(config).train()
    net.gradient_checkpointing_enable()
    return net


VARIANTS = {
    "non-reentrant": lambda: Net(again),
    "reentrant": lambda: Net(again_reentrant),
    "selective": lambda: Net(_selectively),
    "nested": lambda: Net(_nested),
    "nested and reentrant": lambda: Net(_nested_reentrant),
    "without early stop": lambda: Net(_to_the_end),
    "with hooks on saved tensors inside": lambda: Net(_offloaded),
    "methods and lambdas": lambda: Within(again),
    "methods and lambdas, reentrant": lambda: Within(again_reentrant),
    "checkpoint_sequential": Sequential,
    "checkpoint_wrapper": lambda: _wrapped(CheckpointImpl.NO_REENTRANT),
    "checkpoint_wrapper, reentrant": lambda: _wrapped(CheckpointImpl.REENTRANT),
    "HF gradient_checkpointing_enable": _llama,
}


@pytest.fixture(scope="module", params=["native", "python"])
def recorder(request):
    """Record by C++, then by Python: a change of kernels takes a second."""
    if request.param == "native" and native.backend() is None:
        pytest.skip("the native recorder is not built")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMWATCH_NATIVE", "1" if request.param == "native" else "0")
        yield request.param


def _train(net):
    torch.manual_seed(0)
    if hasattr(net, "generate"):
        tokens = torch.randint(32, (2, 8))
        net(input_ids=tokens, labels=tokens).loss.backward()
    else:
        net(torch.randn(8, WIDTH, requires_grad=True)).sum().backward()


def _places(ops):
    return list(zip(ops["name"], ops["module"], ops["line"], ops["function"], strict=True))


@pytest.mark.parametrize("intercept", ["key", "mode"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_what_runs_again_has_its_own_line_and_module(variant, intercept, recorder):
    """Each op of a recomputation stands where the same op stood in forward, in the same order."""
    net = VARIANTS[variant]()
    with memwatch.profile(intercept=intercept, holders=False) as prof:
        _train(net)
    assert prof.meta["recorder"] == recorder
    ops, runs = prof.ops, prof.capture.tables["recomputes"]
    forward, recompute = (ops[ops["phase"] == phase] for phase in ("forward", "recompute"))
    assert len(runs["start_op"]) >= 2
    assert len(recompute) > 2 * len(runs["start_op"])
    assert set(_places(recompute)) <= set(_places(forward))
    for start, end in zip(runs["start_op"], runs["end_op"], strict=True):
        again = [place for place in _places(recompute.loc[start : end - 1]) if "empty" not in place[0]]
        remaining = iter(_places(forward))
        assert variant.startswith("nested") or all(place in remaining for place in again)
    storages = prof.storages
    made = storages[storages["op"].isin(recompute.index) & (storages["origin"] == "op")]
    assert set(made["category"]) == {"recomputed"}
    assert (made["rule"] == "torch.utils.checkpoint computed it again in backward").all()
    others = storages[~storages["op"].isin(recompute.index)]
    assert "recomputed" not in set(others["category"])


def _hook_that_runs_a_module():
    net, other = nn.Linear(4, 4), Block()
    x = torch.ones(2, 4, requires_grad=True)
    y = net(x)

    def hook(gradient):
        with torch.enable_grad():
            other(torch.ones(2, WIDTH))

    y.register_hook(hook)
    y.sum().backward()


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 2 + x.sum() * 0


def _hook_of_a_function():
    other = Block()
    y = _Twice.apply(torch.ones(2, WIDTH, requires_grad=True))

    def hook(gradient):
        with torch.enable_grad():
            other(torch.ones(2, WIDTH))

    y.register_hook(hook)
    y.sum().backward()


def _double_backward():
    x = torch.ones(3, requires_grad=True)
    (gradient,) = torch.autograd.grad(_Twice.apply(x).exp().sum(), x, create_graph=True)
    gradient.pow(2).sum().backward()


def _functions_of_torch_func():
    net = Block()
    parameters = dict(net.named_parameters())
    torch.func.grad(lambda p: torch.func.functional_call(net, p, (torch.ones(2, WIDTH),)).sum())(parameters)
    torch.func.vmap(torch.func.grad(lambda x: x.sin().sum()))(torch.ones(2, 3))
    torch.func.jacrev(lambda x: x.exp())(torch.ones(3))
    torch.func.hessian(lambda x: x.pow(3).sum())(torch.ones(2))


def _plain_training():
    net = Net(lambda block, x: block(x))
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(2):
        net(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def _checkpoint_without_gradients():
    with torch.no_grad():
        Net(again)(torch.ones(2, WIDTH))


@pytest.mark.parametrize("intercept", ["key", "mode"])
@pytest.mark.parametrize(
    "program",
    [
        _hook_that_runs_a_module, _hook_of_a_function, _double_backward, _functions_of_torch_func, _plain_training,
        _checkpoint_without_gradients,
    ],
)  # fmt: skip
def test_nothing_else_runs_again(program, intercept, recorder):
    """Hooks that run modules, gradients of gradients and torch.func are what they were."""
    with memwatch.profile(intercept=intercept, holders=False) as prof:
        program()
    assert set(prof.ops["phase"]) <= {"forward", "backward", "optimizer"}
    assert "recomputed" not in set(prof.storages["category"])


class _ByHand(torch.autograd.Function):
    """Computes its forward again in backward, as libraries with checkpoints of their own do."""

    @staticmethod
    def forward(ctx, x, block):
        ctx.block = block
        ctx.save_for_backward(x)
        return block(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.block(x)
        torch.autograd.backward(y, gradient)
        return x.grad, None


@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_a_checkpoint_by_hand_is_inferred(intercept, recorder):
    """A Function whose backward builds a graph of its own computes its forward again; its rule says so."""
    net = Net(lambda block, x: _ByHand.apply(x, block))
    with memwatch.profile(intercept=intercept, holders=False) as prof:
        _train(net)
    ops, storages = prof.ops, prof.storages
    recompute = ops[ops["phase"] == "recompute"]
    assert set(recompute["module"]) >= {"blocks.0.up", "blocks.1.act", "blocks.2.down", "blocks.2"}
    rules = set(storages.loc[storages["category"] == "recomputed", "rule"])
    assert len(rules) == 1
    assert rules.pop().startswith("inferred: ")


@pytest.mark.parametrize("run", [again, again_reentrant], ids=["non-reentrant", "reentrant"])
def test_a_variable_of_a_forward_that_has_returned_holds_nothing(run):
    """What was computed again is kept by the checkpoint or by autograd, not by the forward's dead variables."""
    net = Net(run)
    with memwatch.profile() as prof:
        net(torch.randn(512, WIDTH, requires_grad=True)).sum().backward()
    assert prof.ops["phase"][int(prof.timeline["op"][prof.timeline["live_bytes"].idxmax()])] == "backward"
    again = prof.at_peak[prof.at_peak["category"] == "recomputed"]
    largest = again[again["nbytes"] == again["nbytes"].max()]
    assert set(largest["holder_kind"]) <= {"checkpoint", "autograd node"}
    assert set(largest["module"]) <= {
        f"blocks.{index}.{part}" for index in range(3) for part in ("up", "act")
    }
    assert not again["holder"].str.contains("local variable of `forward`").any()
    assert prof.findings == []


def test_the_input_of_a_region_is_kept_by_its_checkpoint():
    """The checkpoint's own books say so; no node's backward reads it."""
    net = Net(again)
    with memwatch.profile() as prof:
        loss = net(torch.randn(512, WIDTH, requires_grad=True)).sum()
    held = prof.at_peak[prof.at_peak["holder_kind"] == "checkpoint"]
    assert (held["nbytes"] == 512 * WIDTH * 4).sum() >= 2
    assert set(held["holder"]) == {
        "a checkpoint called by `net`, which runs its region again from it in backward"
    }
    assert set(held["category"]) == {"activation", "input"}
    loss.backward()


@pytest.mark.parametrize("holders", [True, False])
def test_what_a_checkpoint_computed_again_is_its_until_backward_has_read_it(holders):
    """Then torch has let go, and what is alive still is what the program keeps; it may even use it again."""
    kept, x = [], torch.randn(500, 64, requires_grad=True)

    def region(x):
        kept.append((x * 2).relu())
        return kept[-1].sin()

    with memwatch.profile(holders=holders) as prof:
        again(region, x).sum().backward()
        at_peak = torch.zeros(2000, 64)
        again_used = kept[-1] * 2
    del at_peak, again_used
    peak = prof.at_peak
    assert set(peak.loc[peak["category"] == "recomputed", "op_name"]) == {"aten.relu.default"}
    assert not peak["holder"].str.contains("a checkpoint, which ran").any(), peak["holder"].tolist()


@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_what_a_compiled_function_saved_is_saved_until_its_backward_ends(intercept):
    """Its saved tensors, and the line that calls it, are those of the call; no line is in code that torch wrote."""
    net = nn.Sequential(Block(), Block())
    compiled = torch.compile(net, backend="aot_eager")
    x = torch.randn(512, WIDTH, requires_grad=True)
    compiled(x).sum().backward()
    with memwatch.profile(intercept=intercept) as prof:
        y = compiled(x)
        y.sum().backward()
    assert set(prof.ops["phase"]) == {"forward", "backward"}
    lines = [*prof.ops["line"], *prof.at_peak["line"], *prof.saved["line"]]
    assert {line.rpartition(":")[0] for line in lines} <= {"", __file__}
    saved = prof.saved[prof.saved["at_peak"]].drop_duplicates("storage")
    sizes = prof.storages["nbytes"].loc[saved["storage"]]
    assert sizes.max() == 512 * 4 * WIDTH * 4
    assert sizes.sum() > 0.3 * prof.peak_bytes


class Grouped(nn.Module):
    """Eight blocks, checkpointed in groups of some."""

    def __init__(self, per_group, run):
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH)) for _ in range(8)]
        starts = range(0, 8, per_group)
        self.groups = nn.ModuleList(nn.Sequential(*blocks[start : start + per_group]) for start in starts)
        self.run = run

    def forward(self, x):
        for group in self.groups:
            x = self.run(group, x)
        return x


def _two_steps(net):
    x = torch.randn(2048, WIDTH, requires_grad=True)
    with memwatch.profile() as prof:
        for _ in range(2):
            net(x).sum().backward()
            net.zero_grad()
    return prof


@pytest.mark.parametrize("run", [again, again_reentrant], ids=["non-reentrant", "reentrant"])
def test_a_large_region_is_told_to_be_split(run):
    """What the peak would fall to is what it is in the program with smaller regions, which has no such finding."""
    smaller = _two_steps(Grouped(1, run))
    assert smaller.findings == []
    for per_group in (8, 2):
        large = _two_steps(Grouped(per_group, run))
        (finding,) = large.findings
        assert finding.kind == "recompute"
        assert finding.site.startswith(f"{__file__}:")
        assert finding.predicted_peak_bytes == pytest.approx(smaller.peak_bytes, rel=0.02)
        assert smaller.peak_bytes < 0.9 * large.peak_bytes


def test_what_smaller_regions_spare_is_the_sum_of_all_runs():
    """A run is judged by the ops and the memory of its own, whatever else was recorded."""
    facts = _two_steps(Grouped(4, again))._tables.facts
    runs = list(range(len(facts.recomputes.stack)))
    assert len(runs) == 4
    alone = [SmallerRegions(facts, [run]) for run in runs]
    together = SmallerRegions(facts, runs)
    assert (together.bytes_of_event() == sum(each.bytes_of_event() for each in alone)).all()
    assert together.spared == [row for each in alone for row in each.spared]
    made = facts.allocations.op[together.spared]
    assert {int(run) for run in facts.recomputes.run_of_op[made]} == set(runs)


def test_rows_are_found_by_their_number():
    grouped = Numbered(np.array([3, -1, 2, 3, 0]))
    assert [grouped.within(start, start + 1).tolist() for start in (-1, 0, 1, 2, 3)] == [
        [1], [4], [], [2], [0, 3],
    ]  # fmt: skip
    assert grouped.within(2, 9).tolist() == [2, 0, 3]


def test_the_summary_says_what_keeping_it_would_take():
    """To keep what backward computes again takes what the plain program keeps; what is kept anyway counts too."""
    torch.manual_seed(0)
    x = torch.randn(512, WIDTH, requires_grad=True)

    def kept_bytes(run):
        net = Net(run)
        with memwatch.profile(holders=False) as prof:
            loss = net(x).sum()
        live = prof.timeline["live_bytes"].iloc[-1] - prof.baseline_bytes
        del loss
        return live

    with memwatch.profile() as prof:
        Net(again)(x).sum().backward()
    instead = recomputed(prof)
    assert instead.at_peak_bytes == prof.at_peak[prof.at_peak["category"] == "recomputed"]["nbytes"].sum()
    difference = kept_bytes(lambda block, x: block(x)) - kept_bytes(again)
    result = 512 * WIDTH * 4  # of a region, which forward keeps as the input of the next
    state = torch.get_rng_state().nbytes  # a checkpoint keeps it for each region
    assert instead.instead_bytes == difference + 3 * (result + state)
    assert "Computed again in backward: " in prof.summary(color=False)
    assert "Computed again" not in _plain().summary(color=False)


def _plain():
    with memwatch.profile(holders=False) as prof:
        _plain_training()
    return prof


@pytest.mark.parametrize("run", [again, again_reentrant], ids=["non-reentrant", "reentrant"])
def test_a_region_may_run_again_in_a_thread_of_autograd(run):
    """The backward of another device runs in a thread that inherits the key: its modules and lines are seen."""
    net = Net(run)

    def backward():
        include_key(FREE_KEY, True)  # as autograd does in the threads of devices
        try:
            loss.backward()
        finally:
            include_key(FREE_KEY, False)

    with memwatch.profile(intercept="key", holders=False) as prof:
        loss = net(torch.randn(8, WIDTH, requires_grad=True)).sum()
        thread = threading.Thread(target=backward)
        thread.start()
        thread.join()
    ops = prof.ops
    forward, recompute = (ops[ops["phase"] == phase] for phase in ("forward", "recompute"))
    assert len(recompute) > 12
    assert set(_places(recompute)) <= set(_places(forward))
    gelu = ops[ops["name"] == "aten.gelu_backward.default"]
    assert list(gelu["module"]) == ["blocks.2.act", "blocks.1.act", "blocks.0.act"]
