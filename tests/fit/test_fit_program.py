"""`memwatch fit SCRIPT --limit SIZE`: each way is tried on the beginning of a script."""

from __future__ import annotations

import functools
import gc
import re
import textwrap

import pytest
import torch

from memwatch.fit import program_trial
from memwatch.fit.way import Change, Way
from memwatch.kinds.fit import Kind
from memwatch.sizes import parse_bytes

_MEMWATCH = """
import sys
from memwatch.cli import main
sys.exit(main())
"""

SCRIPT = """
import sys
import torch
from torch import nn

def main():
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(3)))
    adam = torch.optim.AdamW(net.parameters())
    for number in range(100_000_000):
        net(torch.randn(256, 16)).square().mean().backward()
        adam.step()
        adam.zero_grad()
        print("step", number)

print("arguments", sys.argv[1:])
if __name__ == "__main__":
    main()
"""


@pytest.fixture
def fit(fresh_python, tmp_path):
    """Run `memwatch fit` beside a script, in a process of its own."""
    (tmp_path / "train.py").write_text(SCRIPT)
    return functools.partial(fresh_python, _MEMWATCH, "fit")


def test_a_script_is_fitted(fit, beside_progress):
    """The limit may follow the script's name.

    The lines name the script's own variables, and the script prints nothing.
    """
    done = fit("--ways", "checkpoint", "train.py", "--limit=550KiB", "--epochs", "1")
    assert (done.returncode, beside_progress(done.stderr)) == (0, "")
    assert re.search(r"block = net\.get_submodule\((name|'\d')\)\n", done.stdout)
    assert "step 0" not in done.stdout
    assert "arguments" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("missing.py",), 1), (("capture.py",), 1), (("--ways", "checkpoint,nope", "train.py"), 2)],
)
def test_wrong_input_is_an_error_before_anything_else_is_said(fit, tmp_path, arguments, code):
    """The name of a script, a file that is no program, and the name of a kind."""
    (tmp_path / "capture.py").write_bytes(b"\0")
    done = fit("--limit", "1KiB", *arguments)
    assert done.returncode == code
    assert "runs the first" not in done.stderr


def test_each_run_has_a_line_on_standard_error_as_soon_as_it_has_ended(fit, tmp_path):
    """Standard output holds the result alone. The first line comes before the first run."""
    (tmp_path / "train.py").write_text("import sys\nsys.stderr.write('begins\\n')\n" + SCRIPT)
    done = fit("--ways", "checkpoint", "train.py", "--limit=550KiB")
    assert done.returncode == 0
    assert "memwatch: " not in done.stdout
    first, *lines = done.stderr.splitlines()
    assert "runs the first 3 optimizer steps of train.py" in first
    assert "--ways" in first
    begins, ends = lines[::2], lines[1::2]
    assert begins == ["begins"] * len(ends)
    assert re.fullmatch(r"memwatch: run 1: the program itself: peak \S+ KiB, \S+ \w+ per step", ends[0])
    assert all(line.startswith(f"memwatch: run {number}: ") for number, line in enumerate(ends, start=1))
    assert any(re.search(r": checkpoint `0`.*: .*, which fits$", line) for line in ends)


@pytest.mark.parametrize(("arguments", "code"), [((), 0), (("--steps", "3"), 1)])
def test_a_script_that_makes_two_steps_is_fitted_with_them(fit, tmp_path, arguments, code):
    """If the user gives the number of steps, a script that makes fewer is an error."""
    (tmp_path / "train.py").write_text(SCRIPT.replace("range(100_000_000)", "range(2)"))
    done = fit("--ways", "checkpoint", "--limit=550KiB", *arguments, "train.py")
    assert done.returncode == code, done.stderr
    is_said = "the program makes 2 optimizer steps, so each run ends after 2" in done.stderr
    assert is_said == (code == 0)
    assert ("give --steps 2" in done.stderr) == (code == 1)


def test_a_script_with_a_single_step_needs_two(fit, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT.replace("range(100_000_000)", "range(1)"))
    done = fit("--ways", "checkpoint", "--limit=550KiB", "train.py")
    assert done.returncode == 1
    assert "made 1 steps of an optimizer of torch, and 2 are needed" in done.stderr


