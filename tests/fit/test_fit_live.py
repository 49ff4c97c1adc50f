"""fit() on a live model: under the limit by an independent count, bit for bit the same, and all as it was."""

from __future__ import annotations

import copy
import gc
import itertools
import random
import time
from pathlib import Path
from types import SimpleNamespace

import fit_programs
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

import memwatch
from memwatch.errors import MemwatchError, OptionError
from memwatch.fit import trial
from memwatch.fit.api import fit_program
from memwatch.fit.blocks import SavedScan, partitions
from memwatch.fit.search import Search, SimulatedCheckpoint
from memwatch.fit.state import fingerprint
from memwatch.fit.trial import Measurement
from memwatch.fit.way import Change, Way
from memwatch.kinds.fit import Kind
from memwatch.sizes import SizeError
from memwatch.words import fit as fit_words
from memwatch.words import ways as ways_words

FAST = ("foreach", "gradients", "checkpoint", "chain")
CALLS = [0]


def limit_of(name, share):
    _, _, step = fit_programs.made(name)
    return int(fit_programs.peak_of(step) * share)


def assert_equal(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("name", "share"), [("resnet", 0.65), ("mlp", 0.7)])
def test_steps_stay_under_the_limit_and_compute_the_same(name, share, fresh_python):
    """Further steps stay under the limit and are the plain steps bit for bit; so does the code in a plain script."""
    limit = limit_of(name, share)
    model, _, step = fit_programs.made(name)
    fit = memwatch.fit(step, model, limit, ways=FAST, quiet=True)
    assert fit.peak_bytes <= limit
    kept = fit.ways[fit.ways["kept"]].iloc[0]
    assert kept["bitwise"] == "yes"
    assert kept["under_limit"]
    assert (fit.ways["under_limit"] == (fit.ways["peak_bytes"] <= limit)).all()
    torch.manual_seed(1)
    assert fit_programs.peak_of(step) == fit.peak_bytes
    assert_equal(fit_programs.values_after(name, fit.code), fit_programs.values_after(name))
    plain = fresh_python(PLAIN, str(Path(__file__).parent), name, fit.code)
    assert plain.stdout.split() == [str(fit.peak_bytes)], plain.stderr


PLAIN = """
import sys
sys.path.insert(0, sys.argv[1])
import fit_programs
model, optimizer, step = fit_programs.made(sys.argv[2])
exec(sys.argv[3])
print(fit_programs.peak_of(step))
"""


class Training:
    """A program with everything that a step may change; `state` is all of it."""

    def __init__(self):
        torch.manual_seed(0)
        block = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Dropout(), nn.Linear(32, 8))
        self.model = nn.Sequential(*(copy.deepcopy(block) for _ in range(3)))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.data = iter([torch.randn(64, 8) for _ in range(50)])
        self.losses, self.generator, self.seen = [], torch.Generator(), torch.zeros(1)
        self.noise = np.random.default_rng(0)

    def step(self):
        CALLS[0] += 1
        loss = self.model(next(self.data) + torch.rand(8, generator=self.generator)).square().mean()
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.losses.append(loss.item() + random.random() + np.random.rand() + self.noise.random())
        self.seen += 1

    def state(self):
        tensors = [*self.model.parameters(), *self.model.buffers()]
        tensors += [each.grad for each in tensors if each.grad is not None]
        generators = (torch.get_rng_state(), self.generator.get_state())
        numbers = (random.getstate(), np.random.get_state()[1].tolist(), self.noise.bit_generator.state)
        place = (*CALLS, list(self.losses), self.data.__length_hint__(), self.schedule.state_dict())
        optimizer = pytree.tree_map(repr, self.optimizer.state_dict())
        return fingerprint([*tensors, *generators, self.seen]), len(tensors), numbers, place, optimizer


@pytest.mark.parametrize("steps_before", [0, 2])
def test_everything_is_as_it_was(steps_before):
    """Model, gradients, optimizer, schedule, generators, data and variables are put back, also where none was yet."""
    training = Training()
    for _ in range(steps_before):
        training.step()
    modules = [dict(module.__dict__) for module in training.model.modules()]
    before = training.state()
    fit = memwatch.fit(training.step, training.model, "200 KiB", ways=("checkpoint",), quiet=True)
    assert training.state() == before
    assert fit.code
    assert "training.model.get_submodule" in fit.code
    fit.undo()
    assert [dict(module.__dict__) for module in training.model.modules()] == modules
    with pytest.raises(memwatch.BudgetError):
        memwatch.fit(training.step, training.model, "1 KiB", ways=("foreach",))
    assert training.state() == before
    assert [dict(module.__dict__) for module in training.model.modules()] == modules


