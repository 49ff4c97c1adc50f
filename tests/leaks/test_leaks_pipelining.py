"""The leaks that pytorch #136507 and #136584 fixed in pipelining, put back; and today's code, clean."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from memwatch.leaks import find_leaks

DELETED = 'del param_group["intermediates"]'
FOUND_BY_NAME = "            extract_tensors_with_grads,\n        ):"


def todays_backward():
    """Import it late: it brings torch's compiler, which makes the heap that other tests search half as large again."""
    from torch.distributed.pipelining import _backward

    return _backward


def patched(tmp_path, *changes):
    """Return torch's backward module with pieces of its source replaced; each piece must be there."""
    source = inspect.getsource(todays_backward())
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    path = tmp_path / "leaky_backward.py"
    path.write_text(source)
    module = ModuleType("leaky_backward")
    module.__dict__.update(__package__="torch.distributed.pipelining", __file__=str(path))
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def recursive_closure(tmp_path):
    """The inner function finds itself through its closure again, instead of getting itself as an argument."""
    return patched(
        tmp_path,
        (FOUND_BY_NAME, "        ):"),
        (
            "                        gv,\n                        extract_tensors_with_grads,",
            "                        gv,",
        ),
        ("output_val[k], grad_val[k], extract_tensors_with_grads", "output_val[k], grad_val[k]"),
        ("stage_output, output_grads, extract_tensors_with_grads", "stage_output, output_grads"),
    )


def hooks_stay(tmp_path, *changes):
    """The split hooks stay on their nodes and the groups keep the nodes."""
    loop = "        for handle in handles:\n            handle.remove()\n"
    remove = f"    finally:\n{loop}\n\ndef stage_backward_weight"
    return patched(
        tmp_path,
        (remove, "    finally:\n        pass\n\n\ndef stage_backward_weight"),
        (DELETED, "pass"),
        *changes,
    )


def split_backward(module):
    """One microbatch of a zero-bubble stage: backward for the inputs, later for the weights."""
    layers = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))

    def run():
        layers.zero_grad()
        x = torch.randn(8, 16, requires_grad=True)
        loss = layers(x).sum()
        _, groups = module.stage_backward_input([loss], None, [x], layers.parameters())
        module.stage_backward_weight(layers.parameters(), groups)

    return run


def full_backward(module):
    layers = nn.Linear(16, 16)

    def run():
        layers.zero_grad()
        x = torch.randn(8, 16, requires_grad=True)
        out = layers(x)
        module.stage_backward([out], [torch.ones_like(out)], [x])

    return run


@pytest.mark.whole
def test_the_recursive_closure_is_a_cycle(tmp_path):
    """The holder names the inner function's own cell; gc would free it."""
    leaks = find_leaks(full_backward(recursive_closure(tmp_path)))
    assert {leak.kind for leak in leaks} == {"cycle"}
    assert "closure cell `extract_tensors_with_grads`" in leaks[0].holder
    assert "leaky_backward.py" in str(leaks[0])


@pytest.mark.whole
def test_param_groups_that_keep_their_intermediates_are_found(tmp_path):
    """Hook, cell, param_group, intermediates, hook: the words a person needs to write `del`."""
    leaks = find_leaks(split_backward(hooks_stay(tmp_path)))
    assert leaks
    text = str(leaks[0])
    for word in ("param_group", "'intermediates'", "hook"):
        assert word in leaks[0].holder, text
    assert leaks[0].kind in {"cycle", "uncollectable"}


@pytest.mark.whole
def test_a_group_that_also_holds_the_root_node_is_uncollectable(tmp_path):
    """With the root of the graph in the group gc cannot free the loop."""
    kept = 'param_group["intermediates"] = intermediates\n'
    more = (kept, f'{kept}            param_group["root"] = stage_output_grad_fns\n')
    leaks = find_leaks(split_backward(hooks_stay(tmp_path, more)))
    assert "uncollectable" in {leak.kind for leak in leaks}, str(leaks[0])
    for word in ("param_group", "hook"):
        assert word in leaks[0].holder, str(leaks[0])


def test_todays_backward_is_clean():
    """The unpatched functions leave nothing."""
    assert find_leaks(full_backward(todays_backward())) == []
    assert find_leaks(split_backward(todays_backward())) == []


def test_real_schedules_on_two_ranks_are_clean(tmp_path):
    """1F1B and the native zero-bubble schedule, over gloo: no leak on any rank."""
    command = [sys.executable, str(Path(__file__).with_name("pipeline_worker.py")), str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("zero_bubble=False leaks=0\n") == 2, done.stdout
    assert done.stdout.count("zero_bubble=True leaks=0\n") == 2, done.stdout
