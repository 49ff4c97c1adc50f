"""`memwatch leaks`: memory that a program leaves behind, besides its own names, is a finding."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap

import pytest

from memwatch.kinds.leaks import Remedy
from memwatch.leaks import torchs_cycles
from memwatch.sizes import format_bytes
from memwatch.way_lines import of_blocks
from memwatch.words.leaks import advice

TRAINING = """
import sys, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
history = []
for _ in range(3):
    loss = model(torch.ones(2, 8)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss)
print(sys.argv[1:])
"""
HOOK = """
def step():
    y = model.weight.exp()
    y.register_hook(lambda grad: grad * y.mean())
step()
"""
PARKED = """
import contextvars
contextvars.ContextVar("parked").set(model(torch.ones(2, 8)))
"""


def findings(done):
    """Return what memwatch found, on one line; this program prints nothing itself."""
    return " ".join(done.stdout.split())


def test_a_program_that_keeps_only_its_own_names_is_clean(command):
    """Models, optimizers, results and lists at the top level are the program's own.

    Places that were not searched are named. A new process: its optimizer imports torch's compiler.
    """
    done = command(sys.executable, "-m", "memwatch", "leaks", "-c", TRAINING, "--epochs", "1")
    assert (done.returncode, done.stdout) == (0, "['--epochs', '1']\n")
    verdict, not_searched, not_judged = done.stderr.splitlines()
    assert verdict.startswith("memwatch: no leaks at the end. An object that a global variable")
    assert "the program made 3 optimizer steps" in not_searched
    assert "memwatch.find_leaks(step)" in not_searched
    assert "global `history`" in not_judged


CYCLE_OF_TORCH = """
import torch
layer = torch.nn.Sequential(torch.nn.Linear(64, 64))
torch.ao.quantization.quantize_dynamic(layer, {torch.nn.Linear}, dtype=torch.qint8)
"""
CYCLE_OF_PROGRAM = """
import torch
layer = torch.nn.Linear(64, 64)
layer.qconfig = [layer]
del layer
"""


@pytest.mark.parametrize(("program", "code"), [(CYCLE_OF_TORCH, 0), (CYCLE_OF_PROGRAM, 1)])
def test_a_cycle_that_torchs_own_code_closes_is_no_leak(program, code, shell_memwatch, tmp_path):
    """Quantization leaves each layer in a cycle. The twin's own line closes one through the same attribute."""
    (tmp_path / "train.py").write_text(program)
    done = shell_memwatch("leaks", "train.py")
    assert done.returncode == code
    assert ("not counted: 1 cycle" in done.stderr) == (code == 0)


def test_a_file_of_torch_that_python_cannot_parse_is_skipped(tmp_path):
    (tmp_path / "template.py").write_text("self._owner = {{ owner }} of\n")
    (tmp_path / "denied.py").mkdir()
    (tmp_path / "graph.py").write_text("self._owner = self._other = owner\n")
    assert torchs_cycles._stored_attributes(tmp_path, "_owner") == {"_owner", "_other"}


def test_what_outlives_the_program_is_named(shell_memwatch, tmp_path):
    """Cycles that gc cannot free and tensors parked elsewhere are reported with kind and holder; exit code 1."""
    (tmp_path / "program.py").write_text(TRAINING + HOOK + PARKED)
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, done.stderr) == (1, "")
    for kind, holder in (("uncollectable:", "`y`"), ("retained:", "parked")):
        assert kind in done.stdout
        assert holder in done.stdout
    fitting = [line for line in done.stdout.splitlines() if not any(len(word) > 60 for word in line.split())]
    assert max(map(len, fitting)) <= 100, "a pipe gets lines of 100 columns"


@pytest.mark.parametrize("verb", [("leaks",), ("estimate",), ("fit", "--limit", "1GiB")])
def test_a_program_that_fails_ends_as_it_would_have_ended(verb, shell_memwatch, command, tmp_path):
    """An error, an exit code and wrong syntax are the program's own, shown as `python` shows them."""
    exits = "import sys, torch; kept = torch.ones(1000); sys.exit(3)"
    for ending in ("def f():\n    1 / 0\nf()", "x = = 1", exits):
        if verb[0] == "fit" and "sys" in ending:
            continue  # a program that ends by itself has made too few steps, which memwatch says
        (tmp_path / "program.py").write_text(ending)
        plain, ours = command(sys.executable, "program.py"), shell_memwatch(*verb, "program.py")
        said = ours.stderr
        if verb[0] == "fit":
            first, *lines = said.splitlines(keepends=True)
            assert first.startswith("memwatch: fit runs the first")
            said = "".join(lines)
        if verb[0] == "leaks" and "= =" not in ending:
            first, *lines = said.splitlines(keepends=True)
            how = "exit code 3" if "sys" in ending else "ZeroDivisionError"
            assert first == f"memwatch: the program ended with {how}, so memwatch did not judge its leaks\n"
            said = "".join(lines)
        assert (ours.returncode, ours.stdout, said) == (plain.returncode, plain.stdout, plain.stderr)


FAILING = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters())
data = torch.randn(64, 8)
def main():
    for _ in range(9):
        loss = model(data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss{detached})
history = []
main()
"""
OWN_CHECK = "import memwatch\nwith memwatch.check_leaks(): history.append(data @ data.T)"


@pytest.mark.parametrize("detached", ["", ".item()"], ids=["leak", "clean"])
@pytest.mark.parametrize(
    "end", ["raise RuntimeError('boom')", "assert not history, 'boom'", OWN_CHECK, "raise KeyboardInterrupt"]
)
def test_a_failed_program_has_its_traceback_and_its_names_are_not_judged(
    end, detached, shell_memwatch, command, tmp_path
):
    """A program that fails has names at the top level that it still needed, so none of them is a leak."""
    (tmp_path / "program.py").write_text(FAILING.format(detached=detached) + end)
    plain, ours = command(sys.executable, "program.py"), shell_memwatch("leaks", "program.py")
    first, _, said = ours.stderr.partition("\n")
    shown = [re.sub(r"held for .* so far", "held", each) for each in (plain.stderr, said)]
    assert shown[0] == shown[1]
    assert ours.returncode == plain.returncode
    not_judged = "its leaks" if detached else "what it still held at its end"
    assert re.search(
        rf"ended with \w+ after 9 optimizer steps, so memwatch did not judge {not_judged}", first
    )
    assert ("Until then no optimizer step left a graph or a hook behind" in first) is bool(detached)
    assert ours.stdout.startswith("" if detached else "The program leaked ")
    assert ("with each optimizer step until it failed" in findings(ours)) is not bool(detached)
    assert "history" in ours.stdout or detached


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_failed_program_keeps_its_error_where_its_leaks_cannot_be_printed(tmp_path):
    """As on a full disk. The twin is any failed program above."""
    (tmp_path / "program.py").write_text(FAILING.format(detached="") + "raise KeyError('mine')")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "memwatch", "leaks", "program.py"],
            stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.endswith("KeyError: 'mine'\n")
    assert (
        "could not print the leaks that it had found until then: cannot write to standard output"
        in done.stderr
    )


LOOP = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters())
def epoch(history, keep, steps):
    for _ in range(steps):
        loss = model(torch.ones(2, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        keep(history, loss)
"""
LEAKING = "epoch(history := [], lambda history, loss: history.append(loss), 13)"
IN_A_FUNCTION = """
def main():
    losses = []
    epoch(losses, lambda losses, loss: losses.append(loss), 13)
main()
"""
DETACHED = "epoch(history := [], lambda history, loss: history.append(loss.detach()), 13)"
CLEARED_EACH_EPOCH = """
for _ in range(4):
    epoch([], lambda losses, loss: losses.append(loss), 7)
"""
BOUNDED = """
from collections import deque
epoch(deque(maxlen=100), lambda losses, loss: losses.append(loss), 13)
"""


@pytest.mark.parametrize(("ending", "name"), [(LEAKING, "history"), (IN_A_FUNCTION, "losses")])
def test_losses_kept_with_their_graphs_grow_with_each_step(ending, name, shell_memwatch, tmp_path):
    """At the end a list at the top level may be a result, and a function's list is gone. Between steps they grow."""
    (tmp_path / "program.py").write_text(LOOP + ending)
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("The program leaks ")
    assert f"`{name}`" in done.stdout


def test_a_leak_is_found_among_frozen_objects(shell_memwatch, tmp_path):
    """Gc lists none of the objects that were there when the program called `gc.freeze`."""
    (tmp_path / "program.py").write_text("import gc\ngc.freeze()" + LOOP + LEAKING)
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, done.stderr) == (1, "")
    assert "`history`" in done.stdout


BOUNDED_RESULTS = """
import functools
@functools.lru_cache(maxsize=100)
def loss_of(step):
    return model(torch.ones(2, 8) * step).square().mean()
count = iter(range(100))
epoch([], lambda losses, loss: loss_of(next(count)), 13)
"""


@pytest.mark.parametrize(
    ("ending", "is_growth"),
    [
        (DETACHED, True),
        (CLEARED_EACH_EPOCH, False),
        (BOUNDED, True),
        (BOUNDED.replace("100", "10"), False),
        (BOUNDED.replace("append(loss)", "append(loss.detach())"), False),
        (BOUNDED_RESULTS, True),
        (BOUNDED_RESULTS.replace("mean()", "mean().detach()"), False),
    ],
    ids=["detached", "cleared", "bounded", "full", "bounded detached", "cache", "cache detached"],
)
def test_what_keeps_no_graph_or_is_emptied_does_not_leak(ending, is_growth, shell_memwatch, tmp_path):
    """A window or a cache that the program never fills is named, because it grows until the program ends."""
    (tmp_path / "program.py").write_text(LOOP + ending)
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, "memory grew" in done.stdout) == (0, is_growth), done.stdout
    assert "The program leaks" not in done.stdout


EVERY_SECOND = """
count = iter(range(100))
epoch({kept}, lambda kept, loss: next(count) % 2 or kept.append(loss), 18)
"""