def test_the_peak_of_a_script_does_not_depend_on_where_its_variables_are(fresh_python, tmp_path):
    """The search for names reads the variables of the running calls, and must not prolong their lives.

    Python 3.11 keeps a dictionary that `f_locals` returned, so the batch of the first step lived on.
    """
    body = textwrap.dedent(SCRIPT.partition("def main():")[2].partition('print("arguments"')[0])
    body = body.replace("net(torch.randn(256, 16))", "batch = torch.randn(256, 16)\n    net(batch)")
    (tmp_path / "in_module.py").write_text("import torch\nfrom torch import nn\n" + body)
    in_function = "import torch\nfrom torch import nn\n\ndef main():\n" + textwrap.indent(body, "    ")
    (tmp_path / "in_function.py").write_text(in_function + "\nmain()\n")
    peaks = []
    for name in ("in_module.py", "in_function.py"):
        done = fresh_python(_MEMWATCH, "fit", "--ways", "checkpoint", name, "--limit=550KiB")
        assert done.returncode == 0, done.stdout + done.stderr
        peaks += re.findall(r"([\d.]+ \wiB) .* the program\b", done.stdout)
    assert len(peaks) == 2
    assert peaks[0] == peaks[1]


PASTED = """
import sys
import memwatch
import torch
from torch import nn

def main(width, batch):
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, 64)) for _ in range(4)))
    adam = torch.optim.AdamW(net.parameters())

    def step():
        net(torch.randn(batch, 64)).square().mean().backward()
        adam.step()
        adam.zero_grad()

    # here
    for number in range(12):
        step()
    with memwatch.profile(holders=False) as prof:
        step()
        step()
    print("peak", prof.peak_bytes)

main(*map(int, sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("kind", "limit", "arguments"),
    [
        ("policy", "3.2MiB", "256 256"),
        ("checkpoint", "3.2MiB", "256 256"),
        ("step_in_backward", "4MiB", "512 4"),
        ("checkpoint,step_in_backward", "2.7MiB", "256 256"),
    ],
)
def test_printed_lines_give_the_printed_peak_when_you_paste_them(fit, tmp_path, kind, limit, arguments):
    """A plan that the lines load is in the file that they name."""
    arguments = arguments.split()
    (tmp_path / "train.py").write_text(PASTED)
    done = fit("--ways", kind, "--limit", limit, "train.py", *arguments)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "train.plan").exists() == (kind == "policy")
    head, _, lines = done.stdout.partition("write before the training loop:\n")
    assert {line.split()[7] for line in head.splitlines() if line.startswith(">")} == {"yes"}
    promised_bytes = parse_bytes(re.search(r"with a peak of (\S+ \S+)", " ".join(head.split())).group(1))
    script = PASTED.replace("    # here\n", textwrap.indent(lines, "    "))
    ran = fit.func(script, *arguments)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout.split("peak ")[1]) == pytest.approx(promised_bytes, rel=0.01)


def test_the_shortest_runs_show_whether_a_step_in_the_backward_lowers_the_peak():
    """A recording has a single step then. It must note the end of this step, and with it the optimizer's class."""

    def program():
        torch.manual_seed(0)
        net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
        adam = torch.optim.AdamW(net.parameters())
        for _ in range(4):
            net(torch.ones(2, 256)).sum().backward()
            adam.step()
            adam.zero_grad()

    reading = program_trial.ProgramTrial(lambda: program, steps=2).recorded(Way(), stacks=True)
    assert "step_in_backward" in reading.ways["kind"].to_list()
    assert reading.capture.rows("steps") == 1


def test_a_plan_is_written_where_you_say_and_replaces_nothing(fit, tmp_path):
    """An existing file is an error before anything runs; without the option memwatch takes a free name."""
    (tmp_path / "train.py").write_text(PASTED)
    for name in ("train.plan", "mine.plan"):
        (tmp_path / name).write_text("not a plan")
    of_script = ("--limit", "3.2MiB", "--ways", "policy", "train.py", "256", "256")
    refused = fit("--save-plan", "mine.plan", *of_script)
    assert refused.returncode == 1
    assert "mine.plan exists" in refused.stderr
    done = fit(*of_script)
    assert done.returncode == 0, done.stderr
    assert "load_plan('train-2.plan')" in done.stdout
    assert "wrote train-2.plan" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {
        "train.py", "train.plan", "mine.plan", "train-2.plan",
    }  # fmt: skip
    assert (tmp_path / "train.plan").read_text() == "not a plan"


