"""What would lower the peak: each way is applied to the program, by its own lines, and the peak is measured again."""

from __future__ import annotations

import gc
import json
import textwrap

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from ways import make_program, profile_two_steps, run_lines

import memwatch

_LARGEST_ERROR_RATIO = {"simulated": 0.02, "estimated": 0.05}


@pytest.fixture(autouse=True)
def _no_garbage_of_other_tests():
    """Free the cycles of earlier tests. If gc freed them between two recordings, the second peak would be lower."""
    gc.collect()


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def gpt():
    """The profile of two steps of a GPT."""
    return profile_two_steps(make_program("gpt"))


def _of_kind(prof, kind):
    return prof.ways[prof.ways["kind"] == kind]


@pytest.mark.parametrize(
    "name", ["gpt", "unet", "convolutions", "gnn", "gan", "accumulation", "lora", "optimizer_bound"]
)
def test_the_lines_of_a_way_give_the_peak_that_it_promises(name):
    """`reports/ways.py` measures all of its thirteen programs like this."""
    prof = profile_two_steps(make_program(name))
    assert len(prof.ways)
    for way in prof.ways.itertuples():
        measured_bytes = profile_two_steps(make_program(name, way.lines)).peak_bytes
        assert way.peak_bytes <= prof.peak_bytes - 0.05 * prof.peak_increase_bytes
        assert abs(way.peak_bytes / measured_bytes - 1) <= _LARGEST_ERROR_RATIO[way.basis], way.way


def test_the_lowest_peak_comes_first_and_fewer_blocks_take_less_time(gpt):
    """A GPT of six blocks has two ways: a checkpoint around each block but the last, or around every second block.

    The last block is computed again right after its forward, so a checkpoint around it saves nothing.
    """
    found = _of_kind(gpt, "checkpoint")
    assert list(found["way"]) == [
        "checkpoint 5 modules: `blocks.0`, `blocks.1` ... `blocks.4`",
        "checkpoint 3 modules: `blocks.0`, `blocks.2`, `blocks.4`",
    ]
    assert gpt.ways["peak_bytes"].is_monotonic_increasing
    assert 1.5 > found["time_ratio"].iloc[0] > found["time_ratio"].iloc[1] > 1


def test_checkpoints_leave_the_results_as_they_are(gpt):
    """A way without a decision changes no bit, dropout included."""
    found = _of_kind(gpt, "checkpoint")
    assert not found["decision"].any()
    plain, changed = make_program("gpt"), make_program("gpt", found["lines"].iloc[0])
    for program in (plain, changed):
        torch.manual_seed(1)
        program.step()
    for one, other in zip(plain.model.parameters(), changed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_batch_statistics_are_updated_once():
    """The lines keep the buffers of a module that runs twice in a step, so the way needs no decision."""
    found = _of_kind(profile_two_steps(make_program("convolutions")), "checkpoint")
    assert len(found)
    assert not found["decision"].any()
    plain, changed = make_program("convolutions"), make_program("convolutions", found["lines"].iloc[0])
    for one, other in zip(plain.model.buffers(), changed.model.buffers(), strict=True):
        assert torch.equal(one, other)


def test_a_setting_of_the_optimizer_has_no_known_duration():
    """The recording has only the ops of the present setting, so the time of the changed step is unknown."""
    ways = profile_two_steps(make_program("optimizer_bound")).ways
    assert list(ways["kind"]) == ["adafactor", "sgd", "step_in_backward", "foreach"]
    assert ways["time_ratio"].isna().all()


def test_the_summary_and_its_record_show_the_ways(gpt, tmp_path):
    """The summary has the lines of the first way. The record has all ways."""
    text = gpt.summary(width=120)
    assert "What would lower the peak" in text
    assert "checkpoint 5 modules: `blocks.0`, `blocks.1` ... `blocks.4`" in text
    assert "block.forward = partial(checkpoint, block.forward, use_reentrant=False)" in text
    gpt.save(tmp_path / "gpt.memwatch")
    from memwatch.report.records import summary_record

    record = json.loads(json.dumps(summary_record(memwatch.load(tmp_path / "gpt.memwatch"))))
    assert [way["peak_bytes"] for way in record["ways"]] == list(gpt.ways["peak_bytes"])


class _Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)
        )

    def forward(self, x, *, again=False):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if again else layer(x)
        return x