@pytest.mark.parametrize(
    ("kept", "code"), [("losses := []", 1), ("__import__('collections').deque(maxlen=4)", 0)]
)
def test_what_every_second_step_keeps_grows(kept, code, shell_memwatch, tmp_path):
    (tmp_path / "program.py").write_text(LOOP + EVERY_SECOND.format(kept=kept))
    done = shell_memwatch("leaks", "program.py")
    assert done.returncode == code, done.stderr
    assert ("4 B in 1 tensor with one optimizer step in 2" in " ".join(done.stdout.split())) == bool(code)


def test_what_steps_at_unequal_distances_keep_has_the_size_of_a_tensor(shell_memwatch, tmp_path):
    """Two of six steps keep a loss: no step keeps a part of one."""
    keeps = "epoch(losses := [], lambda kept, loss: next(count) % 6 > 1 or kept.append(loss), 48)\n"
    (tmp_path / "program.py").write_text(f"{LOOP}count = iter(range(100))\n{keeps}")
    done = shell_memwatch("leaks", "program.py")
    assert "4 B in 1 tensor with one optimizer step in 3" in " ".join(done.stdout.split()), done.stdout


SELDOM = """
count = iter(range(100))
epoch([], lambda kept, loss: next(count) % 7 or {keep}, 34)
"""
WINDOW_OF_THREE = "(kept.append(loss), kept.__delitem__(slice(None, -3)))"
EMPTY_HOOK = "model.register_forward_hook(lambda *_: None)"


@pytest.mark.parametrize(
    ("keep", "code"),
    [("kept.append(loss)", 1), (EMPTY_HOOK, 1), ("kept.append(loss.detach())", 0), (WINDOW_OF_THREE, 0)],
    ids=["losses", "hooks", "detached", "window"],
)
def test_what_every_seventh_step_keeps_grows(keep, code, shell_memwatch, tmp_path):
    (tmp_path / "program.py").write_text(LOOP + SELDOM.format(keep=keep))
    done = shell_memwatch("leaks", "program.py")
    assert done.returncode == code, done.stderr
    assert ("with one optimizer step in 7" in " ".join(done.stdout.split())) == bool(code)


RARE = """
count = iter(range(100))
history = []
epoch(history, lambda kept, loss: next(count) % 10 or kept.append({value}), 25)
"""


@pytest.mark.parametrize(("value", "has_graphs"), [("loss", True), ("loss.item()", False)])
def test_steps_whose_graphs_live_at_the_end_are_not_said_to_leave_none(
    value, has_graphs, shell_memwatch, tmp_path
):
    (tmp_path / "program.py").write_text(LOOP + RARE.format(value=value))
    done = shell_memwatch("leaks", "program.py")
    assert done.returncode == 0
    assert ("no optimizer step left a graph" in done.stderr) != has_graphs
    assert ("store `value.item()` or `value.detach()`" in done.stderr) == has_graphs


TWO_SUMS = """
outputs, losses = 0, torch.zeros(())
def keep(sums, loss):
    global outputs, losses
    outputs = outputs + {value}{detached}
    losses += loss{detached}
epoch(None, keep, 13)
"""
BACKWARD_FREED, WITH_ACTIVATIONS = "model[2].weight.sum()", "model(torch.ones(2, 8)).mean()"


@pytest.mark.parametrize(
    ("value", "detached", "kinds"),
    [
        (BACKWARD_FREED, "", ["graph", "graph"]),
        (WITH_ACTIVATIONS, "", ["graph", "retained"]),
        (WITH_ACTIVATIONS, ".detach()", []),
    ],
)
def test_each_of_several_sums_of_graphs_is_found(value, detached, kinds, shell_memwatch, tmp_path):
    """Each sum has a part of the nodes that a step adds, so none of them alone has as many as were added."""
    (tmp_path / "program.py").write_text(LOOP + TWO_SUMS.format(value=value, detached=detached))
    done = shell_memwatch("leaks", "program.py")
    assert done.returncode == bool(kinds), done.stderr
    found = re.findall(r"^(graph|retained): [^`]*`(\w+)`", done.stdout, re.MULTILINE)
    assert sorted(kind for kind, _ in found) == kinds
    assert sorted(name for _, name in found) == ["losses", "outputs"][: len(kinds)]
    assert ("no optimizer step left a graph" in done.stderr) != bool(kinds)


COLLECTED = """
def step():
    loss = model(torch.ones(2, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return {value}
def main():
    return float(sum({values}))
main()
"""
BY_A_COMPREHENSION = "[step() for _ in range(18)]"
BY_MAP = "list(map(lambda _: step(), range(18)))"
BY_SUM = "step() for _ in range(18)"


@pytest.mark.parametrize(
    ("values", "value", "code"),
    [
        (BY_A_COMPREHENSION, "loss", 1),
        (BY_A_COMPREHENSION, "loss.item()", 0),
        (BY_MAP, "loss", 1),
        (BY_MAP, "loss.item()", 0),
    ],
)
def test_losses_that_a_running_call_collects_grow_with_each_step(
    values, value, code, shell_memwatch, tmp_path
):
    """Gc does not show the list of a comprehension before a variable has it."""
    (tmp_path / "program.py").write_text(LOOP + COLLECTED.format(value=value, values=values))
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, "with each optimizer step" in done.stdout) == (code, bool(code)), done.stderr


@pytest.mark.parametrize(("value", "is_clean"), [("loss", False), ("loss.item()", True)])
def test_graphs_that_sum_adds_up_unseen_are_not_said_to_be_none(value, is_clean, shell_memwatch, tmp_path):
    (tmp_path / "program.py").write_text(LOOP + COLLECTED.format(value=value, values=BY_SUM))
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, "no optimizer step left a graph" in done.stderr) == (0, is_clean)


PLACES = """
import numpy
def main():
    count = iter(range(100))
    places = {places}
    epoch(places, lambda places, loss: places.__setitem__(next(count) % len(places), loss{detached}), 18)
main()
"""
MANY_PLACES = ["[None] * 1000", "numpy.empty(1000, dtype=object)"]


@pytest.mark.parametrize(
    ("places", "detached", "is_named"),
    [
        *[(places, "", True) for places in MANY_PLACES],
        *[(places, ".detach()", False) for places in MANY_PLACES],
        ("[None] * 4", "", False),
    ],
)
def test_graphs_that_fill_empty_places_are_named_and_not_judged(
    places, detached, is_named, shell_memwatch, tmp_path
):
    """A ring of places may be meant to be full. One that was filled again is no growth."""
    (tmp_path / "program.py").write_text(LOOP + PLACES.format(places=places, detached=detached))
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, "The program leaks" in done.stdout) == (0, False)
    assert ("local `places` of main" in findings(done)) == is_named
    assert ("no optimizer step left a graph" in done.stderr) != is_named


REPLAY = """
import collections, random
def main():
    random.seed(0)
    buffer, rare = collections.deque(maxlen=100_000), []
    count = itertools.count()
    state = torch.ones(8)
    def keep(stored, loss):
        nonlocal state
        action = model(state)[:2].tanh(){detached}
        state = torch.randn(8)
        buffer.append((state, action))
        if next(count) % 10 == 9 and {has_rare}:
            rare.append(model(torch.ones(8)).mean())
    def learn(steps):
        for _ in range(steps):
            epoch([], keep, 1)
            if len(buffer) >= 8:
                states, actions = (torch.stack(each) for each in zip(*random.sample(buffer, 8)))
                (model(states).mean() - actions.detach().mean()).square().backward()
    learn(40)
main()
"""


@pytest.mark.parametrize(
    ("detached", "has_rare", "told"),
    [("", False, {"memory grew"}), ("", True, {"memory grew", "not decided"}), (".detach()", False, set())],
)
def test_graphs_of_a_named_window_are_not_told_again_of_a_sample_of_it(
    detached, has_rare, told, shell_memwatch, tmp_path
):
    """A tensor made of sampled ones has the graphs of several steps. The next one replaces it."""
    program = REPLAY.format(detached=detached, has_rare=has_rare)
    (tmp_path / "program.py").write_text("import itertools" + LOOP + program)
    done = shell_memwatch("leaks", "program.py")
    assert done.returncode == 0, done.stdout
    assert {words for words in ("memory grew", "not decided") if words in done.stdout} == told
    assert "`actions`" not in done.stdout


IN_CPP = """
import torch
from typing import List
class Net(torch.nn.Module):
    outputs: List[torch.Tensor]
    def __init__(self):
        super().__init__()
        self.layer, self.outputs = torch.nn.Linear(8, 8), []
    def forward(self, x):
        y = torch.tanh(self.layer(x))
        self.outputs.append(y{detached})
        return y
model = torch.jit.script(Net())
optimizer = torch.optim.SGD(model.parameters())
for _ in range(18):
    loss = model(torch.ones(2, 8)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
ONE_IN_TEN = """{loop}
count = iter(range(100))
epoch([], lambda kept, loss: next(count) % 10 or {keep}, 34)
"""


CONTEXTS = """
import torch
KEPT = []
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        {keep}
        return x * x
    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad
