"""`memwatch leaks`: what a program leaves behind besides its own names is a finding."""

from __future__ import annotations

import sys

import pytest

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
import logging
logging.parked = model(torch.ones(2, 8))
"""


def test_a_program_that_keeps_only_its_own_names_is_clean(shell_memwatch):
    """Models, optimizers, results and lists at the top level are the program's own, and a line says so."""
    done = shell_memwatch("leaks", "-c", TRAINING, "--epochs", "1")
    assert (done.returncode, done.stdout) == (0, "['--epochs', '1']\n")
    assert done.stderr.startswith("memwatch: no leaks: only top-level names")
    assert "memwatch.find_leaks(step)" in done.stderr


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
    for ending in ("def f():\n    1 / 0\nf()", "x = = 1", "import sys; sys.exit(3)"):
        if verb[0] == "fit" and "sys" in ending:
            continue  # a program that ends by itself has made too few steps, which memwatch says
        (tmp_path / "program.py").write_text(ending)
        plain, ours = command(sys.executable, "program.py"), shell_memwatch(*verb, "program.py")
        assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr)


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


@pytest.mark.parametrize(("ending", "name"), [(LEAKING, "history"), (IN_A_FUNCTION, "history")])
def test_losses_kept_with_their_graphs_grow_with_each_step(ending, name, shell_memwatch, tmp_path):
    """At the end a list at the top level may be a result, and a function's list is gone. Between steps they grow."""
    (tmp_path / "program.py").write_text(LOOP + ending)
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("These leaks grow with each optimizer step")
    assert f"`{name}`" in done.stdout


@pytest.mark.parametrize(
    "ending", [DETACHED, CLEARED_EACH_EPOCH, BOUNDED], ids=["detached", "cleared", "bounded"]
)
def test_what_keeps_no_graph_or_is_emptied_does_not_grow(ending, shell_memwatch, tmp_path):
    (tmp_path / "program.py").write_text(LOOP + ending)
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, done.stdout) == (0, "")


HOOK_PER_STEP = """
epoch([], lambda _, loss: model[0].register_forward_hook(lambda *_: None), 13)
"""


def test_a_hook_of_each_step_grows(shell_memwatch, tmp_path):
    (tmp_path / "program.py").write_text(LOOP + HOOK_PER_STEP)
    done = shell_memwatch("leaks", "program.py")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[1].startswith("hooks: 1 hook on each call, registered on ")