def _checkpoints_of(prof):
    ways = prof.ways
    return ways["peak_bytes"][ways["kind"] == "checkpoint"].to_list()


def _ways_of(step):
    step()
    with memwatch.profile(holders=False) as prof:
        step()
    return prof.ways


def test_a_program_that_checkpoints_already_gets_no_such_advice():
    """The same program without checkpoints gets the advice."""
    net, x = _Net(), torch.randn(512, 64)

    def step(*, again):
        net.zero_grad()
        net(x, again=again).square().mean().backward()

    assert "checkpoint" in set(_ways_of(lambda: step(again=False))["kind"])
    assert "checkpoint" not in set(_ways_of(lambda: step(again=True))["kind"])


class _Reversed(nn.Module):
    """Calls its blocks from the last to the first."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(_ManyOps() for _ in range(4))

    def forward(self, x):
        for block in reversed(self.blocks):
            x = block(x)
        return x


class _ManyOps(nn.Module):
    """Runs many ops in one call of a module."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64) / 8)

    def forward(self, x):
        for _ in range(6):
            x = (x @ self.weight).tanh()
        return x


def test_modules_are_named_in_the_order_of_their_calls():
    """The program calls them in another order than the model lists them, and has many more ops than calls."""
    model, x = _Reversed(), torch.randn(512, 64)

    def step():
        model.zero_grad()
        model(x).square().mean().backward()

    ways = _ways_of(step)
    modules = ways["modules"][ways["kind"] == "checkpoint"]
    assert list(modules) == ["blocks.3, blocks.2, blocks.1, blocks.0", "blocks.3, blocks.1"]


def test_a_program_without_backward_gets_no_such_advice():
    """Nothing is saved for a backward. The same program with a backward gets the advice."""
    net, x = _Net(), torch.randn(512, 64)

    def evaluate():
        with torch.no_grad():
            net(x)

    def train():
        net.zero_grad()
        net(x).square().mean().backward()

    assert not len(_ways_of(evaluate))
    assert "checkpoint" in set(_ways_of(train)["kind"])


def test_a_way_that_saves_less_than_a_twentieth_is_not_offered():
    """With one row of input, parameters and gradients are nearly all of the peak. With many rows, a way is offered."""
    net = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024))

    def step(rows):
        x = torch.randn(rows, 1024)
        net.zero_grad()
        functional.mse_loss(net(x), x).backward()

    assert not len(_ways_of(lambda: step(1)))
    assert len(_ways_of(lambda: step(4096)))


def test_a_model_of_another_name_and_a_second_model_are_called_by_their_names():
    """The lines use the program's variable for each model, and not the word `model`."""
    student, teacher, x = _Net(), _Net(), torch.randn(512, 64)

    def step():
        for net in (student, teacher):
            net.zero_grad()
        (student(x) - teacher(x)).square().mean().backward()

    gc.collect()  # tensors of earlier tests would count for the first peak alone
    step()
    with memwatch.profile() as prof:
        step()
    before_bytes, lines = prof.peak_bytes, prof.ways["lines"][0]
    exec(lines, {"student": student, "teacher": teacher, "model": None})
    with memwatch.profile(holders=False) as prof_after:
        step()
    assert prof_after.peak_bytes == pytest.approx(prof.ways["peak_bytes"][0], rel=0.02)
    assert prof_after.peak_bytes < before_bytes


def test_of_a_long_recording_the_iterations_around_the_peak_are_simulated(monkeypatch, tmp_path):
    """A validation without gradients has a peak of its own, which checkpoints do not lower."""
    from memwatch.analysis.ways import checkpointing

    net, x, many = _Net(), torch.randn(512, 64), torch.randn(2_200, 64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    def validate():
        with torch.no_grad():
            net.layers[0](many)

    step()
    gc.collect()  # the programs of other tests
    with memwatch.profile(holders=False) as prof:
        for _ in range(6):
            step()
        validate()
    path = tmp_path / "run.memwatch"
    prof.save(path)
    windows, make = [], checkpointing.Checkpointing.__init__

    def make_and_note(self, *args):
        make(self, *args)
        windows.append(len(self.window))

    monkeypatch.setattr(checkpointing.Checkpointing, "__init__", make_and_note)
    whole = _checkpoints_of(memwatch.load(path))
    monkeypatch.setattr(checkpointing, "_MOST_OPS", 60)
    part = _checkpoints_of(memwatch.load(path))
    assert 2 * windows[1] < windows[0] == len(prof.ops)
    with memwatch.profile(holders=False) as alone:
        validate()
    assert whole[0] == alone.peak_bytes
    assert part == whole


def test_a_module_that_was_replaced_is_not_named():
    """`get_submodule` would find the new module. So the lines name modules that are still in the model."""
    net, x = _Net(), torch.randn(512, 64)

    def step():
        net.zero_grad()
        net(x).square().mean().backward()

    step()
    with memwatch.profile(holders=False) as prof:
        step()
        net.layers[1] = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64))
        step()
    assert len(prof.ways)
    for lines in prof.ways["lines"]:
        exec(lines, {"net": net, "model": net})