@pytest.mark.words
def test_a_limit_that_no_way_keeps_is_a_finding(fit):
    """The message names the obstacle. Without a limit the usage is wrong."""
    done = fit("--ways", "checkpoint", "--limit", "10KiB", "train.py")
    assert done.returncode == 1
    assert "are alive before the step begins" in done.stderr
    assert fit("train.py").returncode == 2


def test_a_planned_way_that_cannot_be_measured_is_left_out_and_said(monkeypatch):
    """A program that keeps a graph whose backward never runs leaves memwatch measuring: the other ways go on."""

    def program():
        net = torch.nn.Linear(4, 4)
        sgd = torch.optim.SGD(net.parameters())
        for _ in range(9):
            net(torch.ones(2, 4)).sum().backward()
            sgd.step()

    monkeypatch.setattr(Way, "is_planned", True)
    monkeypatch.setattr(program_trial, "can_measure", lambda: False)
    measured = program_trial.ProgramTrial(lambda: program, steps=2).run(Way())
    assert measured.peak_bytes is None
    assert "whose backward does not run" in measured.failure


CACHED = """
import memwatch
import torch
from torch import nn

class Cache:
    def __init__(self):
        self.values = {}

    def update(self, number, value):
        self.values[number] = torch.cat([*self.values.get(number, ()), value]),
        return self.values[number][0]

class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number
        self.mlp = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x, cache=None):
        x = x if cache is None else cache.update(self.number, x)
        return x + self.mlp(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(number) for number in range(4))

    def forward(self, x, cache=None):
        for block in self.blocks:
            x = block(x, cache=cache)
        return x

def main():
    torch.manual_seed(0)
    net = Net()
    adam = torch.optim.AdamW(net.parameters())

    def step():
        net(torch.randn(256, 64), cache=MADE).square().mean().backward()
        adam.step()
        adam.zero_grad()

    # here
    for number in range(4):
        step()
    with memwatch.profile(holders=False) as prof:
        step()
        step()
    print("peak", prof.peak_bytes)

main()
"""


@pytest.mark.parametrize(
    ("made", "block", "limit"), [("Cache()", "blocks.0.mlp", "3.5MiB"), ("None", "blocks.0", "3.5MiB")]
)
def test_a_block_that_changes_its_argument_is_not_checkpointed_and_its_twin_is(
    fit, tmp_path, made, block, limit
):
    """Its forward would find its own values in the cache. Parts of it that do not get the cache are checkpointed."""
    program = CACHED.replace("MADE", made)
    (tmp_path / "train.py").write_text(program)
    done = fit("--ways", "checkpoint", "--limit", limit, "train.py", "--steps", "2")
    assert done.returncode == 0, done.stderr
    head, _, lines = done.stdout.partition("write before the training loop:\n")
    head = " ".join(head.split())
    assert (
        "no checkpoint for `blocks.0` ... `blocks.3` (4 modules): each puts new tensors into the Cache"
        in head
    ) == (made != "None")
    assert repr(block) in lines
    promised_bytes = parse_bytes(re.search(r"with a peak of (\S+ \S+)", head).group(1))
    ran = fit.func(program.replace("    # here\n", textwrap.indent(lines, "    ")))
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout.split("peak ")[1]) == pytest.approx(promised_bytes, rel=0.01)


def _program_of_two_optimizers(*, are_of_one_age):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    second = torch.optim.SGD(net[1].parameters(), lr=0.1)
    gc.collect()
    first = torch.optim.AdamW(net[0].parameters())
    if are_of_one_age:
        gc.collect()
    for _ in range(9):
        net(torch.ones(2, 4)).sum().backward()
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()