def main():
    weight = torch.ones(16, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(30):
        optimizer.zero_grad()
        Square.apply(weight * 1).sum().backward()
        optimizer.step()
main()
"""


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (IN_CPP.format(detached=""), "memwatch does not know what keeps them"),
        (IN_CPP.format(detached=".detach()"), ""),
        (ONE_IN_TEN.format(loop=LOOP, keep="kept.append(loss)"), "argument `history` of epoch"),
        (ONE_IN_TEN.format(loop=LOOP, keep="kept.append(loss.item())"), ""),
        (ONE_IN_TEN.format(loop=LOOP, keep=WINDOW_OF_THREE.replace("-3", "-1")), ""),
    ],
    ids=["C++", "C++ detached", "seldom", "seldom detached", "the last one"],
)
def test_graphs_that_are_left_undecided_are_said_to_be(program, said, shell_memwatch, tmp_path):
    """Gc does not show what a scripted module holds.

    Three graphs in 30 steps are too few to show growth.
    """
    (tmp_path / "program.py").write_text(program)
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, "not decided: " in done.stdout) == (0, bool(said)), done.stdout + done.stderr
    assert said in findings(done)


@pytest.mark.parametrize(
    ("keep", "at_end", "is_leak"),
    [
        ("KEPT.append(ctx)", "", True),
        ("KEPT[:] = [ctx]", "", False),
        ("KEPT.append(ctx)", "KEPT.clear()", False),
    ],
    ids=["each", "the last", "cleared"],
)
def test_a_list_of_contexts_is_named(keep, at_end, is_leak, shell_memwatch, tmp_path):
    """Backward has freed the tensors of their graphs; a list that is empty at the end only collected them."""
    (tmp_path / "program.py").write_text(CONTEXTS.format(keep=keep) + at_end)
    done = shell_memwatch("leaks", "program.py")
    assert done.returncode == int(is_leak), done.stdout + done.stderr
    assert ("global `KEPT`" in findings(done)) == is_leak
    assert "not decided" not in done.stdout


LATER_OPTIMIZERS = """
def trial(width):
    model = torch.nn.Linear(8, width)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(4):
        model(torch.ones(2, 8)).mean().backward()
        optimizer.step()
"""
INTERLEAVED = """
second = torch.optim.SGD(model.parameters())
epoch([], lambda *_: second.step(), 8)
"""


@pytest.mark.parametrize(
    ("program", "is_said"),
    [
        (LATER_OPTIMIZERS + "trial(4); trial(8)", True),
        (LATER_OPTIMIZERS + "trial(4)", False),
        (INTERLEAVED, False),
    ],
    ids=["trials", "one trial", "interleaved"],
)
def test_optimizers_after_the_first_are_said_to_be_unchecked(program, is_said, shell_memwatch, tmp_path):
    (tmp_path / "program.py").write_text(LOOP + program)
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, "and the program made others after it" in done.stderr) == (0, is_said)


AT_THE_END_TOO = """
import contextvars
trace = contextvars.ContextVar("trace", default=())
epoch(None, lambda _, loss: trace.set((*trace.get(), loss)), 13)
"""


def test_a_leak_of_each_step_is_not_told_as_one_of_the_end(shell_memwatch, tmp_path):
    (tmp_path / "program.py").write_text(LOOP + AT_THE_END_TOO)
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, done.stderr) == (1, "")
    assert "ContextVar 'trace'" in findings(done)
    assert "in 1 tensor on each step" in findings(done)
    assert "in 1 group" not in done.stdout
    assert "find_leaks(fn)" not in done.stdout


FOLDS = """
for _ in range(3):
    optimizer = torch.optim.SGD(model.parameters())
    epoch([], lambda *_: None, 2)
"""


def test_steps_of_fresh_optimizers_are_not_said_to_be_all_steps(shell_memwatch, tmp_path):
    (tmp_path / "program.py").write_text(LOOP + FOLDS)
    done = shell_memwatch("leaks", "program.py")
    assert done.returncode == 0
    assert "6 optimizer steps with 3 optimizers, but only 2 with the first optimizer" in done.stderr


HOOK_PER_STEP = """
epoch([], lambda _, loss: model[0].register_forward_hook(lambda *_: None), 13)
"""


@pytest.mark.whole
def test_a_hook_of_each_step_grows(shell_memwatch, tmp_path):
    (tmp_path / "program.py").write_text(LOOP + HOOK_PER_STEP)
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, done.stderr) == (1, "")
    assert "\nhooks: 1 hook on each step, registered on " in done.stdout


HOOK_PER_PASS = """
def predict():
    handles = []
    for x in xs:
        handles.append(net.register_forward_hook(lambda *_: None))
        net(x).detach()
    for handle in handles[:{removed}]:
        handle.remove()
for _ in range(2):
    predict()
"""


@pytest.mark.parametrize(("removed", "code"), [(0, 1), (None, 0)])
def test_a_hook_of_each_pass_grows_though_the_loop_runs_again(removed, code, shell_memwatch, tmp_path):
    """The second call shows that no tensor of the first lives on. Its hooks do, unless they were removed."""
    (tmp_path / "program.py").write_text(IMPORTS + HOOK_PER_PASS.format(removed=removed))
    done = shell_memwatch("leaks", "program.py")
    assert done.returncode == code, done.stderr
    assert ("\nhooks: 1 hook on each iteration" in done.stdout) == bool(code)


IMPORTS = """
import torch
from torch import nn
net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
xs = torch.ones(14, 2, 8)
"""
FOUR_STEPS = """
def main(keep):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for step in range(5):
        loss = net(xs[step]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(keep(loss))
main(lambda loss: loss%s)
"""
RUNNING_SUM = """
def main():
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    total = 0.0
    for step in range(6):
        loss = net(xs[step]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = total + loss%s
main()
"""
RUNNING_AVERAGES = """
averages = [weight.detach().clone() for weight in net.parameters()]
def main():
    global averages
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(10):
        loss = net(xs[step]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        averages = [0.9 * old + 0.1 * new%s for old, new in zip(averages, net.parameters())]
main()
"""
INFERENCE = """
def predict():
    outputs = []
    for x in xs:
        outputs.append(net(x)%s)
    return len(outputs)
predict()
"""
SERVICE = """
class Service:
    def __init__(self):
        self.scores = []
    def answer(self, x):
        y = net(x)
        self.scores.append(y.sum()%s)
        return y
def serve(service):
    number = 0
    while number < 14:
        service.answer(xs[number])
        number += 1
serve(Service())
"""
RECURRENT = """
def roll(cell):
    state = torch.zeros(2, 8)
    for x in xs:
        state = cell(x, state)%s
roll(nn.GRUCell(8, 8))
"""
PLAIN_DESCENT = """
def main(weight):
    history = []
    for x in xs:
        loss = (x @ weight).mean()
        loss.backward()
        with torch.no_grad():
            weight -= weight.grad
        weight.grad = None
        history.append(loss%s)
main(torch.ones(8, 8, requires_grad=True))
"""
GENERATOR = """
kept = []
def batches():
    for x in xs:
        yield x + 1
def main():
    for batch in batches():
        kept.append(net(batch).mean()%s)
main()
"""


GRAPHS_KEPT = {
    "four_steps": (FOUR_STEPS, "retained", "losses"),
    "running_sum": (RUNNING_SUM, "graph", "total"),
    "running_averages": (RUNNING_AVERAGES, "graph", "averages"),
    "inference": (INFERENCE, "retained", "outputs"),
    "service": (SERVICE, "retained", ".scores"),
    "recurrent": (RECURRENT, "retained", "local `state` of roll"),
    "descent": (PLAIN_DESCENT, "retained", "history"),
    "generator": (GENERATOR, "retained", "kept"),
}


@pytest.mark.parametrize("name", GRAPHS_KEPT)
def test_graphs_kept_by_steps_and_passes_are_found(name, shell_memwatch, tmp_path):
    """A few steps are enough, and a loop without an optimizer too."""
    program, kind, holder = GRAPHS_KEPT[name]
    (tmp_path / "program.py").write_text(IMPORTS + program % "")
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("The program leaks ")
    assert f"\n{kind}: " in done.stdout
    assert holder in done.stdout


AUXILIARY_LOSS = """
def main():
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    kept = []
    for step in range(6):
        loss = net(xs[step]).mean()
        kept.append(loss * 0.01)
        optimizer.zero_grad()
        (loss + kept[-1]%s).backward()
        optimizer.step()
main()
"""


def test_the_nodes_beside_kept_tensors_are_counted(shell_memwatch, tmp_path):
    """Backward frees what a graph has saved. Its nodes can be most of what stays."""
    (tmp_path / "program.py").write_text(IMPORTS + AUXILIARY_LOSS % "")
    done = shell_memwatch("leaks", "program.py")
    assert done.returncode == 1
    assert "\nretained: 4 B in 1 tensor on each step" in done.stdout
    assert "  and 7 autograd nodes on each step, about 3.50 KiB" in done.stdout


BUSY_MACHINE = """
import time
from memwatch.leaks import program_growth
program_growth._MOST_S = %s
search = program_growth.ProgramGrowth._search
def search_late(growth, rounds):
    search(growth, rounds)
    if rounds.number < 8:
        rounds.leaks = []
    program_growth.time.monotonic = lambda now=time.monotonic(): now + 1000 * rounds.number
program_growth.ProgramGrowth._search = search_late
"""


@pytest.mark.parametrize(("limit_s", "code"), [(30, 1), (0, 0)])
def test_a_busy_machine_finds_the_same_and_skipped_searches_are_named(
    limit_s, code, shell_memwatch, tmp_path
):
    """The searches have a limit of processor time. The verdict does not hide that they reached it."""
    program = IMPORTS + BUSY_MACHINE % limit_s + FOUR_STEPS.replace("range(5)", "range(9)") % ""
    (tmp_path / "program.py").write_text(program)
    done = shell_memwatch("leaks", "program.py")
    assert done.returncode == code
    assert ("the searches took too long" in done.stderr) is (code == 0)


DETACHED_PROGRAMS = {
    "four_steps": FOUR_STEPS,
    "running_sum": RUNNING_SUM,
    "running_averages": RUNNING_AVERAGES,
    "loops": "".join([INFERENCE, SERVICE, RECURRENT, GENERATOR]),
    "descent": PLAIN_DESCENT,
}


@pytest.mark.parametrize("name", DETACHED_PROGRAMS)
def test_detached_values_keep_no_graph(name, shell_memwatch, tmp_path):
    (tmp_path / "program.py").write_text(IMPORTS + DETACHED_PROGRAMS[name].replace("%s", ".detach()"))
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, done.stdout) == (0, "")
    assert "left a graph or a hook behind" in done.stderr


FEW_STEPS = """
layers = [torch.nn.Linear(8, 8) for _ in range(6)]
optimizer = torch.optim.SGD(layers[0].parameters(), lr=0.1)
for epoch in range(%d):
    for _ in range(%d):
        layers[0](torch.ones(8)).sum().backward()
    optimizer.step()
"""
FEW_STEPS_LINES = {
    (3, 1): "not searched for leaks of each optimizer step: the program made 3 optimizer steps",
    (3, 6): "not searched for leaks of each optimizer step: the program made 3 optimizer steps",
    (4, 1): "no optimizer step left a graph or a hook behind",
}


@pytest.mark.parametrize(("steps", "passes"), FEW_STEPS_LINES)
def test_steps_that_are_too_few_to_search_are_not_called_clean(steps, passes, shell_memwatch, tmp_path):
    """The six layers are made by a comprehension, which was named as the loop that leaks nothing."""
    (tmp_path / "program.py").write_text(IMPORTS + FEW_STEPS % (steps, passes))
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, done.stdout) == (0, "")
    assert FEW_STEPS_LINES[steps, passes] in done.stderr
    assert "comp>" not in done.stderr


HOOK_PER_CALL = """
def main():
    with torch.no_grad():
        for x in xs:
            %snet[0].register_forward_hook(lambda *_: None)%s
            net(x)
main()
"""


@pytest.mark.parametrize(("before", "after"), [("", ""), ("handle = ", "; handle.remove()")])
def test_a_hook_of_each_pass_grows(before, after, shell_memwatch, tmp_path):
    (tmp_path / "program.py").write_text(IMPORTS + HOOK_PER_CALL % (before, after))
    done = shell_memwatch("leaks", "program.py")
    assert done.returncode == (0 if before else 1)
    assert ("hooks: 1 hook on each iteration" in done.stdout) is not bool(before)


NEEDED_BY_BACKWARD = """
def main():
    losses = []
    for x in xs:
        losses.append(net(x).mean())
    sum(losses).backward()
main()
"""
INNER_STEPS = """
def main(weight):
    for _ in range(2):
        fast = weight
        for x in xs:
            gradient, = torch.autograd.grad((x @ fast).square().mean(), fast, create_graph=True)
            fast = fast - 0.1 * gradient
        fast.mean().backward()
main(torch.ones(8, 8, requires_grad=True))
"""
GONE_WITH_THE_CALL = """
def evaluate():
    outputs = []
    for x in xs[:7]:
        outputs.append(net(x))
    return torch.cat(outputs).mean().item()
for _ in range(3):
    evaluate()
"""
LAYERS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(12))
    def forward(self, x):
        hidden = []
        for layer in self.layers:
            x = layer(x).relu()
            hidden.append(x)
        return hidden
hidden = Net()(xs[0])
"""
WINDOW = """
from collections import deque
def main():
    latest = deque(maxlen=100)
    for x in xs:
        latest.append(net(x))
main()
"""


@pytest.mark.parametrize(
    "program",
    [NEEDED_BY_BACKWARD, INNER_STEPS, GONE_WITH_THE_CALL, LAYERS, WINDOW],
    ids=["needed_by_backward", "inner_steps", "gone_with_the_call", "layers", "window"],
)
def test_graphs_that_a_loop_collects_for_a_while_are_no_leak(program, shell_memwatch, tmp_path):
    (tmp_path / "program.py").write_text(IMPORTS + program)
    done = shell_memwatch("leaks", "program.py")
    # a window that is not full is named
    is_named = program is WINDOW and "into an empty place of local `latest` of main" in findings(done)
    assert (done.returncode, done.stdout == "") == (0, not is_named)
    assert is_named == (program is WINDOW)
    assert "The program leaks" not in done.stdout


METER = """
class Meter:
    def __init__(self):
        self.sum = 0
    def update(self, value):
        self.sum += value * 4
def train():
    meter = Meter()
    for x in xs[:7]:
        optimizer.zero_grad()
        loss = net(x).mean()
        loss.backward()
        optimizer.step()
        meter.update(loss%s)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    train()
"""
EVALUATE_WITH_GRAPH = GONE_WITH_THE_CALL.replace("append(net(x))", "append(net(x)%s)")


@pytest.mark.parametrize("program", [METER, EVALUATE_WITH_GRAPH], ids=["meter", "evaluate"])
@pytest.mark.parametrize("detached", ["", ".detach()"], ids=["graph", "detached"])
def test_graphs_that_an_epoch_keeps_and_frees_are_named(program, detached, shell_memwatch, tmp_path):
    """They are no leak, but the verdict must not deny them."""
    (tmp_path / "program.py").write_text(IMPORTS + program % detached)
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, done.stdout) == (0, "")
    function = "train" if program is METER else "evaluate"
    assert ("and the program freed them later" in done.stderr) is not bool(detached)
    # a loop with one step in each pass is not searched beside the steps
    clean = f"in {function} left a graph or a hook behind", "no optimizer step left a graph or a hook behind"
    assert any(text in done.stderr for text in clean) is bool(detached)


def test_what_each_pass_adds_without_a_graph_is_named_and_not_judged(shell_memwatch, tmp_path):
    """It may be the result of the program. memwatch reports this, and does not claim that the program is clean."""
    (tmp_path / "program.py").write_text(IMPORTS + INFERENCE % ".detach()")
    done = shell_memwatch("leaks", "program.py")
    kept, (verdict,) = findings(done), done.stderr.splitlines()
    assert (done.returncode, kept.startswith("memory grew: each iteration")) == (0, True)
    assert kept.endswith(f"advice: {advice(Remedy.ITEM)}")
    assert verdict.startswith("memwatch: no other leaks")
    assert "program.py:9 in predict added to local `outputs` of predict" in kept


SERVER = """
import queue, threading
requests, answers = queue.Queue(), {}
def work():
    while (item := requests.get()) is not None:
        with torch.no_grad():
            answer = net(item[1])
        answers[item[0] if KEEPS else 0] = answer
net = nn.Linear(64, 64)
worker = threading.Thread(target=work)
worker.start()
for number in range(12):
    requests.put((number, torch.ones(32, 64)))
requests.put(None)
worker.join()
"""


@pytest.mark.parametrize("keeps", [True, False])
def test_what_another_thread_leaves_in_a_top_level_name_is_named(keeps, shell_memwatch, tmp_path):
    (tmp_path / "program.py").write_text(f"{IMPORTS}KEEPS = {keeps}\n{SERVER}")
    done = shell_memwatch("leaks", "program.py")
    assert done.returncode == 0
    assert (findings(done).count("global `answers`") == 1) is keeps


THREADS = """
import asyncio, threading, time
from concurrent.futures import ThreadPoolExecutor
model = nn.Linear(8, 8)
@torch.jit.script
def doubled(x):
    return x * 2
@torch.jit.script
def by_a_thread_of_torch(x):
    return torch.jit.wait(torch.jit.fork(doubled, x))
class Trainer:
    def __init__(self):
        self.losses, self.others, self.values = [], [], []
    def in_a_thread(self):
        for _ in range(14):
            self.losses.append(KEEP(model(torch.ones(2, 8)).sum()))
    def in_a_pool(self):
        for _ in range(14):
            self.others.append(KEEP(model(torch.ones(2, 8)).sum()))
    async def in_a_coroutine(self):
        for _ in range(14):
            self.values.append(KEEP(model(torch.ones(2, 8)).sum()))
            await asyncio.sleep(0)
async def beside():
    for _ in range(14):
        latest = torch.ones(4).sum()
        await asyncio.sleep(0)
async def both(trainer):
    await asyncio.gather(beside(), trainer.in_a_coroutine())
def main():
    first, second, third = Trainer(), Trainer(), Trainer()
    worker = threading.Thread(target=first.in_a_thread)
    worker.start()
    while worker.is_alive():
        latest = by_a_thread_of_torch(torch.ones(4)).sum()
        time.sleep(0.001)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(second.in_a_pool).result()
    asyncio.run(both(third))
main()
"""


@pytest.mark.parametrize(("keep", "leaks"), [("lambda loss: loss", 3), ("torch.Tensor.detach", 0)])
def test_loops_of_threads_and_coroutines_are_followed(keep, leaks, shell_memwatch, tmp_path):
    """A loop that runs beside them is not said to keep their memory."""
    (tmp_path / "program.py").write_text(f"{IMPORTS}KEEP = {keep}\n{THREADS}")
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, done.stdout.count("retained:")) == (min(leaks, 1), leaks)
    if leaks:
        names = "in_a_thread", "in_a_pool", "in_a_coroutine", "main", "beside"
        printed = " ".join(done.stdout.split())
        assert [printed.count(f"in {name}. The holders") for name in names] == [1, 1, 1, 0, 0]
        assert "graph" in done.stdout


LARGER = """
class Queue(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.keys = nn.Linear(8, 4), torch.zeros(0, 4)
    def forward(self, x):
        scores = self.embed(x) @ self.keys.t()
        self.keys = torch.cat([self.keys, self.embed(x).detach()])[KEPT]
        return scores
def train_epoch(model, optimizer, lengths):
    for length in lengths:
        model(torch.ones(2 * length, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
def generate(layer):
    cache = torch.zeros(0, 4)
    for _ in range(11):
        cache = torch.cat([cache, layer(torch.ones(1, 8))])
model = Queue()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    train_epoch(model, optimizer, LENGTHS)
with torch.no_grad():
    for _ in range(7):
        generate(model.embed)
"""


@pytest.mark.parametrize(
    ("kept", "lengths", "names"),
    [
        ("slice(None)", "[1] * 6", 1),
        ("slice(-6, None)", "[1] * 6", 0),
        ("slice(None)", "[1, 3, 2, 5, 4, 1]", 0),
    ],
    ids=["grows", "has a limit", "grows by other sizes each time"],
)
def test_a_tensor_that_becomes_larger_with_each_step_is_named(kept, lengths, names, shell_memwatch, tmp_path):
    """It is no result of one line that varies in size, and no cache that its function drops."""
    program = f"{IMPORTS}KEPT, LENGTHS = {kept}, {lengths}\n{LARGER}"
    (tmp_path / "program.py").write_text(program)
    done = shell_memwatch("leaks", "program.py")
    assert done.returncode == 0
    assert findings(done).count("attribute .keys of Queue, by 32 B") == names
    assert "cache" not in done.stdout


BESIDE = """
import asyncio
model = nn.Linear(8, 8)
async def keeping(losses):
    for _ in range(5):
        losses.append(model(torch.ones(2, 8)).sum())
        await asyncio.sleep(0)
async def beside(passes):
    for _ in range(passes):
        latest = torch.ones(4).sum()
        await asyncio.sleep(0)
async def both():
    await asyncio.gather(beside(6), keeping([]))
asyncio.run(both())
"""


def test_a_loop_does_not_keep_the_graphs_of_a_coroutine_that_runs_in_step_with_it(shell_memwatch, tmp_path):
    """The coroutine has too few passes to be searched. The passes of the other one see as many new nodes each."""
    (tmp_path / "program.py").write_text(f"{IMPORTS}{BESIDE}")
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, done.stdout) == (0, "")


POOLS = """
import asyncio
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
model = nn.Linear(8, 8)
x = torch.ones(2, 8)
class Server:
    def __init__(self):
        self.scores = []
    def answer(self, number):
        self.scores.append(KEEP(model(x).sum()))
def in_a_pool_of_futures(server):
    with ThreadPoolExecutor(1) as pool:
        for number in range(14):
            pool.submit(server.answer, number).result()
def in_a_pool_of_processes(server):
    with ThreadPool(1) as pool:
        pool.map(server.answer, range(14), chunksize=1)
def beside_an_event_loop(server):
    async def serve():
        for number in range(14):
            await asyncio.to_thread(server.answer, number)
    async def with_one_thread():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        await serve()
    asyncio.run(with_one_thread())
"""


@pytest.mark.parametrize("pool", ["in_a_pool_of_futures", "in_a_pool_of_processes", "beside_an_event_loop"])
@pytest.mark.parametrize(("keep", "leaks"), [("lambda loss: loss", 1), ("torch.Tensor.detach", 0)])
def test_each_task_of_a_thread_pool_is_a_round(keep, leaks, pool, shell_memwatch, tmp_path):
    (tmp_path / "program.py").write_text(f"{IMPORTS}KEEP = {keep}\n{POOLS}\n{pool}(Server())\n")
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, done.stdout.count("retained:")) == (leaks, leaks)
    said = " ".join((done.stdout + done.stderr).split())
    assert "task of the thread pool that runs program.py:" in said
    assert " in answer" in said
    assert ".scores of Server" in said


