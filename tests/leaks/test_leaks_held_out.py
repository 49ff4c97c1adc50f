"""Defects that a trial with unknown programs found: memory of growing state, and classes made per call."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from memwatch.kinds.leaks import Remedy
from memwatch.leaks import LeakWatch, TensorLeakError, check_leaks, find_leaks

BUFFER = torch.zeros(0)
CACHE = {"keys": torch.ones(4, 4)}
LAYERS = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
ALL = []


class Node:
    def __init__(self, value, parent=None):
        self.value, self.parent, self.children = value, parent, []


def tree(*, child_first):
    values = torch.ones(8), torch.ones(8)
    root = Node(values[child_first])
    root.children.append(Node(values[not child_first], root))


def enlarge():
    BUFFER.resize_(BUFFER.numel() + 64)


def append_keys():
    CACHE["keys"] = torch.cat([CACHE["keys"], torch.ones(4, 4)])


def net(weight):
    class Net(nn.Module):
        constant = weight

        def __init__(self):
            super().__init__()

    return Net()


def test_a_tensor_that_begins_without_memory_and_grows_is_a_leak():
    """The first memory is a beginning; what each further call adds is growth."""
    (leak,) = find_leaks(enlarge)
    assert leak.nbytes == 256
    assert "BUFFER" in leak.holder


def test_a_watch_sees_a_tensor_that_each_call_makes_larger():
    """A new tensor may lie where a dead one lay before the first mark."""
    watch = LeakWatch()
    for _ in range(4):
        watch.mark()
        append_keys()
        append_keys()
    watch.mark()
    (leak,) = watch.leaks
    assert "CACHE" in leak.holder
    assert leak.advice == Remedy.GROWING_TENSOR.row.advice


def test_a_class_made_per_call_is_told_as_one():
    """Its cell `__class__` is not what to cut: each class refers to itself in other ways too."""
    (leak,) = find_leaks(lambda: net(torch.ones(8)))
    assert leak.advice == Remedy.CLASS_IN_CYCLE.row.advice


def test_one_more_layer_is_told_by_one_pass_but_a_replaced_one_is_not():
    """A layer of another size replaces the old one."""
    with check_leaks():
        LAYERS[1] = nn.Linear(4, 9)
    with pytest.raises(TensorLeakError, match="submodule '2' of Sequential"), check_leaks():
        LAYERS.append(nn.Linear(4, 4))


def test_what_a_growing_tensor_replaces_excuses_no_other_leak():
    """The smaller tensor that died excuses only the larger one that replaced it, not an entry of any size."""
    ALL.append(torch.ones(3))

    def step():
        append_keys()
        ALL.append(torch.ones(1000))

    with pytest.raises(TensorLeakError) as caught:
        check_leaks()(step)()
    assert sorted("ALL" in leak.holder for leak in caught.value.leaks) == [False, True]


@pytest.mark.parametrize("sites", [True, False])
@pytest.mark.parametrize("child_first", [True, False])
def test_of_a_loop_the_same_reference_is_to_be_cut_wherever_it_was_entered(child_first, sites):
    """The cut is the reference that can be made weak; a list of children cannot."""
    with pytest.raises(TensorLeakError) as caught:
        check_leaks(sites=sites)(tree)(child_first=child_first)
    (leak,) = caught.value.leaks
    assert leak.cut.name == "parent"
    assert leak.count == 2


def test_a_window_that_is_a_new_tuple_for_each_call_is_no_leak():
    """It fills up in the calls that are measured."""
    held = SimpleNamespace(window=(), all=())

    def slide():
        held.window = (*held.window[-3:], torch.ones(16))

    def grow():
        held.all = (*held.all, torch.ones(16))

    assert find_leaks(slide) == []
    (leak,) = find_leaks(grow)
    assert leak.nbytes == 64