def five_blocks_that_train():
    net = nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(5)))
    optimizer, x = torch.optim.SGD(net.parameters(), lr=0.1), torch.randn(256, 64)

    def step():
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    step()
    with memwatch.profile(holders=False) as prof:
        step()
    return prof


def test_the_summary_has_the_lines_of_the_first_way_that_needs_no_decision():
    """The way with the lowest peak needs one: it also updates each parameter in the backward."""
    prof = five_blocks_that_train()
    assert prof.ways["kind"][0] == "checkpoint + step_in_backward"
    text = prof.summary(width=120)
    assert ", the first that asks for no decision from you:" in text
    assert "partial(checkpoint, block.forward" in text
    assert "register_post_accumulate_grad_hook" not in text


def test_the_lines_reach_into_a_wrapper_for_several_devices():
    """The way names a module as the wrapped model does. The lines get it from `model.module`."""
    model, x = nn.DataParallel(_Net()), torch.randn(512, 64)

    def step():
        model.zero_grad()
        model(x).square().mean().backward()

    step()
    with memwatch.profile() as prof:
        step()
    way = _of_kind(prof, "checkpoint").iloc[0]
    assert "model.module.get_submodule" in way["lines"]
    exec(way["lines"], {"model": model})
    with memwatch.profile(holders=False) as after:
        step()
    assert after.peak_bytes == pytest.approx(way["peak_bytes"], rel=0.02)


class _Learner:
    def __init__(self):
        self.net = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)))
        self.opt = torch.optim.AdamW(self.net.parameters())

    def learn(self):
        for _ in range(2):
            self.opt.zero_grad()
            self.net(torch.randn(512, 64)).square().mean().backward()
            self.opt.step()


def test_the_lines_use_the_expressions_of_the_program_and_name_their_place():
    """The outermost call that can name the model and its optimizer is the place."""

    def main():
        learner = _Learner()
        with memwatch.profile(holders=False) as prof:
            learner.learn()
        return prof, learner

    prof, learner = main()
    for way in prof.ways[~prof.ways["kind"].str.contains("micro")].itertuples():
        assert "main, before the training loop" in way.lines.splitlines()[0]
        assert "learner.net" in way.lines or "learner.opt" in way.lines
        run_lines(way.lines, learner=learner)
        learner.learn()


class _Fitter:
    """The model and the loss are in another object and another method than the loop."""

    def __init__(self):
        self.criterion = nn.MSELoss()
        self.model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)))
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def loss(self, x):
        return self.criterion(self.model(x), x)

    def fit(self):
        for _ in range(2):
            self.optimizer.zero_grad()
            self.loss(torch.randn(512, 64)).backward()
            self.optimizer.step()


def test_the_comment_names_a_place_that_the_program_reaches():
    """The function for micro-batches stands where every method finds it. A word after a dot stands for nothing."""
    fitter = _Fitter()
    with memwatch.profile(holders=False) as prof:
        fitter.fit()
    lines = dict(zip(prof.ways["kind"], prof.ways["lines"], strict=True))
    assert lines["micro_batches"].startswith("# at the top of the file that computes the loss\n")
    assert "fitter.model." in lines["checkpoint"]
    assert "stands for" not in lines["checkpoint"]


def test_words_stand_for_a_model_that_no_variable_leads_to():
    """The comment says so."""
    learners = {_Learner()}
    with memwatch.profile(holders=False) as prof:
        for nothing in map(_Learner.learn, learners):  # no variable of this function refers to the learner
            assert nothing is None
    prof.capture.meta.pop("expressions")  # they are `self.net` and `self.opt` of `learn`
    found = "".join(prof.ways["lines"])
    assert "# model stands for your model" in found
    assert "# optimizer stands for your optimizer" in found