def test_a_task_of_a_thread_pool_has_its_name_though_a_decorator_of_torch_wraps_it(shell_memwatch, tmp_path):
    program = """
@torch.no_grad()
def infer():
    return torch.ones(64)
with ThreadPoolExecutor(1) as pool:
    futures = [pool.submit(infer) for _ in range(8)]
"""
    (tmp_path / "program.py").write_text(f"{IMPORTS}KEEP = None\n{POOLS}{program}")
    done = shell_memwatch("leaks", "program.py")
    assert re.search(
        r"the thread pool that runs program.py:\d+ in infer added to global `futures`", findings(done)
    )


def test_graphs_of_a_thread_pool_that_a_backward_needs_are_no_leak(shell_memwatch, tmp_path):
    program = """
with ThreadPoolExecutor(1) as pool:
    futures = [pool.submit(lambda: model(x).sum()) for _ in range(14)]
    sum(future.result() for future in futures).backward()
"""
    (tmp_path / "program.py").write_text(f"{IMPORTS}KEEP = None\n{POOLS}{program}")
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, done.stdout) == (0, "")


MANY_ROUNDS = """
import tracemalloc
import memwatch.leaks.program_growth
weight = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
def bytes_of_memwatch():
    held = tracemalloc.take_snapshot().statistics("filename")
    return sum(each.size for each in held if each.traceback[0].filename.endswith("program_growth.py"))
def steps(number):
    for _ in range(number):
        weight.grad = torch.ones(1)
        optimizer.step()
def main():
    steps(300)
    tracemalloc.start()
    steps(3000)
    before = bytes_of_memwatch()
    steps(3000)
    print((bytes_of_memwatch() - before) / 3000)
main()
"""


