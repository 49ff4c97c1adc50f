"""After backward a graph has no tensors left; its nodes stay as long as a value leads to them."""

from __future__ import annotations

import inspect
import itertools
from collections import deque

import pytest
import torch

from memwatch.kinds.leaks import LeakKind
from memwatch.leaks import TensorLeakError, check_leaks, find_leaks

MODEL = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(4)])
INPUT = torch.ones(2, 8)


class Meter:
    def __init__(self):
        self.total, self.last, self.older = 0, None, torch.zeros(())
        self.calls = 0
        self.losses, self.window = [], deque(maxlen=6)


METER = Meter()


@pytest.fixture(autouse=True)
def _fresh():
    torch.set_num_threads(1)
    METER.__init__()
    yield
    METER.__init__()


def trained_loss():
    loss = MODEL(INPUT).square().mean()
    MODEL.zero_grad()
    loss.backward()
    return loss


def adds_to_a_new_total():
    """The first leak of PyTorch's FAQ."""
    METER.total = METER.total + trained_loss()


def adds_in_place():
    METER.total += trained_loss()


def adds_to_an_older_total():
    """The tensor was made before the calls. The first call gives it a graph."""
    METER.older += trained_loss()


def adds_a_detached_loss_to_an_older_total():
    METER.older += trained_loss().detach()


def assigns_to_a_part():
    """The sum with its graph goes into an older tensor, which an op changes in place."""
    METER.older[...] = METER.older + trained_loss()


def is_call(number):
    METER.calls += 1
    return METER.calls % number == 0


def adds_on_every_second_call():
    loss = trained_loss()
    if is_call(2):
        METER.total = METER.total + loss


def adds_on_every_third_call():
    loss = trained_loss()
    if is_call(3):
        METER.total = METER.total + loss


def starts_anew_on_every_seventh_call():
    METER.total = trained_loss() + (0 if is_call(7) else METER.total)


def replaces_on_every_third_call():
    loss = trained_loss()
    if is_call(3):
        METER.last = loss


def adds_a_detached_loss():
    METER.total += trained_loss().detach()


def replaces_the_last_loss():
    METER.last = trained_loss()


def keeps_a_window_of_losses():
    METER.window.append(trained_loss())


def keeps_all_losses():
    METER.losses.append(trained_loss())


