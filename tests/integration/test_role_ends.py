"""Roles end: a tensor that was a gradient, optimizer state, a parameter or a buffer has the role of the peak."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memwatch
from memwatch.record.holders import state

BOTH = pytest.mark.parametrize(
    "intercept", ["key-native", "mode-native", "key-python", "mode-python"], indirect=True
)
IN, OUT = 211, 97
WEIGHT = 4 * IN * OUT


def rise():
    high = torch.zeros(WEIGHT, 2)
    high + 1


def of_weight(prof):
    """Return the memory at the peak that is as large as the weight, which nothing else in these programs is."""
    return prof.at_peak[prof.at_peak["nbytes"] == WEIGHT]


def taken_out(intercept, *, peak_first):
    """Profile a program that takes a gradient out of its place, before or after the peak."""
    net = nn.Linear(IN, OUT, bias=False)
    with memwatch.profile(intercept=intercept) as prof:
        net(torch.ones(4, IN)).sum().backward()
        if peak_first:
            rise()
        taken = net.weight.grad
        net.zero_grad()
        rise() if not peak_first else torch.ones(3)
        del taken
    return prof


@BOTH
def test_after_its_end_the_variable_that_keeps_it_holds(intercept):
    """A sample that finds the memory alive outside its role ends the role. The rule names the old role."""
    kept = of_weight(taken_out(intercept, peak_first=False)).query("category != 'parameter'")
    assert kept["category"].tolist() == ["temporary"]  # it goes before another iteration
    assert kept["rule"].str.startswith("it was grad of weight until before op").all()
    assert (kept["holder_kind"].tolist(), kept["holder_evidence"].tolist()) == (["local"], ["seen"])


@BOTH
def test_before_its_end_the_role_holds(intercept):
    """At the peak the gradient was in its place. torch's own records show it, although it is removed later."""
    gradient = of_weight(taken_out(intercept, peak_first=True)).query("category != 'parameter'")
    assert gradient["category"].tolist() == ["gradient"]
    assert gradient["holder_kind"].tolist() == ["gradient"]
    assert gradient["holder_evidence"].tolist() == ["structure"]


@BOTH
def test_a_gradient_that_nothing_keeps_dies_with_its_place(intercept):
    """To know gradients beyond their backward extends no life."""
    net = nn.Linear(IN, OUT, bias=False)
    with memwatch.profile(intercept=intercept) as prof:
        for _ in range(3):
            net(torch.ones(4, IN)).sum().backward()
            net.zero_grad()
        rise()
    assert of_weight(prof)["category"].tolist() == ["parameter"]
    made = prof.storages[(prof.storages["nbytes"] == WEIGHT) & prof.storages["op"].ge(0)]
    assert made["category"].tolist() == ["gradient"] * 3
    assert (made["death_event"] >= 0).all()


def test_a_functional_call_ends_no_role():
    """`torch.func.functional_call` gives a module other parameters for one call; its own are then not sampled."""
    net = nn.Linear(IN, OUT, bias=False)
    with memwatch.profile() as prof:
        other = {"weight": torch.zeros(OUT, IN)}
        torch.func.functional_call(net, other, torch.ones(WEIGHT, IN))
    found = dict(zip(of_weight(prof)["category"], of_weight(prof)["holder"]))
    assert found["parameter"] == "parameter `weight` (inferred: found in this role before and after)"
    assert prof.capture.rows("role_ends") == 0


def test_memory_that_is_new_in_a_role_has_it_at_the_next_look():
    """`parameter.data = ...` ends the role of the old memory, and begins the role of the new memory."""
    net = nn.Linear(IN, OUT, bias=False)
    with memwatch.profile() as prof:
        net(torch.ones(4, IN))
        before = net.weight.data
        net.weight.data = torch.zeros(OUT, IN)
        rise()
    rows = of_weight(prof).set_index("category")
    assert rows.loc["parameter", "op_name"] == "aten.zeros.default"
    assert rows.loc["parameter", "name"] == "weight"
    assert "`before`" in rows.loc["held", "holder"]
    del before


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(IN, OUT, bias=False), nn.Linear(OUT, 7, bias=False)

    def forward(self, x):
        return self.head(self.body(x))


def test_a_module_that_is_replaced_gives_its_name_away():
    """After the replacement the new one is called so; until then, the old one."""
    net = Classifier()
    with memwatch.profile() as prof:
        net(torch.ones(4, IN))
        old = net.head
        net.head = nn.Linear(OUT, 9, bias=False)
        net(torch.ones(4, IN))
        rise()
    names = {row.nbytes: row.name for row in prof.at_peak.query("category == 'parameter'").itertuples()}
    assert names[4 * 9 * OUT] == "head.weight"
    assert names[4 * 7 * OUT] == "head (former).weight"

    net.head = old
    with memwatch.profile() as prof:
        net(torch.ones(4, IN))
        rise()
        net.head = nn.Linear(OUT, 9, bias=False)
        net(torch.ones(4, IN))
    names = {row.nbytes: row.name for row in prof.at_peak.query("category == 'parameter'").itertuples()}
    assert names[4 * 7 * OUT] == "head.weight"