@pytest.mark.whole
def test_a_round_takes_a_few_bytes_once_its_tensors_are_gone(shell_memwatch, tmp_path):
    """Arrays have two numbers of 8 bytes for it, and room to grow. A number in a list takes 40 bytes."""
    (tmp_path / "program.py").write_text(IMPORTS + MANY_ROUNDS)
    done = shell_memwatch("leaks", "program.py")
    assert done.returncode == 0
    assert float(done.stdout) < 30


COPIES = """
import copy
copies = []
epoch(copies, lambda copies, loss: copies.%s, 13)
"""
ALL_COPIES = "append(copy.deepcopy(model.state_dict()))"
LATEST_COPY = "__setitem__(slice(None), [copy.deepcopy(model.state_dict())])"
LATEST_LOSS = """
last = []
epoch(last, lambda last, loss: last.__setitem__(slice(None), [loss]), 13)
"""


@pytest.mark.whole
def test_copies_of_a_model_that_each_step_keeps_are_counted_in_full(shell_memwatch, tmp_path):
    """`copy.deepcopy` makes storages without an op. A later copy may get the address of an older, dead tensor."""
    (tmp_path / "program.py").write_text(LOOP + COPIES % ALL_COPIES)
    done = shell_memwatch("leaks", "program.py")
    nbytes = 2 * (8 * 8 + 8) * 4
    assert done.returncode == 0
    assert "each optimizer step added to global `copies` of module __main__" in findings(done)
    assert f"({format_bytes(nbytes)} in 4 tensors)" in findings(done)


TWO_LISTS = """
logs = {"loss": [], "output": []}
for _ in range(14):
    output = model(torch.ones(2, 8))
    loss = output.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    logs["loss"].append(loss.detach())
    logs["output"].append(output.detach())
"""


def test_a_holder_that_grows_is_told_once_with_all_that_it_got(shell_memwatch, tmp_path):
    """A step is also a pass of the loop, and at the end the lists are held by a global variable."""
    (tmp_path / "program.py").write_text(LOOP + TWO_LISTS)
    done = shell_memwatch("leaks", "program.py")
    grown = findings(done)
    assert (done.returncode, grown.count("`logs`"), grown.count("memory grew")) == (0, 1, 1)
    assert f"({format_bytes(4 + 2 * 8 * 4)} in 2 tensors)" in grown
    assert "item [" not in grown


SOME_COPIES = """
import copy
copies, calls = [], []

def keep(copies, loss):
    calls.append(0)
    if len(calls) % 3 == 0:
        copies.append(copy.deepcopy(model.state_dict()))

epoch(copies, keep, 26)
"""


def test_copies_that_every_third_step_keeps_are_not_said_to_be_of_each_step(shell_memwatch, tmp_path):
    (tmp_path / "program.py").write_text(LOOP + SOME_COPIES)
    done = shell_memwatch("leaks", "program.py")
    assert done.returncode == 0
    assert re.search(
        "not every optimizer step but about one in [34] added to global `copies`", findings(done)
    )
    assert "each optimizer step added" not in findings(done)


def test_the_latest_copy_of_a_model_is_no_growth(shell_memwatch, tmp_path):
    (tmp_path / "program.py").write_text(LOOP + COPIES % LATEST_COPY)
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, done.stdout) == (0, "")
    assert "added to" not in done.stdout


def test_a_loss_at_the_top_level_is_not_said_to_hold_the_model(shell_memwatch, tmp_path):
    """Its graph leads to the parameters, and the model holds them anyway."""
    (tmp_path / "program.py").write_text(LOOP + LATEST_LOSS)
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, done.stdout) == (0, "")
    assert "not judged" not in done.stderr


ROUNDS = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(keep):
    for _ in range(2):
        for number in range(20):
            out = model(torch.ones(2, 8))
            loss = out.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            keep(number, loss, out)
"""
ONE_TABLE = """
def main():
    table = {}
    def keep(number, loss, out):
        table.setdefault("losses", []).append(loss)
        table.setdefault(f"out{number}", []).append(out)
    train(keep)
main()
"""
TWO_TABLES = """
def main():
    losses, outs = [], []
    def keep(number, loss, out):
        losses.append(loss)
        outs.append(out)
    train(keep)
main()
"""
DETACHED = ONE_TABLE.replace("(loss)", "(loss.item())").replace("(out)", "(float(out.sum()))")


@pytest.mark.whole
@pytest.mark.parametrize(("program", "holders"), [(ONE_TABLE, 1), (TWO_TABLES, 2), (DETACHED, 0)])
def test_a_holder_is_listed_once_though_steps_and_passes_add_to_it(shell_memwatch, program, holders):
    """The search after steps and the search after passes may enter a table at different references."""
    done = shell_memwatch("leaks", "-c", ROUNDS + program)
    assert done.stdout.count("retained:") == holders
    assert done.returncode == (holders > 0)


REPLACED_FORWARD = """
import torch
def train():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters())
{lines}
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
for _ in range({models}):
    train()
"""


@pytest.mark.parametrize("models", [1, 3])
def test_a_model_in_a_cycle_that_is_used_until_the_end_is_no_leak(models, shell_memwatch, tmp_path):
    """The lines that `prof.ways` prints make such a cycle. Models of earlier trials in cycles are leaks."""
    lines = of_blocks("checkpoint", "model", ["0", "2"])
    program = REPLACED_FORWARD.format(lines=textwrap.indent(lines, "    "), models=models)
    (tmp_path / "program.py").write_text(program)
    done = shell_memwatch("leaks", "program.py")
    if models == 1:
        assert (done.returncode, done.stdout) == (0, "")
    else:
        assert done.returncode == 1
        assert "attribute .forward of" in done.stdout


TRAINER = """
import torch
class Average:
    def __init__(self, trainer):
        self.trainer, self.shadow = trainer, torch.zeros(64, 64)