def test_a_checkpointed_evaluation_that_builds_a_graph_saves_less_too():
    """A module that is checkpointed for the training is called in the evaluation as well."""

    def run(lines=""):
        learner = _Learner()
        run_lines(lines, learner=learner)
        learner.learn()
        gc.collect()
        with memwatch.profile(holders=False) as prof:
            for _ in range(2):
                learner.learn()
                assert len(learner.net(torch.randn(1024, 64)).argmax(-1)) == 1024
        return prof

    found = _of_kind(run(), "checkpoint")
    assert len(found)
    for way in found.itertuples():
        assert run(way.lines).peak_bytes == pytest.approx(way.peak_bytes, rel=0.02)


class _Store:
    def __init__(self):
        self.kept = []


class _Storing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x, store):
        x = self.inner(x).tanh()
        store.append(x.square().mean()) if type(store) is list else store.kept.append(x)
        return x


@pytest.mark.parametrize("kind", ["object", "list"])
def test_a_module_that_puts_tensors_into_an_object_is_not_checkpointed(kind):
    """A note names the classes. A list may get tensors again: programs read losses from it before the backward."""
    model, x = nn.ModuleList(_Storing() for _ in range(4)), torch.randn(512, 64)
    losses = []

    def step():
        store, y = _Store() if kind == "object" else [], x
        model.zero_grad()
        for each in model:
            y = each(y, store)
        loss = y.square().mean() + sum(store if kind == "list" else ())
        losses.append(loss.item())
        loss.backward()

    gc.collect()  # a checkpointed model of another case is a cycle
    step()
    with memwatch.profile(holders=False) as prof:
        step()
    way = _of_kind(prof, "checkpoint").iloc[0]
    assert way["modules"].split(", ")[0] == ("0.inner" if kind == "object" else "0")
    told = [text for of, text in prof.notes if of == "ways"]
    assert [text.startswith("no checkpoint is offered for 4 modules (_Storing)") for text in told] == (
        [True] if kind == "object" else []
    )
    exec(way["lines"], {"model": model})
    with memwatch.profile(holders=False) as after:
        step()
    assert after.peak_bytes == pytest.approx(way["peak_bytes"], rel=0.02)
    assert len(set(losses)) == 1


def test_lines_of_two_changes_import_each_name_once():
    """Both changes need `partial`."""
    prof = five_blocks_that_train()
    lines = _of_kind(prof, "checkpoint + step_in_backward")["lines"].iloc[0].splitlines()
    assert "from functools import partial" in lines
    imports = [line for line in lines if line.startswith(("from ", "import "))]
    assert sorted(imports) == sorted(set(imports))


_OF_MICRO_BATCHES = """
def main():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(3)))
    adam = torch.optim.AdamW(model.parameters())
    # here

    def loss_of(inputs, targets):
        return functional.mse_loss(model(inputs), targets)

    def train():
        for _ in range(2):
            inputs, targets = torch.ones(512, 64), torch.zeros(512, 64)
            adam.zero_grad()
            loss_of(inputs, targets).backward()
            adam.step()

    train()
    with memwatch.profile(holders=False) as prof:
        train()
    return prof, [parameter.detach().numpy().copy() for parameter in model.parameters()]
"""


def _main_of(text):
    space = {"torch": torch, "nn": nn, "functional": functional, "memwatch": memwatch}
    exec(text, space)
    gc.collect()
    return space["main"]()


_TYPES = ["float32", "float64", "bfloat16"]


@pytest.mark.parametrize("dtype", _TYPES)
def test_the_memory_of_a_loss_with_an_odd_number_of_values_per_sample_scales_with_the_batch(dtype):
    """`mse_loss` allocates memory for each value of its input, and leaves one number in it."""
    text = _OF_MICRO_BATCHES.replace(
        "nn.Linear(256, 64)) for _ in range(3)", "nn.Linear(256, 2047)) for _ in range(1)"
    )
    text = text.replace("torch.zeros(512, 64)", "torch.zeros(512, 2047)")
    text = text.replace("model = ", f"torch.set_default_dtype(torch.{dtype}); model = ")
    text = text.replace(".detach().numpy()", ".detach().float().numpy()")
    before = torch.get_default_dtype()
    try:
        way = next(_of_kind(_main_of(text)[0], "micro_batches").itertuples())
        text = text.replace("    # here\n", textwrap.indent(way.lines, "    "))
        whole, parts = "loss_of(inputs, targets).backward()", "backward_in_parts(loss_of, inputs, targets)"
        changed, _ = _main_of(text.replace(f"            {whole}\n", f"            {parts}\n"))
    finally:
        torch.set_default_dtype(before)
    assert changed.peak_bytes == pytest.approx(way.peak_bytes, rel=0.02)