def test_a_module_that_is_wrapped_is_told_where_it_is():
    """As adapters do it: the former `body` is inside the module that took its place."""
    net = Classifier()
    with memwatch.profile() as prof:
        net(torch.ones(4, IN))
        net.body = nn.Sequential(net.body, nn.Identity())
        net(torch.ones(4, IN))
        rise()
    names = {row.nbytes: row.name for row in prof.at_peak.query("category == 'parameter'").itertuples()}
    assert names[WEIGHT] == "body.0.weight"


@pytest.fixture
def no_look_in_the_block(monkeypatch):
    """As in a program of very many modules: no sample of the roles is affordable before the block ends."""
    for limit in ("_FREE_ROLE_LOOKS", "_FREE_OF_ROLE_LOOKS", "_FREE_OF_SMALL_PROGRAMS", "_ROLE_LOOKS_RATIO"):
        monkeypatch.setattr(state, limit, 0)


def cleared_state(*, clear):
    """Profile a program whose optimizer's state is in a list too, and perhaps there alone at the peak."""
    net = nn.Linear(IN, OUT, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    with memwatch.profile() as prof:
        net(torch.ones(4, IN)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept = [state["momentum_buffer"] for state in optimizer.state.values()]
        if clear:
            optimizer.state.clear()
        rise()
        del kept
    return of_weight(prof).query("category != 'parameter'")


@pytest.mark.usefixtures("no_look_in_the_block")
@pytest.mark.words
def test_a_role_that_nobody_looked_at_since_is_inferred():
    """A tensor that left its role and died between two samples is inferred. Only the earlier sample is evidence."""
    state = cleared_state(clear=True)
    assert state["holder_evidence"].tolist() == ["inferred"]
    assert "last found in this role before" in state["holder"].item()
    assert state["rule"].item().startswith("inferred: ")


@pytest.mark.usefixtures("no_look_in_the_block")
@pytest.mark.words
def test_a_later_look_makes_likely_what_was_before():
    """A tensor with the same role before the peak and at the block's end most likely had it at the peak."""
    state = cleared_state(clear=False)
    assert (state["category"].tolist(), state["holder_evidence"].tolist()) == (
        ["optimizer state"],
        ["inferred"],
    )
    assert state["rule"].item().endswith("at the searches before and after")


def gradient_kept_by_hand(take):
    """Profile a program whose gradient is in a list alone once `take` has taken it out."""
    net, kept = nn.Linear(IN, OUT, bias=False), []
    with memwatch.profile() as prof:
        take(net, kept)
        torch.zeros(WEIGHT, 3)
        kept.clear()
    return of_weight(prof).query("category != 'parameter'")


def after_backward(net, kept):
    net(torch.ones(4, IN)).sum().backward()
    kept.append(net.weight.grad)
    net.weight.grad = None


class Rises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        for _ in range(3):
            rise()
        return grad


def in_a_hook_of_backward(net, kept):
    first = nn.Linear(IN, IN, bias=False)

    def take(_):
        kept.append(net.weight.grad)
        net.weight.grad = None

    first.weight.register_post_accumulate_grad_hook(take)
    x = torch.ones(4, IN, requires_grad=True)
    net(first(Rises.apply(x))).sum().backward()


@pytest.mark.parametrize("take", [after_backward, in_a_hook_of_backward])
@pytest.mark.parametrize("looks", ["all", "none"])
@pytest.mark.words
def test_a_gradient_that_was_taken_out_is_told_as_kept(take, looks, request):
    """From the next op on, and during the same backward, it is not a gradient.

    memwatch claims this only after a sample.
    """
    if looks == "none":
        request.getfixturevalue("no_look_in_the_block")
    found = gradient_kept_by_hand(take)
    claims = found[found["holder_evidence"].isin(["seen", "structure"])]
    assert not claims["holder_kind"].eq("gradient").any()
    assert looks == "none" or "`kept`" in found["holder"].item()


@BOTH
@pytest.mark.parametrize("taken_out", [True, False])
def test_what_the_looks_before_and_after_the_peak_found_is_inferred(intercept, taken_out):
    """A weight that is taken out and put back between two looks is in its place at both: none tells it from others."""
    net, other = nn.Linear(IN, OUT, bias=False), torch.ones(OUT, IN)
    with memwatch.profile(intercept=intercept) as prof:
        net(torch.ones(4, IN))
        large, own = torch.zeros(WEIGHT, 4), net.weight.data
        if taken_out:
            net.weight.data = other
        small = torch.zeros(WEIGHT // 20, 4)  # the peak, at which too little is new for a look
        net.weight.data = own
        del own, small, large
    own, *_ = of_weight(prof).query("category == 'parameter'").itertuples()
    assert (
        own.rule
        == "inferred: it is a parameter of a module or of an optimizer at the searches before and after"
    )
    assert own.holder.endswith("(inferred: found in this role before and after)")
    assert own.holder_evidence == "inferred"