def test_of_several_optimizers_the_first_is_the_same_in_each_run():
    """Results are compared after the same step. The collector lists young objects first, then old ones by age."""
    results = set()
    for are_of_one_age in (False, True):
        program = functools.partial(_program_of_two_optimizers, are_of_one_age=are_of_one_age)
        trial = program_trial.ProgramTrial(lambda program=program: program, steps=2)
        results.add(trial.run(Way()).results)
        assert [type(each).__name__ for each in trial.optimizers] == ["AdamW", "SGD"], are_of_one_age
    assert len(results) == 1


def test_memory_that_a_failed_run_leaves_counts_in_no_other_way():
    """A cache that the second forward changed again keeps a cycle in autograd alive, which gc does not see."""
    space = {}
    exec(CACHED.rpartition("main()")[0], space)

    def program():
        net, cache = space["Net"](), space["Cache"]
        sgd = torch.optim.SGD(net.parameters())
        for _ in range(9):
            net(torch.ones(256, 64), cache=cache()).square().sum().backward()
            sgd.step()

    trial = program_trial.ProgramTrial(lambda: program, steps=2)
    plain_bytes = trial.run(Way()).peak_bytes
    with pytest.raises(torch.utils.checkpoint.CheckpointError):
        trial.run(Way((Change(Kind.CHECKPOINT, tuple(f"blocks.{number}" for number in range(4))),)))
    assert trial.run(Way()).peak_bytes == plain_bytes
    assert trial.left_bytes > 0


_LIBRARY = """
import torch


class Trainer:
    def __init__(self, model):
        self.model, self.optimizer = model, None

    def train(self, batch, steps=5):
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=True)
        for _ in range(steps):
            self.model(batch).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
"""
_TRAINED_BY_LIBRARY = """
import sys
sys.path.insert(0, "site-packages")
import torch
from torch import nn
from trainer_of_tests import Trainer
import memwatch

def main():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))
    trainer = Trainer(model)
    # here
    trainer.train(torch.randn(4, 256))

with memwatch.profile(holders=False) as prof:
    main()
print("peak", prof.peak_bytes)
"""
_UNRECORDED = _TRAINED_BY_LIBRARY.replace(
    "memwatch.profile(holders=False) as prof", "open('log', 'w')"
).replace('print("peak", prof.peak_bytes)', "")


@pytest.fixture
def fit_with_library(fit, tmp_path):
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "trainer_of_tests.py").write_text(_LIBRARY)
    (tmp_path / "train.py").write_text(_UNRECORDED)
    return fit


def test_the_lines_for_the_optimizer_of_a_library_work_before_the_training(fit_with_library):
    """The optimizer does not exist there yet. The lines name the function in which the model has its name."""
    done = fit_with_library("--ways", "foreach", "--limit", "9MiB", "train.py")
    assert done.returncode == 0, done.stderr
    head, _, lines = done.stdout.partition("write before the training loop:\n")
    assert "in main" in lines.strip().splitlines()[0]
    promised_bytes = parse_bytes(re.search(r"with a peak of (\S+ \S+)", " ".join(head.split())).group(1))
    ran = fit_with_library.func(_TRAINED_BY_LIBRARY.replace("    # here\n", textwrap.indent(lines, "    ")))
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout.split("peak ")[1]) == pytest.approx(promised_bytes, rel=0.01)


@pytest.mark.parametrize("is_made_before", [False, True])
def test_a_step_in_the_backward_is_tried_only_for_an_optimizer_that_exists_before_the_training(
    fit_with_library, tmp_path, is_made_before
):
    """Its hooks would come too late for the first backward. A constructor of the library may make it early enough."""
    if is_made_before:
        making = "        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=True)\n"
        early = _LIBRARY.replace(making, "").replace(
            "self.optimizer = model, None\n", f"_ = model, None\n{making}"
        )
        (tmp_path / "site-packages" / "trainer_of_tests.py").write_text(early)
    done = fit_with_library("--ways", "foreach,step_in_backward", "--limit", "6.8MiB", "train.py")
    assert ("step_in_backward: peak" in done.stderr) == is_made_before, done.stderr
    assert ("step_in_backward(trainer.optimizer)" in done.stdout) == is_made_before