def wide(optimizer, batch=4, **options):
    """Return a model with more parameters than activations, and its step."""
    model = nn.Linear(256, 256)
    made = optimizer(model.parameters(), **options)
    x = torch.ones(batch, 256)

    def step():
        made.zero_grad()
        model(x).sum().backward()
        made.step()

    return model, step


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("100 KiB", "518.00 KiB are alive before the step begins (gradient 257.00 KiB, parameter 257.00 KiB"),
        ("700 KiB", "the optimizer's step"),
    ],
)
@pytest.mark.words
def test_an_unreachable_limit_says_what_stands_in_the_way(limit, words):
    """The message names memory from before the step, or the optimizer's step, and the lowest measurement."""
    model, step = wide(torch.optim.SGD, lr=0.1, foreach=True, weight_decay=0.1)
    with pytest.raises(memwatch.BudgetError) as raised:
        memwatch.fit(step, model, limit, ways=("checkpoint",))
    lowest, *_, obstacle = raised.value.reasons
    assert lowest.startswith(f"fit found no way to keep a limit of {limit.replace(' KiB', '.00 KiB')} on cpu")
    assert words in obstacle
    assert str(raised.value) == "; ".join(raised.value.reasons)
    assert raised.value.best.peak_bytes > raised.value.best.baseline_bytes


@pytest.fixture
def only_sleep_takes_time(monkeypatch):
    """Let steps take as long as they sleep. Other programs on the machine then have no part in the result."""
    now_ns = [0]

    def sleep(seconds):
        now_ns[0] += round(seconds * 1e9)

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(trial, "time", SimpleNamespace(perf_counter_ns=lambda: now_ns[0]))


class Slow(nn.Linear):
    """A layer that takes some milliseconds, so that a recompute is longer than the noise."""

    def forward(self, x):
        time.sleep(0.005)
        return super().forward(x)


@pytest.mark.usefixtures("only_sleep_takes_time")
def test_a_foreach_optimizer_is_made_plain():
    """Where lists of temporaries are the peak, one parameter at a time is enough, and nothing is computed again."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Slow(64, 64) for _ in range(6)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    x = torch.ones(2, 64)

    def step():
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    plain = fit_programs.peak_of(step)
    fit = memwatch.fit(step, model, plain - 1, ways=FAST, quiet=True)
    assert fit.code.startswith("def without_foreach(optimizer):\n")
    assert fit.code.endswith("\nwithout_foreach(optimizer)\n")
    assert optimizer.param_groups[0]["foreach"] is False
    fit.undo()
    assert optimizer.param_groups[0]["foreach"] is True


def adamw_on_an_embedding():
    """Return a model with a different gradient in each row, so that a fused step rounds some rows differently.

    The processor decides which rows these are. With 16 rows, one processor rounded all of them alike.
    """
    torch.manual_seed(0)
    model = nn.Embedding(4_000, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    words = torch.arange(4_000)

    def step():
        # in parts, so that the step has the peak, and not the loss
        for some in words.split(400):
            model(some).sin().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


def test_a_fused_step_is_tried_where_no_other_way_fits():
    """It makes no temporaries, and rounds differently: the note says so."""
    model, optimizer, step = adamw_on_an_embedding()
    step()
    optimizer.param_groups[0]["fused"] = True
    fused = fit_programs.peak_of(step)
    optimizer.param_groups[0]["fused"] = None
    limit = (fit_programs.peak_of(step) + fused) // 2
    fit = memwatch.fit(step, model, limit, ways=(*FAST, "fused"), quiet=True)
    assert optimizer.param_groups[0]["fused"] is True
    assert fit.peak_bytes <= limit
    assert fit_words.NOT_BITWISE in fit.notes
    fit.undo()
    assert optimizer.param_groups[0]["fused"] is None


def test_a_fused_step_in_the_backward_is_tried_where_neither_alone_fits():
    """Without temporaries the gradients make the peak, and without gradients the temporaries do."""
    torch.manual_seed(0)
    model = nn.ModuleList(nn.Embedding(4_000, 64) for _ in range(4))
    optimizer = torch.optim.AdamW(model.parameters())
    words = torch.arange(64)

    def step():
        sum(table(words).sin().sum() for table in model).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    table_bytes = 4_000 * 64 * 4
    limit = fit_programs.peak_of(step) - 4 * table_bytes
    fit = memwatch.fit(step, model, limit, ways=("step_in_backward", "fused"), quiet=True)
    assert fit.peak_bytes <= limit
    assert {"step_in_backward", "fused"} <= set(
        fit.ways["way"][fit.ways["peak_bytes"] <= limit].iloc[0].split(" + ")
    )
    fit.undo()


def test_a_fused_step_is_not_tried_where_a_way_with_equal_results_fits():
    model, _, step = adamw_on_an_embedding()
    fit = memwatch.fit(step, model, fit_programs.peak_of(step), ways=(*FAST, "fused"), quiet=True)
    assert not fit.ways["way"].str.contains("fused").any()


@pytest.mark.parametrize("clips", [False, True])
def test_a_step_in_the_backward_is_tried_where_nothing_else_reads_the_gradients(clips):
    """It computes the same, and `undo` removes its hooks; a program that clips gradients keeps its own step."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.ones(2, 64)

    def step():
        optimizer.zero_grad()
        model(x).sum().backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    limit = fit_programs.peak_of(step) - 64 * 64 * 4
    if clips:
        with pytest.raises(memwatch.BudgetError) as refused:
            memwatch.fit(step, model, limit, ways=("step_in_backward",), quiet=True)
        assert refused.value.best.way == Way()
        why = fit_words.UNTRIED.format(kinds="step_in_backward", why=ways_words.STEP_OBSTACLES["read"])
        assert why in refused.value.reasons
        return
    fit = memwatch.fit(step, model, limit, ways=("step_in_backward",), quiet=True)
    assert fit.ways["bitwise"].to_list() == ["yes", "yes"]
    step()
    assert all(parameter.grad is None for parameter in model.parameters())
    fit.undo()
    step()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("reads", [False, True])