def test_pasted_lines_of_micro_batches_give_the_promised_peak_and_the_same_training():
    """You paste them as they are, and change the one line that their comment names."""
    run = _main_of
    prof, plain = run(_OF_MICRO_BATCHES)
    found = _of_kind(prof, "micro_batches")
    assert len(found)
    for way in found.itertuples():
        assert "write backward_in_parts(loss_of, inputs, targets)" in way.lines
        text = _OF_MICRO_BATCHES.replace("    # here\n", textwrap.indent(way.lines, "    "))
        before, after = "loss_of(inputs, targets).backward()", "backward_in_parts(loss_of, inputs, targets)"
        text = text.replace(f"            {before}\n", f"            {after}\n")
        prof, changed = run(text)
        assert prof.peak_bytes == pytest.approx(way.peak_bytes, rel=0.02)
        for one, other in zip(plain, changed, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


class _Collecting(nn.Module):
    """Gives its result together with a penalty, which `put` puts somewhere."""

    def __init__(self, put):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
        self.losses, self.tables, self.last = [], [], None
        self._put = put

    def forward(self, x):
        if not self.tables:
            self.tables.append(torch.ones(64))  # a list that grows in the first call alone is no obstacle
        hidden = self.mlp(x)
        self._put(self, hidden.square().mean())
        return x + hidden * self.tables[0]


def _to_list(block, penalty):
    block.losses.append(penalty)


def _to_new_list(block, penalty):
    block.losses = [penalty]


@pytest.mark.parametrize("put", [_to_list, _to_new_list], ids=["append", "replace"])
def test_a_block_that_adds_to_its_own_list_is_not_checkpointed_and_its_twin_is(put):
    """A loss that cleared the list before the backward would find the second forward's penalties in the next step."""
    model = nn.Sequential(*(_Collecting(put) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(512, 64)
    with memwatch.profile() as prof:
        for _ in range(3):
            out = model(x).square().mean()
            for block in model:
                out = out + sum(block.losses)
                block.losses.clear()
            out.backward()
            optimizer.step()
            optimizer.zero_grad()
    grows = put is _to_list
    texts = " ".join(_of_kind(prof, "checkpoint")["way"])
    blocks = [name for name, each in model.named_modules() if type(each) is _Collecting]
    assert prof.ways.attrs["grown_lists"] == (dict.fromkeys(blocks, "losses") if grows else {})
    assert ("mlp" in texts) == grows  # the part of the block that adds to no list is checkpointed instead
    told = [
        text
        for _, text in prof.notes
        if text.startswith("no checkpoint is offered for 4 modules (_Collecting)")
    ]
    assert len(told) == grows
    assert all("its own list (`losses`)" in text for text in told)


class _Stages(nn.Module):
    """Two stages of blocks. Both stages and all blocks are an `nn.Sequential`."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(self._stage(64, 256), nn.Linear(64, 128), self._stage(128, 512))

    @staticmethod
    def _stage(width, hidden):
        return nn.Sequential(
            *(nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)) for _ in range(4))
        )

    def forward(self, x):
        return self.body(x)


def test_the_blocks_of_several_stages_are_checkpointed_and_not_the_stages():
    def recorded(lines):
        model, x = _Stages(), torch.randn(3_000, 64)
        run_lines(lines, model=model)
        gc.collect()
        with memwatch.profile(holders=False) as prof:
            for _ in range(2):
                model.zero_grad()
                model(x).square().mean().backward()
        return prof

    way = _of_kind(recorded(""), "checkpoint").iloc[0]
    assert way["modules"].startswith("body.0.0, body.0.1, body.0.2")
    assert recorded(way["lines"]).peak_bytes == pytest.approx(way["peak_bytes"], rel=0.0004)
