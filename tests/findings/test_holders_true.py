"""The words of a holder claim no more than is known: its kind, and references that samples may miss or that last."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memwatch
from memwatch.analysis.facts.names import _by_suffix

WIDE = 200


class Cache:
    keys = None

    def extended(self, more):
        self.keys = more if self.keys is None else torch.cat([self.keys, more], 1)
        return self.keys


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(64, 128)

    def forward(self, x, cache):
        query, new = self.project(x).chunk(2, -1)
        keys = cache.extended(new)
        return torch.softmax(query @ keys.transpose(1, 2), -1) @ keys


def test_what_is_held_is_told_with_the_object_that_keeps_it():
    """A view in a local variable ends with the call; the cache is why it is alive in the next."""
    attention, cache = Attention(), Cache()
    with memwatch.profile() as prof, torch.no_grad():
        x = torch.ones(8, 100, 64)
        for _ in range(6):
            x = attention(x, cache)[:, -1:]
    made = prof.at_peak[prof.at_peak["origin"] == "op"]  # other tests may have left tensors in the process
    held = made[made["category"] == "held"]
    assert len(held)
    assert held["holder"].str.contains("keys").all(), held["holder"].tolist()


def test_within_a_step_of_an_optimizer_no_word_says_where_a_value_is():
    """It may be in a variable of the optimizer's, on an evaluation stack or in C++."""
    net = nn.Linear(WIDE, WIDE)
    optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
    with memwatch.profile(holders=False) as prof:
        for _ in range(3):
            net(torch.ones(8, WIDE)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    within = prof.at_peak[prof.at_peak["holder"].str.contains("optimizer's step")]
    assert len(within)
    assert set(within["holder_kind"]) == {"optimizer step"}


def test_a_gradient_that_a_hook_takes_is_not_said_to_be_in_no_variable():
    """Autograd hands it on in a new tensor, which a look does not recognise: it lies in a list."""
    net, taken = nn.Linear(WIDE, WIDE), []

    def take(parameter):
        taken.append(parameter.grad)
        parameter.grad = None

    net.weight.register_post_accumulate_grad_hook(take)
    with memwatch.profile() as prof:
        for _ in range(3):
            net(torch.ones(8, WIDE)).sum().backward()
        large = torch.zeros(WIDE, WIDE * 6)
        large * 2
    gradients = prof.at_peak[prof.at_peak["op_name"] == "aten.mm.default"]
    assert len(gradients) == len(taken)
    assert "evaluation stack" not in set(gradients["holder_kind"])


def collect(kept):
    for number in range(6):
        full = torch.full((WIDE, WIDE), float(number))
        kept.append(full * 2)


def use_up(kept):
    for number in range(6):
        full = torch.full((WIDE, WIDE), float(number))
        kept = full * 2
    return kept


@pytest.mark.parametrize(("run", "category"), [(collect, "held"), (use_up, "temporary")])
def test_what_a_plain_loop_keeps_in_a_container_is_held(run, category):
    """A list holds tensors of earlier passes. A variable holds its tensor until the next pass."""
    kept = []
    with memwatch.profile() as prof:
        run(kept)
    made = prof.at_peak[(prof.at_peak["op_name"] == "aten.mul.Tensor") & (prof.at_peak["nbytes"] > WIDE)]
    told = made[made["category"] == category]
    # the tensor of the running pass is not in the list yet
    assert told["nbytes"].sum() >= made["nbytes"].sum() - WIDE * WIDE * 4
    assert not told["rule"].str.contains("into the next iteration|a later iteration").any()


def collect_in_one_line(kept):
    for number in range(6):
        kept.append(torch.full((WIDE, WIDE), float(number)) * 2)


def use_up_in_one_line(kept):
    for number in range(6):
        kept = torch.full((WIDE, WIDE), float(number)) * 2
    return kept


def add_up_in_one_line(kept):
    """One sum of several terms: its ops repeat in one line, too."""
    one = torch.ones(WIDE, WIDE)
    kept.append(one * 1 + one * 2 + one * 3 + one * 4 + one * 5)


@pytest.mark.parametrize(
    ("run", "category"),
    [(collect_in_one_line, "held"), (use_up_in_one_line, "temporary"), (add_up_in_one_line, "temporary")],
)
def test_a_loop_of_which_one_line_calls_ops_has_passes(run, category):
    kept = []
    with memwatch.profile() as prof:
        run(kept)
        torch.stack(kept or [torch.ones(WIDE, WIDE)]).sum()
    made = prof.at_peak[(prof.at_peak["op_name"] == "aten.mul.Tensor") & (prof.at_peak["nbytes"] > WIDE)]
    assert set(made["category"]) == {category}
    assert run is not collect_in_one_line or len(made) == 6


def test_what_waits_in_a_list_for_its_use_is_not_held():
    """The list is gone before the block ends: nothing keeps it on purpose."""
    with memwatch.profile() as prof:
        kept = []
        collect(kept)
        torch.stack(kept).sum()
        kept.clear()
    made = prof.storages[(prof.storages["op_name"] == "aten.mul.Tensor") & (prof.storages["nbytes"] > WIDE)]
    assert set(made["category"]) == {"temporary"}


def test_the_largest_of_a_kind_stands_behind_a_colon():
    """A holder's text is not always a noun: "by saved by" would not be English."""
    net = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Tanh(), nn.Linear(WIDE, 2 * WIDE), nn.Tanh())
    with memwatch.profile() as prof:
        net(torch.ones(8 * WIDE, WIDE)).sum().backward()
    assert "iB: saved by " in prof.summary(color=False, width=160)


def test_a_module_is_known_by_the_end_of_its_name_that_is_its_alone():
    """FSDP names modules from its own root. A name that two modules end in belongs to neither."""
    known = _by_suffix(["net", "net.head", "other.head", "net.layers.0", "layers.0"])
    assert known["net.head"] == "net.head"
    assert known["0"] == ""
    assert known["head"] == ""
    assert known["layers.0"] == "layers.0"


def test_a_loop_over_one_line_is_not_said_to_be_one_call_into_c():
    """If samples are off, tensors of earlier passes count as unseen, because Python ran between two passes."""
    net, x = nn.Linear(64, WIDE), torch.ones(500, 64)
    with memwatch.profile(holders=False) as prof, torch.no_grad():
        through_module = [net(x) for _ in range(4)]
        plain = [torch.full((501, WIDE), 1.0) for _ in range(4)]
    made = prof.at_peak[prof.at_peak["origin"] == "op"]
    of_passes_before = made[made.index <= made.index.max() - 2]
    assert len(of_passes_before) >= len(through_module) + len(plain) - 2
    assert set(of_passes_before["holder_kind"]) == {"not seen"}


def test_what_one_call_into_c_makes_is_its_own_while_it_runs():
    """The clean twin: a recurrent net runs its passes in C++, from one line of torch's."""
    net, x = nn.GRU(32, WIDE), torch.ones(6, 64, 32)
    with memwatch.profile(holders=False) as prof, torch.no_grad():
        net(x)
    assert prof.at_peak["holder"].str.contains(r"call into C\+\+ that runs").any()