class Trainer:
    def __init__(self):
        self.model = torch.nn.Linear(64, 64)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.callbacks = [Average(self)]
    def fit(self, number):
        for _ in range(6):
            loss = self.model(torch.ones(2, 64)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            {after}
def main():
    for number in range({trainers}):
        Trainer().fit(number)
main()
"""
LATEST_BATCH = "self.batch = torch.ones(2, 64)"
OWN_CYCLE = "each = Average(self); each.itself = each"


@pytest.mark.parametrize(
    ("trainers", "after", "leak"),
    [(1, LATEST_BATCH, ""), (2, LATEST_BATCH, "Average"), (1, OWN_CYCLE, "attribute .itself of Average")],
)
def test_what_a_trainer_used_until_the_end_is_no_leak(trainers, after, leak, shell_memwatch):
    """A trainer and its callbacks refer to each other. Only the last one was in use when the program ended.

    An object that each step leaves in a cycle of its own is a leak, although it leads to the trainer too.
    """
    done = shell_memwatch("leaks", "-c", TRAINER.format(trainers=trainers, after=after))
    assert done.returncode == bool(leak), done.stdout
    assert leak in done.stdout


SUBSCRIBERS = """
import torch
class App:
    def __init__(self):
        self.plugin = Plugin(self)
        self.slots = []
class Plugin:
    def __init__(self, app):
        self.app, self.palette = app, torch.zeros(16, 3)
def main():
    app = App()
    for _ in range(12):
        app.slots.append(torch.ones(32, 32))
main()
"""


def test_growth_is_named_beside_a_leak(shell_memwatch):
    """Once `main` has returned, a cycle seems to hold all memory. The list that grew is named all the same."""
    done = shell_memwatch("leaks", "-c", SUBSCRIBERS)
    assert done.returncode == 1
    assert "attribute .plugin of App" in done.stdout
    assert "added to local `app` of main" in findings(done)
    assert "attribute .slots of App (4.00 KiB in 1 tensor)" in findings(done)


SAMPLED = """
import random
def train():
    for number in range(44):
        buffer.append((torch.randn(2, 8), number))
        sample = random.sample(buffer, min(8, len(buffer)))
        epoch(sample, lambda *_: None, 1)
train()
"""
PRODUCER = """
import queue, threading
def produce():
    for _ in range(14):
        batches.put(torch.randn(2, 8))
batches = queue.Queue()
thread = threading.Thread(target=produce)
thread.start()
thread.join()
for _ in range({taken}):
    model(batches.get()).sum().backward()
"""


@pytest.mark.parametrize(
    ("program", "named"),
    [
        ("buffer = []" + SAMPLED, "global `buffer` of"),
        ("import collections; buffer = collections.deque(maxlen=100)" + SAMPLED, ""),
        (PRODUCER.format(taken=2), "global `batches` of"),
        (PRODUCER.format(taken=14), ""),
    ],
    ids=["list", "window", "queue", "emptied queue"],
)
def test_only_what_keeps_the_tensors_is_said_to_grow(program, named, shell_memwatch, tmp_path):
    """A random sample of a buffer is a new list in each step, and a queue may be empty at the end."""
    (tmp_path / "program.py").write_text(LOOP + program)
    done = shell_memwatch("leaks", "program.py")
    grown = [line for line in findings(done).split("memory grew: ")[1:] if "added to" in line]
    assert (done.returncode, len(grown)) == (0, bool(named)), done.stdout
    assert all(named in line and "sample" not in line for line in grown)


SIZES_OF_ITS_OWN = """
count = iter(range(100))
epoch(kept := [], lambda kept, loss: kept.append(torch.ones(8 if next(count) % 3 else 16)), 34)
"""


def test_growth_has_the_bytes_of_a_usual_step(shell_memwatch, tmp_path):
    """The mean of 32 and 64 bytes is the size of no tensor."""
    (tmp_path / "program.py").write_text(LOOP + SIZES_OF_ITS_OWN)
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, "`kept` of module __main__ (32 B in 1 tensor)" in findings(done)) == (0, True)


TRIALS = """
import torch
kept = {}
for trial in range(12):
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    model(torch.ones(2, 16)).sum().backward()
    kept[trial] = model
"""
LAYERS = """
import torch
kept = torch.nn.ModuleList()
for layer in range(12):
    kept.append(torch.nn.Linear(16, 16))
kept[0](torch.ones(2, 16)).sum().backward()
"""


def test_models_that_each_trial_keeps_are_named(shell_memwatch):
    """A loop that builds a model keeps parameters too, but no pass of it has a backward."""
    done = shell_memwatch("leaks", "-c", TRIALS)
    assert done.returncode == 0, done.stdout
    assert "added to global `kept` of module __main__" in findings(done)
    done = shell_memwatch("leaks", "-c", LAYERS)
    assert (done.returncode, done.stdout) == (0, "")
    assert "memory grew" not in done.stdout


REGISTRY = """
import torch
class Adapter(torch.nn.Module):
    instances = {{}}
    def __init__(self, name):
        super().__init__()
        self.down = torch.nn.Linear(8, 2)
        Adapter.instances[name] = self
for number in range(8):
    adapter = Adapter(f"adapter_{{number}}")
    {then}
"""


@pytest.mark.parametrize(
    ("then", "is_named"),
    [
        ("adapter.down(torch.ones(4, 8))", True),
        ("pass", False),
        ("adapter.half()", False),
        ("adapter.down(torch.ones(4, 8)); Adapter.instances.clear()", False),
    ],
    ids=["run", "built", "converted", "run and dropped"],
)
def test_models_that_each_pass_runs_and_keeps_are_named(then, is_named, shell_memwatch, tmp_path):
    """A loop that builds the parts of one model does not run each part in the pass that makes it."""
    (tmp_path / "program.py").write_text(REGISTRY.format(then=then))
    done = shell_memwatch("leaks", "program.py")
    assert done.returncode == 0, done.stdout
    assert ("memory grew" in done.stdout) is is_named
    assert (
        "added at: program.py:8 in __init__: `Adapter.instances[name] = self`" in findings(done)
    ) is is_named


EPISODES = """
import torch
class Episode:
    every = []
    def __init__(self):
        self.rewards = []
        {keep}
def main():
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(9):
        episode = Episode()
        episode.rewards.append((weight * 2).sum())
        optimizer.zero_grad()
        torch.stack(episode.rewards).sum().backward()
        optimizer.step()
main()
"""


@pytest.mark.parametrize(
    ("keep", "is_leak"), [("Episode.every.append(self)", True), ("Episode.every[:] = [self]", False)]
)
def test_a_container_of_a_class_is_not_named_by_the_latest_object(keep, is_leak, shell_memwatch, tmp_path):
    """The object of a running call leads to its class, too. The variable with the object does not grow."""
    (tmp_path / "program.py").write_text(EPISODES.format(keep=keep))
    done = shell_memwatch("leaks", "program.py")
    found = findings(done)
    assert done.returncode == is_leak, done.stdout
    assert ("kept alive by global `Episode` of module __main__ -> class attribute .every" in found) is is_leak
    assert ("added at: program.py:7 in __init__: `Episode.every.append(self)`" in found) is is_leak


ADAPTERS = """
def main():
    model = torch.nn.ModuleDict({"body": torch.nn.Linear(8, 8)})
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(10):
        if {forget} and "adapter" in model:
            old = optimizer.param_groups.pop()
            for parameter in old["params"]:
                optimizer.state.pop(parameter, None)
        model["adapter"] = torch.nn.Linear(8, 8)
        optimizer.add_param_group({"params": list(model["adapter"].parameters())})
        for _ in range(2):
            optimizer.zero_grad()
            model["adapter"](model["body"](torch.ones(2, 8))).square().mean().backward()
            optimizer.step()
main()
"""


@pytest.mark.parametrize("forget", [False, True])
def test_growth_has_the_advice_for_what_grows(forget, shell_memwatch, tmp_path):
    """To delete the tensors of a loop does not empty the table of an optimizer."""
    (tmp_path / "program.py").write_text("import torch" + ADAPTERS.replace("{forget}", str(forget)))
    done = shell_memwatch("leaks", "program.py")
    assert done.returncode == 0, done.stdout
    assert ("memory grew" in done.stdout) != forget
    assert (f"advice: {advice(Remedy.OPTIMIZER_STATE)}" in findings(done)) != forget


REQUESTS = """
import asyncio, torch, memwatch
watch = memwatch.LeakWatch(every=10)
class Engine:
    def __init__(self):
        self.model, self.states = torch.nn.Linear(8, 8), {}
    {watched}
    async def generate(self, name):
        self.states[name] = found = []
        with torch.inference_mode():
            for _ in range(4):
                found.append(self.model(torch.ones(1, 8)))
                await asyncio.sleep(0)
        {end}
async def main():
    engine = Engine()
    for number in range(16):
        await asyncio.gather(*(engine.generate((number, each)) for each in range(3)))
asyncio.run(main())
"""


def test_a_loop_that_awaits_tasks_is_told_of_the_watch_that_finds_its_leak(shell_memwatch, tmp_path):
    """More passes would not help."""
    (tmp_path / "program.py").write_text(REQUESTS.replace("{watched}", "").replace("{end}", ""))
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, done.stdout) == (0, "")
    assert "`watch = memwatch.LeakWatch(every=10)`, and print `watch.report()` at the end" in done.stderr
    watched = REQUESTS.replace("{watched}", "@watch") + "print(watch.report())"
    for end, named in (("", True), ("del self.states[name]", False)):
        (tmp_path / "watched.py").write_text(watched.replace("{end}", end))
        done = shell_memwatch("leaks", "watched.py")
        assert ("attribute .states of Engine" in findings(done)) is named, done.stdout


LIBRARY = """
handlers, cache = [], []
"""
REGISTERED = """
import library, torch
from library import cache
class Results:
    def __init__(self):
        self.outputs = []
results = Results()
library.handlers.append(results)
for _ in range(12):
    {kept}.append(torch.ones(32, 32))
"""


@pytest.mark.parametrize(("kept", "is_leak"), [("results.outputs", False), ("cache", True)])
def test_results_that_a_library_knows_too_are_results(kept, is_leak, shell_memwatch, tmp_path):
    """A variable of the script holds them. A cache that the script imported is the library's all the same."""
    (tmp_path / "library.py").write_text(LIBRARY)
    (tmp_path / "program.py").write_text(REGISTERED.format(kept=kept))
    done = shell_memwatch("leaks", "program.py")
    assert done.returncode == is_leak, done.stdout
    assert ("global `cache` of module library" in done.stdout) is is_leak


BATCHES_BESIDE_LOSSES = """
import collections
logs = collections.defaultdict(list)
for _ in range(14):
    batch = torch.ones(2, 8)
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    logs["batch"].append(batch)
    logs["loss"].append(loss)
"""


def test_a_leak_has_the_bytes_of_tensors_without_a_graph_too(shell_memwatch, tmp_path):
    """One dictionary gets a loss with its graph and a batch without one, and one edit frees both."""
    (tmp_path / "program.py").write_text(LOOP + BATCHES_BESIDE_LOSSES)
    done = shell_memwatch("leaks", "program.py")
    assert done.returncode == 1
    assert f"retained: {format_bytes(4 + 2 * 8 * 4)} in 2 tensors on each step" in done.stdout
    assert "memory grew" not in done.stdout


TABLES = """
import torch
EPSILON = torch.tensor(1e-16)
def window(length):
    return torch.hann_window(length)
WINDOWS = {length: window(length) for length in (16, 32)}
LEVELS = [torch.tensor([0.5, 1.0]), torch.ones(3)]
SEEN = []
def note(number):
    SEEN.append(torch.tensor([float(number)]))
"""


@pytest.mark.parametrize("is_leak", [False, True], ids=["imported", "appended"])
def test_constants_that_the_body_of_a_module_makes_are_no_leak(is_leak, shell_memwatch, tmp_path):
    """An import runs the body once. A function of the module that the program calls may leak all the same."""
    (tmp_path / "tables.py").write_text(TABLES)
    script = "import tables\n" + "for number in range(9):\n    tables.note(number)\n" * is_leak
    (tmp_path / "script.py").write_text(script)
    done = shell_memwatch("leaks", "script.py")
    assert done.returncode == is_leak
    assert ("9 tensors" in done.stdout) is is_leak
    # torch.tensor calls no op that makes memory, and its line is known even so
    assert ("tables.py:10 in note" in done.stdout) is is_leak


TRAINED_BY_IMPORT = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters())
class Log:
    kept = []