def test_a_loss_in_parts_is_tried_where_no_other_way_fits(reads):
    """`undo` gives the head its own forward back; a program that reads the logits itself keeps them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 2_000))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, target = torch.randn(256, 16), torch.randint(0, 2_000, (256,))
    attributes = set(vars(model[1]))

    def step():
        optimizer.zero_grad()
        logits = model(x)
        functional.cross_entropy(logits, target).backward()
        if reads:
            logits.argmax(-1)
        optimizer.step()

    limit, ways = fit_programs.peak_of(step) // 2, ("foreach", "loss_in_parts")
    if reads:
        with pytest.raises(memwatch.BudgetError, match="of 1 way is"):
            memwatch.fit(step, model, limit, ways=ways, quiet=True)
        return
    fit = memwatch.fit(step, model, limit, ways=ways, quiet=True)
    assert fit.peak_bytes <= limit
    assert fit_words.NOT_BITWISE in fit.notes
    assert "forward" in vars(model[1])
    assert fit_programs.peak_of(step) <= limit
    fit.undo()
    assert set(vars(model[1])) == attributes
    assert model(x).shape == (256, 2_000)


def test_half_precision_is_tried_where_no_other_way_fits():
    """It changes the results most. `undo` gives the model its own forward back."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)) for _ in range(4))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(512, 64)
    attributes = set(vars(model))

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    plain_bytes = fit_programs.peak_of(step)
    fit = memwatch.fit(step, model, int(plain_bytes * 0.8), ways=("checkpoint", "autocast"), quiet=True)
    assert not fit.ways["way"].str.contains("autocast").any()
    fit.undo()
    with pytest.raises(memwatch.BudgetError) as raised:
        memwatch.fit(step, model, plain_bytes // 4, ways=("checkpoint",), quiet=True)
    # The autocast way takes about 0.73 of the lowest checkpoint way.
    limit = int(raised.value.best.peak_bytes * 0.85)
    fit = memwatch.fit(step, model, limit, ways=("checkpoint", "autocast"), quiet=True)
    assert "autocast(" in fit.code
    assert fit.peak_bytes <= limit
    assert fit_words.NOT_BITWISE in fit.notes
    fit.undo()
    assert set(vars(model)) == attributes
    assert model(x).dtype is torch.float32


def test_of_ways_that_take_as_long_one_without_memwatch_is_kept():
    """A planned way must be faster by more than the noise."""
    plain = Measurement(Way(), 20, step_time_ns=100)
    checkpoint = Measurement(Way((Change(Kind.CHECKPOINT, ("0",)),)), 10, step_time_ns=208)

    def kept_beside(planned_ns):
        policy = Measurement(Way((Change(Kind.POLICY),)), 10, step_time_ns=planned_ns)
        search = Search(None, 10, (), print, print)
        search.tried = [plain, checkpoint, policy]
        return search._best()

    assert kept_beside(200) is checkpoint
    assert kept_beside(150).way.is_planned


def gradients_that_wait(batch):
    """A step whose peak is in the forward, with the gradients of the step before: a thousandth of it, or a tenth."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Tanh()) for _ in range(4)))
    kept = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    x = torch.ones(batch, 64)

    def step():
        loss = torch.cat([model(x)] * 4).sum()
        kept["optimizer"].zero_grad()
        loss.backward()
        kept["optimizer"].step()

    return model, step


@pytest.mark.parametrize(("batch", "is_of_use"), [(8192, False), (256, True)])
def test_a_setting_without_use_is_left_out_of_the_way(batch, is_of_use):
    model, step = gradients_that_wait(batch)
    step()
    limit = int(0.8 * fit_programs.peak_of(step))
    model.zero_grad()
    fit = memwatch.fit(step, model, limit, ways=("gradients", "checkpoint"), quiet=True)
    kept = fit.ways["way"][fit.ways["kept"]].iloc[0]
    assert fit.ways["way"].str.startswith("gradients + checkpoint").any()
    assert kept.startswith("gradients + checkpoint") == is_of_use
    assert kept.startswith("checkpoint") != is_of_use
    # no variable has the optimizer: the lines cannot work as they are
    assert ("# optimizer stands for your optimizer" in fit.code) == is_of_use
    assert "stands for your model" not in fit.code
    fit.undo()


def _checkpoint(*names):
    return Change(Kind.CHECKPOINT, names)


STEPS = Change(Kind.STEP_IN_BACKWARD)


@pytest.mark.parametrize(
    ("times_ns", "kept"),
    [
        # more modules, or hooks beside the same modules, cannot be faster: the times are noise
        ({(_checkpoint("0", "1"),): 110, (_checkpoint("0"),): 190, (STEPS, _checkpoint("0")): 120}, 1),
        ({(_checkpoint("0"),): 110, (_checkpoint("0.mlp"),): 190}, 1),
        # hooks may spare a checkpoint, and other changes are not compared: the times decide
        ({(_checkpoint("0", "1"),): 190, (STEPS, _checkpoint("0")): 150}, 1),
        ({(_checkpoint("0"),): 150, (_checkpoint("1"),): 120}, 1),
    ],
)
def test_a_way_that_computes_a_part_of_what_another_does_is_kept_whatever_the_times(times_ns, kept):
    search = Search(None, 10, (), print, print)
    ways = [Measurement(Way(changes), 10, step_time_ns=ns) for changes, ns in times_ns.items()]
    search.tried = [Measurement(Way(), 20, step_time_ns=100), *ways]
    assert search._best() is ways[kept]


@pytest.mark.parametrize(
    ("peak_bytes", "sets"),
    [
        (10, [("0", "1"), ("0.mlp", "1.mlp")]),  # fits: it comes first
        (11, [("0.mlp", "1.mlp"), ("0", "1")]),  # does not fit: still the lowest peak
    ],
)
def test_checkpoints_that_are_simulated_to_fit_are_tried_first(peak_bytes, sets):
    """The bytes that modules save do not show the peak with checkpoints, and a recording does."""
    search = Search(None, 10, (), print, print)
    search._divided = [("0.mlp", "1.mlp")]
    search._simulated = [
        SimulatedCheckpoint(("0", "1"), frozenset(), peak_bytes),
        SimulatedCheckpoint(("2",), frozenset({"step_in_backward"}), 1),
    ]
    assert search._sets_for(Way()) == sets
    assert search._sets_for(Way((STEPS,)))[0] == ("2",)


@pytest.mark.words
def test_modules_of_a_set_that_are_not_checkpointed_are_named():
    search = Search(None, 10, (), print, print)
    search._divided = [("0", "1", "2")]
    some, all_of_it = (Measurement(Way((_checkpoint(*names),)), 10) for names in (("0",), ("0", "1", "2")))
    assert search.not_needed(some).startswith("no checkpoint for `1`, `2`: ")
    assert search.not_needed(all_of_it) == ""


@pytest.mark.usefixtures("only_sleep_takes_time")
def test_a_disturbed_first_trial_does_not_end_the_search():
    """A way that computes more and seems as fast shows that the program's own time was disturbed: it is timed again."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(Slow(64, 64), nn.GELU(), Slow(64, 64)) for _ in range(4)))
    x = torch.ones(256, 64)
    other_programs = (0.2 if step < 2 else 0.0 for step in itertools.count())

    def step():
        model.zero_grad()
        model(x).sum().backward()
        time.sleep(next(other_programs))

    fit = memwatch.fit(step, model, fit_programs.peak_of(step) * 3 // 4, ways=("checkpoint",), quiet=True)
    of_program, *of_others = fit.ways["step_time_ns"]
    assert of_program < min(of_others)
    assert list(fit.ways["way"][1:]) == [
        "checkpoint `0` ... `2` (3 modules)",
        "checkpoint `0`",
        "checkpoint `0`, `1`",
    ]
    assert fit.ways["kept"].to_list() == [False, True, False, False]


def test_times_that_cannot_be_right_are_said_to_be_unsure():
    """Where steps that compute more take less time, other programs had the processor, and a note says so."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)) for _ in range(4)))
    x, calls = torch.ones(256, 64), []
    for block in model:
        block[0].register_forward_pre_hook(lambda *_: calls.append(1))

    def step():
        calls.clear()
        model.zero_grad()
        model(x).sum().backward()
        time.sleep(0.1 if len(calls) == len(model) else 0.0)  # other programs run only beside the plain step

    limit = fit_programs.peak_of(step) * 3 // 4
    assert fit_words.DISTURBED in memwatch.fit(step, model, limit, ways=("checkpoint",), quiet=True).notes
    assert memwatch.fit(step, model, "1 GiB", quiet=True).notes == []


@pytest.mark.words
def test_a_plan_that_cannot_be_applied_is_a_way_that_failed():
    """A model without repeated blocks: the limit is refused, and the other ways are in the table."""
    model, _, step = fit_programs.made("mlp")
    with pytest.raises(memwatch.BudgetError, match="lowest peak of"):
        memwatch.fit(step, model, limit_of("mlp", 0.8), ways=("policy",), quiet=True)


def test_what_is_not_known_is_said():
    """An iterator that cannot be set back, a way and a limit that do not exist."""
    model, step = wide(torch.optim.SGD, lr=0.1)
    batches = (torch.ones(2) for _ in range(100))

    def with_data():
        next(batches)
        step()

    fit = memwatch.fit(with_data, model, "1 GiB", quiet=True)
    assert "generator" in fit.notes[0]
    assert (fit.code, list(fit.ways["way"])) == ("", ["the program itself"])
    with pytest.raises(OptionError, match="checkpoint"):
        memwatch.fit(step, model, "1 GiB", ways=("chekpoint",))
    with pytest.raises(SizeError):
        memwatch.fit(step, model, "much")


@pytest.mark.words
def test_the_table_names_the_way_and_its_lines(capsys):
    model, step = wide(torch.optim.SGD, lr=0.1)
    fit = memwatch.fit(step, model, "1 GiB")
    assert capsys.readouterr().out == fit.summary()
    assert "the program itself" in str(fit)


def test_what_cannot_be_run_is_estimated():
    """Where each real step runs out of memory, fake tensors tell the peaks; a note says so, and the model is real."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    model = nn.Sequential(*(copy.deepcopy(block) for _ in range(3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(512, 16)
    runs_out = False

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if runs_out and type(loss) is torch.Tensor:
            raise MemoryError
        loss.backward()
        optimizer.step()

    gc.collect()  # an estimate counts all living tensors, also the tensors of earlier tests
    before = fingerprint(model.state_dict().values())
    plain = memwatch.fit(step, model, "1 GiB", quiet=True).peak_bytes
    runs_out = True
    fit = memwatch.fit(step, model, plain * 6 // 10, ways=("checkpoint", "policy"), quiet=True)
    assert fit.notes[0] == fit_words.ESTIMATED
    assert fit.notes[1].startswith("policy not tried: ")
    assert abs(fit.ways["peak_bytes"][0] - plain) < plain / 20
    assert (fit.ways["step_time_ns"] == -1).all()
    assert fit.ways["extra_ratio"].max() > 0.1
    fit.undo()
    assert fingerprint(model.state_dict().values()) == before
    assert all(type(each.data) is torch.Tensor and each.grad is None for each in model.parameters())


@pytest.mark.parametrize(("reads", "error"), [(True, memwatch.BudgetError), (False, KeyError)])
def test_only_a_step_that_reads_values_has_no_estimate(reads, error):
    """Any other error of a step with fake tensors is reported as it is."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        loss = model(torch.ones(8, 4)).sum()
        if type(loss) is torch.Tensor:
            raise MemoryError
        if not reads:
            raise KeyError
        loss.item()
        optimizer.step()

    with pytest.raises(error):
        memwatch.fit(step, model, "1 GiB", ways=("checkpoint",), quiet=True)


def small_blocks():
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    model = nn.Sequential(*(copy.deepcopy(block) for _ in range(4)))
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(256, 16)

    def step():
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def test_the_compile_backend_is_a_way_for_a_container_of_torchs_own():
    """For an `nn.Sequential`, dynamo compiles the forward and not the call. Its steps stay under the limit."""
    model, step = small_blocks()
    limit = int(fit_programs.peak_of(step) * 0.7)
    fit = memwatch.fit(step, model, limit, ways=("backend",), quiet=True)
    assert fit.ways[fit.ways["kept"]].iloc[0][["bitwise", "under_limit"]].tolist() == ["yes", True]
    assert "backend" in fit.code
    step()  # compiles, because the chosen way is applied again
    step()
    assert fit_programs.peak_of(step) <= limit
    fit.undo()
    assert "forward" not in vars(model)


def test_the_compile_backend_is_a_way_for_a_script():
    """The backend measures and plans in the first steps. They are not counted."""
    model, step = small_blocks()
    limit = int(fit_programs.peak_of(step) * 0.7)

    def program():
        _, step = small_blocks()
        while True:
            step()

    del model, step
    fit = fit_program(lambda: program, limit, ways=("backend",))
    assert fit.ways[fit.ways["kept"]].iloc[0][["bitwise", "under_limit"]].tolist() == ["yes", True]


def test_a_script_too_short_for_a_planned_way_keeps_the_others():
    """Such a way says how many steps it needs, and ends nothing."""

    def program():
        _, step = small_blocks()
        for _ in range(4):
            step()

    with pytest.raises(memwatch.BudgetError, match="the lowest peak of 2 ways"):
        fit_program(lambda: program, "500 KiB", ways=("backend",))
    with pytest.raises(MemwatchError, match="the program made 4 steps"):
        fit_program(lambda: program, "500 KiB", ways=("backend",), steps=5)


@pytest.mark.words
def test_why_planned_ways_of_a_short_script_failed_is_said_once_with_the_steps_to_give():
    def program():
        _, step = small_blocks()
        for _ in range(5):
            step()

    model, step = small_blocks()
    limit = int(fit_programs.peak_of(step) * 0.7)
    del model, step
    lines = []
    fit = fit_program(
        lambda: program, limit, ways=("checkpoint", "policy", "backend"), print_line=lines.append
    )
    assert " ".join(str(fit).split()).count("give --steps 2,") == 1
    assert not any("--steps" in line for line in lines)


def test_modules_save_the_same_in_each_of_several_steps():
    """A later step may save a storage at the address of one that has died. It counts as well."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(3)))
    found = []
    for steps in (1, 6):
        scan = SavedScan()
        with scan.watching(model):
            for _ in range(steps):
                model(torch.randn(64, 32)).sum().backward()
        found.append(scan.found.by_module)
    assert found[1] == {name: 6 * nbytes for name, nbytes in found[0].items()}


class WithLoss(nn.Module):
    """A model that computes its loss by a module of its own, whose log-probabilities are most of what is saved."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(2)
        )
        self.head = nn.Linear(32, 512)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x, labels):
        for block in self.blocks:
            x = block(x)
        return self.loss(self.head(x), labels)


def test_a_module_that_returns_a_scalar_is_no_block():
    model, scan = WithLoss(), SavedScan()
    with scan.watching(model):
        model(torch.randn(64, 32), torch.randint(0, 512, (64,))).backward()
    found = {name for blocks in partitions(model, scan.found) for name in blocks}
    assert found
    assert "loss" not in found