def nodes_of_a_loss():
    seen, todo = set(), [trained_loss().grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [after for after, _ in node.next_functions]
    return len([node for node in seen if type(node).__name__ != "AccumulateGrad"])


@pytest.mark.parametrize("runs", [3, "auto"])
@pytest.mark.parametrize("step", [adds_to_a_new_total, adds_in_place])
def test_a_total_of_losses_leaks_the_nodes_of_each_loss(step, runs):
    """Each step adds the nodes of its loss, and one for the sum. No tensor's memory grows."""
    (leak,) = find_leaks(step, runs=runs)
    assert leak.kind is LeakKind.GRAPH
    assert leak.count == leak.graph_nodes == nodes_of_a_loss() + 1
    assert leak.nbytes == 512 * leak.count
    assert "attribute .total of Meter" in leak.holder


def adds_to_two_totals():
    METER.total, METER.other = METER.total + trained_loss(), METER.other + MODEL[0].weight.sum()


def adds_to_a_total_and_keeps_its_mean():
    METER.calls += 1
    METER.total = METER.total + trained_loss()
    METER.other = METER.total / METER.calls


@pytest.mark.parametrize(
    ("step", "names"),
    [
        (adds_to_two_totals, ["attribute .other", "attribute .total"]),
        (adds_to_a_total_and_keeps_its_mean, ["attribute .total"]),
    ],
)
def test_each_of_two_totals_is_named(step, names):
    METER.other = 0
    leaks = find_leaks(step)
    assert {leak.kind for leak in leaks} == {LeakKind.GRAPH}
    assert sorted(leak.reference.rpartition(" of ")[0] for leak in leaks) == names


def test_a_total_from_before_the_calls_leaks_the_nodes_of_each_loss():
    (leak,) = find_leaks(adds_to_an_older_total)
    assert (leak.kind, leak.count, leak.every) == (LeakKind.GRAPH, nodes_of_a_loss() + 1, 1)
    assert "attribute .older of Meter" in leak.holder


def line_of(step):
    """Return the last line of a function, as a leak names it."""
    lines, first = inspect.getsourcelines(step)
    return f"test_leaks_graph_nodes.py:{first + len(lines) - 1} in {step.__name__}"


@pytest.mark.parametrize(
    "step", [adds_to_a_new_total, adds_in_place, adds_to_an_older_total, assigns_to_a_part]
)
def test_the_line_that_adds_to_a_graph_is_named(step):
    """A change in place makes no storage. The line that made the storage may be far away, or unknown."""
    (leak,) = find_leaks(step)
    assert leak.kind is LeakKind.GRAPH
    assert leak.site.endswith(line_of(step))
    with pytest.raises(TensorLeakError) as caught, check_leaks():
        step()
    [leak] = caught.value.leaks
    assert leak.site.endswith(line_of(step))


def test_only_the_last_recorded_change_counts():
    """A change without a graph, as of a running mean, is not where the graph grew."""

    def step():
        adds_to_an_older_total()
        with torch.no_grad():
            METER.older.mul_(0.5)

    (leak,) = find_leaks(step)
    assert leak.site.endswith(line_of(adds_to_an_older_total))


@pytest.mark.parametrize(
    ("step", "runs", "every"),
    [
        (adds_on_every_second_call, "auto", 2),
        (adds_on_every_second_call, 8, 2),
        (adds_on_every_third_call, "auto", 3),
    ],
)
def test_a_total_that_some_calls_add_to_leaks(step, runs, every):
    (leak,) = find_leaks(step, runs=runs)
    assert (leak.kind, leak.every) == (LeakKind.GRAPH, every)
    assert abs(leak.count - nodes_of_a_loss() - 1) <= 1
    assert f"on one call in {every}" in leak.headline()


@pytest.mark.parametrize(
    "step",
    [
        adds_a_detached_loss_to_an_older_total,
        starts_anew_on_every_seventh_call,
        replaces_on_every_third_call,
    ],
)
def test_graphs_that_are_let_go_after_some_calls_do_not_leak(step):
    assert find_leaks(step) == []


@pytest.mark.parametrize("runs", [3, "auto"])
@pytest.mark.parametrize(
    "step", [adds_a_detached_loss, replaces_the_last_loss, keeps_a_window_of_losses, trained_loss]
)
def test_steps_that_keep_no_more_graphs_do_not_leak(step, runs):
    assert find_leaks(step, runs=runs) == []


def test_a_list_of_losses_says_how_many_nodes_it_keeps():
    """One edit ends both, so they are one leak."""
    (leak,) = find_leaks(keeps_all_losses)
    assert leak.kind is LeakKind.RETAINED
    assert leak.graph_nodes == nodes_of_a_loss()
    assert f"and {leak.graph_nodes} autograd nodes on each call" in str(leak)


def test_a_loss_of_every_second_call_has_the_nodes_of_one_graph():
    """The nodes are those of a call that leaks, as the bytes are."""
    calls = itertools.count()

    def keeps_every_second_loss():
        loss = trained_loss()
        if next(calls) % 2:
            METER.losses.append(loss)

    (leak,) = find_leaks(keeps_every_second_loss)
    assert (leak.every, leak.count) == (2, 1)
    assert leak.graph_nodes == nodes_of_a_loss()


def carries_a_detached_state():
    METER.last = torch.tanh(INPUT if METER.last is None else METER.last.detach() * 2 + trained_loss())


def negates_a_loss():
    """The graph goes on, but no op of it was there before: the value is made in two parts."""
    METER.last = trained_loss() if METER.last is None else -METER.last


@pytest.mark.parametrize("step", [adds_to_a_new_total, adds_in_place, adds_to_an_older_total])
def test_one_pass_shows_a_graph_that_goes_on_into_an_older_one_of_its_op(step):
    """It belongs to a new tensor, or to one from before the block that the block changed in place."""
    for _ in range(3):
        step()
    with pytest.raises(TensorLeakError) as caught, check_leaks():
        step()
    [leak] = caught.value.leaks
    assert leak.kind is LeakKind.GRAPH
    assert leak.count == nodes_of_a_loss() + 1
    assert "of tensors" not in str(caught.value)


@pytest.mark.parametrize(
    "call", [carries_a_detached_state, negates_a_loss, adds_a_detached_loss_to_an_older_total]
)
def test_one_pass_finds_no_fault_with_a_graph_that_begins_anew(call):
    call()
    with check_leaks():
        call()
    METER.__init__()


def test_find_leaks_sees_a_total_that_had_a_graph_before_the_calls():
    adds_to_an_older_total()
    (leak,) = find_leaks(adds_to_an_older_total)
    assert (leak.kind, leak.count, leak.every) == (LeakKind.GRAPH, nodes_of_a_loss() + 1, 1)


def test_a_name_whose_tensor_the_block_changes_in_place_is_older_than_the_block():
    """The assignment in `total += loss` binds the name to the same tensor."""
    total = torch.zeros(())
    total += trained_loss()
    with pytest.raises(TensorLeakError, match="`total`"), check_leaks():
        total += trained_loss()
    total = torch.zeros(())
    total += trained_loss().detach()
    with check_leaks():
        total += trained_loss().detach()


def test_a_state_that_is_changed_in_place_without_a_graph_is_no_leak():
    """As a moving average, a running mean, and a value that a block detaches in place."""
    METER.last = torch.zeros(())
    for _ in range(2):
        with check_leaks():
            METER.older.mul_(0.9).add_(trained_loss().detach())
            METER.last += trained_loss()
            METER.last.detach_()


def test_a_graph_that_only_a_name_of_the_block_holds_is_no_leak():
    for _ in range(3):
        adds_to_a_new_total()
    with check_leaks():
        total = METER.total + trained_loss()
    assert total.grad_fn is not None