def step():
    loss = model(torch.ones(2, 8)).sum()
    loss.backward()
    optimizer.step()
    Log.kept.append(torch.ones(1000))
for _ in range(5):
    step()
"""


def test_a_program_that_is_one_import_is_checked(shell_memwatch, tmp_path):
    (tmp_path / "training.py").write_text(TRAINED_BY_IMPORT)
    (tmp_path / "script.py").write_text("import training\n")
    done = shell_memwatch("leaks", "script.py")
    assert done.returncode == 1
    assert "5 tensors" in done.stdout


LONGER = """
import torch
cell = torch.nn.GRUCell(8, 8)
optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
def train():
    state = torch.zeros(4, 8)
    for length in range(2, 14):
        {state}
        for _ in range(length):
            state = cell(torch.ones(4, 8), state)
        loss = state.square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
train()
"""


@pytest.mark.parametrize(
    ("state", "is_leak"), [("state = torch.zeros(4, 8)", False), ("state = state * 1", True)]
)
def test_a_longer_graph_is_a_leak_only_if_it_goes_on_into_earlier_steps(
    state, is_leak, shell_memwatch, tmp_path
):
    """Sequences that are sorted by length have a longer graph in each step, and it replaces the one before."""
    script = LONGER.format(state=state)
    if is_leak:  # backward of the older steps would read weights that changed since
        script = script.replace("loss = state.square()", "loss = state.detach().requires_grad_().square()")
    (tmp_path / "script.py").write_text(script)
    done = shell_memwatch("leaks", "script.py")
    assert (done.returncode, "autograd nodes" in done.stdout) == (is_leak, is_leak)


HOOKED = """
import torch
class Trainer:
    def __init__(self):
        self.model = torch.nn.Linear(32, 32)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.last = None
    def step(self, x):
        before = self.last
        def compare(grad):
            self.last = grad.clone() if before is None else grad + 0 * before
        handle = self.model.weight.register_hook(compare)
        loss = self.model(x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        {then}
        self.optimizer.step()
trainer = Trainer()
for _ in range(24):
    trainer.step(torch.ones(4, 32))
"""


@pytest.mark.parametrize(("then", "is_leak"), [("pass", True), ("handle.remove()", False)])
def test_hooks_of_a_parameter_are_found_by_its_module_and_not_by_a_loss(
    then, is_leak, shell_memwatch, tmp_path
):
    """The graph of the last loss leads to each parameter too, but the loss goes with its step."""
    (tmp_path / "script.py").write_text(HOOKED.format(then=then))
    done = shell_memwatch("leaks", "script.py")
    assert done.returncode == is_leak
    assert ("parameter 'weight' of Linear" in done.stdout) is is_leak
    assert "`loss`" not in done.stdout


DESCENT = """
import torch
def energy(x):
    return (x.sin() * x.roll(1)).sum()
def descend(x, passes):
    for _ in range(passes):
        (g,) = torch.autograd.grad(energy(x), x, create_graph=True)
        x = (x - 0.1 * g){detach}
    return energy(x).item()
descend(torch.randn(256, requires_grad=True), 20)
"""
TWO_HOLDERS = """
import torch
weight = torch.ones(64, requires_grad=True)
kept, state = [], torch.zeros(64)
def train():
    global state
    for _ in range(20):
        state = torch.tanh(state + weight)
        kept.append(state{detach})
train()
"""


def test_the_variable_that_carries_a_graph_from_pass_to_pass_is_named(shell_memwatch):
    """Each pass assigns `g` before it reads it. Its value leads to all earlier ones, but to detach it ends nothing."""
    done = shell_memwatch("leaks", "-c", DESCENT.format(detach=""))
    assert done.returncode == 1
    assert "`x` of descend" in done.stdout
    assert "`g`" not in done.stdout
    assert shell_memwatch("leaks", "-c", DESCENT.format(detach=".detach().requires_grad_()")).returncode == 0


def test_a_second_holder_of_the_same_tensors_is_named(shell_memwatch):
    """To empty the list would leave the graphs of the state."""
    done = shell_memwatch("leaks", "-c", TWO_HOLDERS.format(detach=""))
    assert done.returncode == 1
    assert "global `kept`" in done.stdout
    assert "also kept by: global `state`" in done.stdout.replace("\n      ", " ")
    assert "mends it" not in done.stdout


KEPT_ERRORS = """
import torch
class Worker:
    def __init__(self):
        self.model = torch.nn.Linear(64, 64)
        self.failed = {{}}
        self.items = []
        {own_cycle}
    def execute(self, request):
        y = self.model(torch.randn(128, 64))
        raise RuntimeError("request %d" % request)
    def handle(self, request):
        try:
            self.execute(request)
        except RuntimeError as error:
            {keep}
def serve():
    worker = Worker()
    for request in range(21):
        worker.handle(request)
serve()
"""


@pytest.mark.parametrize(
    ("keep", "own_cycle", "kinds"),
    [
        ("self.failed[request] = error", "", ["retained"]),
        ("self.failed[request] = str(error)", "", []),
        (
            "self.items.append(torch.randn(64, 64) * self.model.weight)",
            "self.me = self",
            ["retained", "cycle"],
        ),
    ],
    ids=["in the cycle", "fixed", "behind another cycle"],
)
def test_a_cycle_at_the_end_through_the_reference_of_a_leak_of_each_pass_is_the_same_leak(
    keep, own_cycle, kinds, shell_memwatch, tmp_path
):
    """The exceptions keep their worker, which keeps the exceptions. A cycle of its own is a second cause."""
    (tmp_path / "program.py").write_text(KEPT_ERRORS.format(keep=keep, own_cycle=own_cycle))
    done = shell_memwatch("leaks", "program.py")
    assert done.returncode == bool(kinds), done.stdout
    assert [
        line.split(":")[0] for line in done.stdout.splitlines() if line.startswith(("retained:", "cycle:"))
    ] == kinds


HOOKS_WITH_TENSORS = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
seen = []
def main():
    with torch.no_grad():
        for _ in range(21):
            scale = torch.randn(8)
            def hook(module, args, out, scale=scale):
                return out * scale
            handles = [module.register_forward_hook(hook) for module in net]
            net(torch.ones(2, 8))
            {then}
main()
"""


@pytest.mark.parametrize(
    ("then", "code", "has_grown"),
    [
        ("pass", 1, False),
        ("[handle.remove() for handle in handles]", 0, False),
        ("seen.append(torch.ones(8))", 1, True),
    ],
    ids=["kept", "removed", "kept beside a list"],
)
def test_tensors_that_the_hooks_of_each_pass_keep_are_no_second_report(
    then, code, has_grown, shell_memwatch, tmp_path
):
    (tmp_path / "program.py").write_text(HOOKS_WITH_TENSORS.format(then=then))
    done = shell_memwatch("leaks", "program.py")
    assert done.returncode == code, done.stdout
    assert ("hooks: 2 hooks on each iteration" in done.stdout) == bool(code)
    assert ("memory grew" in done.stdout) == has_grown
    assert done.stdout.count("_forward_hooks") <= 2 * code  # in the headline and in the path


CACHED_METHOD = """
import functools, torch
class Embedding(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = torch.nn.Linear(64, 64)
    @functools.lru_cache(maxsize={maxsize})
    def table(self, length):
        return torch.ones(length, 64)
    def forward(self, x):
        return self.proj(x + self.table(16))
def evaluate():
    with torch.no_grad():
        return Embedding()(torch.ones(1, 16, 64)).mean().item()
def main():
    for _ in range({passes}):
        evaluate(){then}
main()
"""


@pytest.mark.parametrize(
    ("maxsize", "kept"), [("None", "20.25 KiB in 3 tensors"), ("32", "16.25 KiB in 2 tensors")]
)
def test_the_models_that_the_cache_of_a_method_keeps_are_named(maxsize, kept, shell_memwatch, tmp_path):
    """Each model is an argument of a cached call. The results of a cache with a bound do not count."""
    program = CACHED_METHOD.format(maxsize=maxsize, passes=24, then="")
    (tmp_path / "program.py").write_text(program)
    done = shell_memwatch("leaks", "program.py")
    said = findings(done)
    assert done.returncode == 0
    assert (
        "added to global `Embedding` of module __main__ -> class attribute .table of class Embedding" in said
    )
    assert kept in said
    assert "made at: program.py:" in said
    assert "advice: the cache of a method keeps every `self`" in said
    assert "`__class__`" not in said
    assert "delete them in the loop" not in said


@pytest.mark.parametrize(
    ("maxsize", "then"), [("4", ""), ("None", "; Embedding.table.cache_clear()")], ids=["full", "cleared"]
)
def test_a_cache_of_a_method_that_is_full_or_cleared_does_not_grow(maxsize, then, shell_memwatch, tmp_path):
    (tmp_path / "program.py").write_text(CACHED_METHOD.format(maxsize=maxsize, passes=24, then=then))
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, done.stdout) == (0, "")


ONE_LINE_ADDS = """
import torch
kept, results = [], []
class Loop:
    def __init__(self):
        self.seen = torch.zeros(0)
    def run(self, x):
        y = x * 2
        kept.append(y)
        {then}
def main():
    loop = Loop()
    for _ in range(24):
        loop.run(torch.ones(64))
main()
"""
ADDED = "  added at: program.py:9 in run: `kept.append(y)`"
MADE = "  made at: program.py:10 in run (Tensor [{}] float32), called from program.py:14 in main"


@pytest.mark.parametrize(
    ("then", "lines"),
    [
        ("pass", [ADDED]),
        ("results.append(x + 1)", [ADDED, MADE.format("64")]),
        ("kept.clear()", []),
        ("kept.clear(); self.seen = torch.cat([self.seen, x])", [MADE.format("1280")]),
    ],
    ids=["one", "two", "cleared", "larger"],
)
def test_memory_that_grew_has_the_lines_that_add_to_it(then, lines, shell_memwatch, tmp_path):
    (tmp_path / "program.py").write_text(ONE_LINE_ADDS.format(then=then))
    done = shell_memwatch("leaks", "program.py")
    assert done.returncode == 0
    assert ("memory grew" in done.stdout) == bool(lines)
    assert sorted(line for line in done.stdout.splitlines() if " at: " in line) == lines


MADE_BEFORE_THE_OP = {
    "attribute": """
class Request:
    pass
kept = []
def step():
    request = Request()
    kept.append(request)
    request.outputs = [torch.ones(64)]
""",
    "context": """
import contextvars
state, kept = contextvars.ContextVar("state"), []
def step():
    context = contextvars.copy_context()
    kept.append(context)
    context.run(lambda: state.set([torch.ones(64)]))
""",
    "generator": """
def stream():
    keys = torch.ones(64)
    yield keys
kept = []
def step():
    tokens = stream()
    kept.append(tokens)
    next(tokens)
""",
    "task": """
import asyncio
kept = set()
async def embed():
    await asyncio.sleep(0)
    return torch.ones(64)
async def request():
    task = asyncio.create_task(embed())
    kept.add(task)
    await task
def step():
    asyncio.run(request())
""",
}


@pytest.mark.parametrize("name", MADE_BEFORE_THE_OP)
def test_an_object_that_a_pass_makes_before_its_first_op_is_kept_like_later_ones(
    name, shell_memwatch, tmp_path
):
    """A pass begins with its first op. The container with the objects grows, and not each object."""
    loop = "for _ in range(8):\n    step()\n"
    for then in ("", "    kept.clear()\n"):
        (tmp_path / "program.py").write_text(f"import torch\n{MADE_BEFORE_THE_OP[name]}{loop}{then}")
        done = shell_memwatch("leaks", "program.py")
        found = findings(done)
        assert done.returncode == 0, done.stdout
        assert ("added to global `kept` of module __main__ (256 B in 1 tensor)" in found) == (not then), found
        assert bool(re.search(r"added at: program.py:\d+ in (step|request): `kept.(append|add)", found)) == (
            not then
        )


HELPERS = """
import functools, itertools, torch
_mask = None
TABLES = [torch.randn(16, 16) for _ in range(3)]
def mask():
    global _mask
    if _mask is None:
        _mask = torch.ones(8, 8).tril()
    return _mask
@functools.cache
def scale():
    return torch.ones(8, 8)
class Rotary:
    _cos = None
    @classmethod
    def cos(cls):
        if cls._cos is None:
            cls._cos = torch.arange(8).cos()
        return cls._cos
class State:
    mean = torch.zeros(8, 8)
    def __init__(self):
        self.first = None
STATE = State()
def use(x):
    STATE.first = x if STATE.first is None else STATE.first
    State.mean = 0.9 * State.mean + 0.1 * x
    return x * mask() * scale() + Rotary.cos()
seen = []
def keep(x):
    seen.append(x)
def batches():
    while True:
        yield torch.ones(32, 32)
train, preview = itertools.tee(batches())
"""
USES_HELPERS = """
import torch
from helpers import *
for _ in range({iterations}):
    y = use(torch.randn(8, 8))
    {each}
"""


@pytest.mark.parametrize("iterations", [3, 12])
def test_what_other_modules_hold_once_is_no_leak(iterations, shell_memwatch, tmp_path):
    """A mask that is made on first use, a cache, a class attribute and a moving average of an imported module."""
    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "program.py").write_text(USES_HELPERS.format(iterations=iterations, each="pass"))
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, done.stdout) == (0, "")
    verdict = "no leaks: no iteration of the loop" if iterations == 12 else "no leaks at the end. What global"
    assert done.stderr.startswith(f"memwatch: {verdict}")
    assert "not judged" not in done.stderr, "constants that the body of the module made are no result"


@pytest.mark.parametrize("each", ["keep(y)", "next(train)"], ids=["list", "tee"])
@pytest.mark.parametrize("iterations", [3, 200])
def test_what_grows_in_another_module_is_a_leak_and_is_printed_once(
    each, iterations, shell_memwatch, tmp_path
):
    """Three iterations are too few to show growth."""
    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "program.py").write_text(USES_HELPERS.format(iterations=iterations, each=each))
    done = shell_memwatch("leaks", "program.py")
    holder = "global `seen` of module helpers" if "keep" in each else "global `preview` of module helpers"
    if iterations == 3:
        assert (done.returncode, done.stdout) == (0, "")
        assert f"not judged, because a global variable holds it: {holder}" in done.stderr
        return
    assert done.returncode == 1
    assert re.search(f"in (199|200) tensors, kept alive by {holder}", findings(done))
    assert "memory grew" not in done.stdout


INTERRUPTED = """
import memwatch.leaks.program_growth as growth
def stop(*_):
    raise {error}
growth.next_sequence_nr = stop
epoch([], lambda *_: None, 9)
"""


def test_the_traceback_of_an_interrupt_shows_no_work_of_memwatch(shell_memwatch, tmp_path):
    """The interrupt may come while memwatch notes an optimizer step. Its own errors keep their frames."""
    for error in ("KeyboardInterrupt", "ValueError"):
        (tmp_path / "program.py").write_text(LOOP + INTERRUPTED.format(error=error))
        done = shell_memwatch("leaks", "program.py")
        assert f"the program ended with {error}" in done.stderr
        assert "in stop" in done.stderr
        assert ("program_growth.py" in done.stderr) is (error == "ValueError")


def test_an_advice_that_repeats_is_printed_once(shell_memwatch, tmp_path):
    """Two lists keep graphs, and a hook has another advice."""
    keep = "epoch([[], []], lambda lists, loss: [lists[0].append(loss), lists[1].append(loss + 1)], 5)"
    (tmp_path / "program.py").write_text(LOOP + keep + "\n")
    done = shell_memwatch("leaks", "program.py")
    assert done.returncode == 1
    assert done.stdout.count("\nretained: ") == 2
    assert re.findall(r"\n  advice: (\w+ \w+)", done.stdout) == ["the container", "the same"]
    told = " ".join(done.stdout.split())
    assert told.count("; other leaks below may keep some of these nodes") == 1


MONITORS = """
import torch
model = torch.nn.Linear(64, 32)
class Monitor:
    last = None
    def __init__(self, module):
        module.register_forward_hook(self.look)
    def look(self, module, inputs, output):
        {keep}
for _ in range(9):
    Monitor(model)
    model(torch.ones(16, 64)).sum().backward()
"""
ADAPTERS_OF_HOOKS = """
import torch
model = torch.nn.Linear(64, 64)
def load():
    adapter = torch.nn.Linear(64, 4, bias=False)
    def drop(module, prefix, keep_vars):
        {keep}
    model.register_state_dict_pre_hook(drop)
for _ in range(9):
    load()
    model.state_dict()
"""


@pytest.mark.parametrize(
    ("program", "keep", "nbytes"),
    [
        (MONITORS, "self.last = output.detach().clone()", 16 * 32 * 4),
        (MONITORS, "pass", 0),
        (ADAPTERS_OF_HOOKS, "adapter.weight.data.mul_(1.0)", 64 * 4 * 4),
        (ADAPTERS_OF_HOOKS, "model.weight.data.mul_(1.0)", 0),
    ],
    ids=["replaced", "no tensor", "captured", "nothing captured"],
)
def test_hooks_have_the_bytes_that_they_keep(program, keep, nbytes, shell_memwatch, tmp_path):
    """Each iteration may run all hooks, and each hook may replace its tensor."""
    (tmp_path / "program.py").write_text(program.format(keep=keep))
    done = shell_memwatch("leaks", "program.py")
    assert done.returncode == 1
    assert "hooks: 1 hook on each iteration, registered on global `model`" in findings(done)
    line = f"and {format_bytes(nbytes)} of tensors on each iteration, which the hooks keep"
    assert (line in findings(done)) is bool(nbytes)
    assert (f"leaks 1 hook with {format_bytes(nbytes)} of tensors" in findings(done)) is bool(nbytes)
    assert ("of tensors" in done.stdout) is bool(nbytes)
