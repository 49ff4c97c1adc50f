"""Findings about loops describe the pass that runs: its own memory, memory left by the last pass, and its reads."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import nn

import memwatch
from memwatch.words.findings import holder_at

WIDE = 200


def found(prof):
    return {(str(finding.kind), finding.holder.split("`")[1]) for finding in prof.findings}


def distill(*, drops):
    teacher, student = nn.Linear(WIDE, WIDE).requires_grad_(False), nn.Linear(WIDE, WIDE)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    with memwatch.profile() as prof:
        for _ in range(3):
            x = torch.randn(2 * WIDE, WIDE)
            told, said = teacher(x), student(x)
            loss = nn.functional.kl_div(said.log_softmax(-1), told.softmax(-1), reduction="batchmean")
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
            if drops:
                del told, said
    return prof


def test_what_a_pass_made_itself_is_not_of_the_last_pass():
    """Dropping it at the loop's end changes nothing, and the finding stays the same: it is to go after its last use."""
    kept, dropped = distill(drops=False), distill(drops=True)
    assert kept.peak_bytes == dropped.peak_bytes
    assert found(kept) == found(dropped)
    assert ("drag", "told") in found(kept)
    assert "iteration" not in {kind for kind, _ in found(kept)}


def test_what_the_last_pass_left_is_of_the_last_pass():
    """The last use was before this pass began. Without this memory the peak equals the predicted one."""

    def run(*, drops):
        with memwatch.profile() as prof:
            for _ in range(3):
                x = torch.ones(WIDE, WIDE)
                big = torch.cat([x * 2, x * 3])
                big.sum()
                if drops:
                    del big
        return prof

    kept, dropped = run(drops=False), run(drops=True)
    assert "iteration" in {kind for kind, _ in found(kept)}
    assert "iteration" not in {kind for kind, _ in found(dropped)}


def test_an_average_that_each_pass_reads_and_replaces_is_no_finding():
    """A `del` after its last use would have to be inside the statement that gives it its next value."""
    data = torch.ones(50, WIDE)
    with memwatch.profile() as prof:
        running = torch.zeros(WIDE, WIDE)
        for _ in range(4):
            running = running * 0.9 + (data.t() @ data) * 0.1
            prof.step()
    assert not prof.findings


def test_averaged_weights_do_not_wait_for_the_next_pass():
    """They are made in one pass for the next: nothing could make them later."""
    weights = {name: torch.ones(WIDE, WIDE) for name in "ab"}
    with memwatch.profile() as prof:
        for _ in range(4):
            for name, value in list(weights.items()):
                weights[name] = value * 0.99 + 0.01
            extra = torch.ones(WIDE, WIDE) * 2
            del extra
            prof.step()
    assert "lag" not in {str(finding.kind) for finding in prof.findings}


def test_what_a_module_is_called_with_does_not_wait_in_its_call():
    """The argument is passed on as `*args`.

    This tuple is not a container of the program, so an edit could not delay it.
    """

    class Unpacked(nn.Linear):
        def forward(self, x):
            weight = self.weight.half().float() * 1.0
            return x @ weight.t()

    net = nn.Sequential(Unpacked(WIDE, 2 * WIDE), nn.ReLU(), Unpacked(2 * WIDE, WIDE))
    with torch.inference_mode(), memwatch.profile() as prof:
        for _ in range(8):
            net(torch.ones(WIDE, WIDE)).clone()
    assert "lag" not in {str(finding.kind) for finding in prof.findings}


def test_the_site_of_a_finding_stands_before_what_is_remarked_of_its_holder():
    """The reported line is the holder's, not the line of the rule that inferred it."""
    for finding in distill(drops=False).findings:
        assert finding.holder.endswith(finding.remark)
        named = finding.holder.removesuffix(finding.remark)
        told = holder_at(finding.holder, "file.py:1", finding.remark)
        assert told == f"{named} at file.py:1{finding.remark}"


def test_gradients_are_idle_from_the_step_over_their_zeroing_to_the_next_addition():
    """In every iteration but the last, each by itself; the last is followed by no addition."""
    net = nn.Linear(WIDE, WIDE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with memwatch.profile() as prof:
        for number in range(4):
            x = torch.ones(8, WIDE)
            (net(x) * 2).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            if number < 3:
                torch.ones(4 * WIDE, WIDE)
    assert "set_to_none" in {str(finding.kind) for finding in prof.findings}


def net_with_steps(*, zero_first, warmup=0):
    """Return a net, and a step that zeroes the gradients before the forward or after it."""
    net = nn.Sequential(*[nn.Linear(WIDE, WIDE) for _ in range(6)])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x = torch.randn(WIDE // 2, WIDE)

    def step():
        if zero_first:
            optimizer.zero_grad()
        loss = net(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for _ in range(warmup):
        step()
    return net, step


@pytest.mark.parametrize("steps", [1, 3])
def test_gradients_of_a_warm_up_before_the_block_are_found_alive_in_its_forward(steps):
    """Without them the peak is the same as in a program that zeroes its gradients before the forward."""

    def profiled(*, zero_first):
        _, step = net_with_steps(zero_first=zero_first, warmup=1)
        with memwatch.profile() as prof:
            for _ in range(steps):
                step()
        return prof

    prof, mended = profiled(zero_first=False), profiled(zero_first=True)
    (finding,) = prof.findings
    assert finding.kind == "gradient"
    assert finding.predicted_peak_bytes == mended.peak_bytes < prof.peak_bytes
    assert mended.findings == []


def test_gradients_from_before_the_block_that_are_read_in_it_or_after_it_are_not_found():
    """The blocks add to gradients, only evaluate, or begin with the optimizer's step."""
    net, step = net_with_steps(zero_first=True, warmup=1)
    x = torch.randn(WIDE // 2, WIDE)
    with memwatch.profile() as adds:
        net(x).sum().backward()
    with memwatch.profile() as evaluates, torch.no_grad():
        net(x).sum()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with memwatch.profile() as updates:
        optimizer.step()
        optimizer.zero_grad()
        step()
    assert [prof.findings for prof in (adds, evaluates, updates)] == [[], [], []]


class Session:
    """Registers itself in its class, with the state of the last round of its loop."""

    opened: ClassVar[list[Session]] = []

    def __init__(self):
        self.states = {}
        Session.opened.append(self)

    def generate(self):
        for _ in range(4):
            self.states["k"] = self.states.get("k", torch.ones(WIDE, WIDE)) * 2
            self.states["k"].sum()


def serve(*, closes):
    Session.opened.clear()
    with memwatch.profile() as prof:
        for _ in range(6):
            Session().generate()
            if closes:
                Session.opened.clear()
    return prof


def test_what_several_passes_left_is_not_said_to_be_of_the_last_pass():
    """Each pass leaves its last state; `del` of a single variable would not end that."""
    kept, dropped = serve(closes=False), serve(closes=True)
    [finding] = [each for each in kept.findings if "Session.opened" in each.holder]
    assert "of earlier iterations of the loop" in finding.advice
    assert "drop what an iteration puts there at the end of the loop's body" in finding.advice
    assert finding.together_peak_bytes - dropped.peak_bytes < WIDE
    assert not dropped.findings


def test_a_list_of_the_last_pass_is_said_to_be_of_the_last_pass():
    with memwatch.profile() as prof:
        for _ in range(6):
            outs = [torch.ones(WIDE, WIDE) * scale for scale in range(4)]
            torch.stack(outs)
            sum(outs)
    [finding] = [each for each in prof.findings if each.kind == "iteration"]
    assert "of the last iteration of the loop" in finding.advice


class Pool:
    """Hands out numbers for tensors, and the tensors for numbers, in the order of a backward."""

    def __init__(self):
        self.used = {}

    def put(self, tensor):
        self.used[len(self.used)] = tensor

    def get(self, number, *, drops):
        return (self.used.pop if drops else self.used.__getitem__)(number)


def offload(*, drops):
    with memwatch.profile() as prof:
        pool = Pool()
        for _ in range(4):
            first = len(pool.used)
            for _ in range(4):
                pool.put(torch.ones(WIDE, WIDE) * 2)
            for number in reversed(range(first, len(pool.used))):
                pool.get(number, drops=drops).sum()
        torch.ones(2 * WIDE, WIDE).sum()
    return prof


def test_a_container_that_is_still_filled_is_not_to_be_dropped_itself():
    """Its entries are to go one by one; without it the program could not go on."""
    kept, dropped = offload(drops=False), offload(drops=True)
    [finding] = [each for each in kept.findings if "pool.used" in each.holder]
    assert "remove each entry after its last use" in finding.advice
    assert "set it to None" not in finding.advice
    assert "drag" not in {str(each.kind) for each in dropped.findings}


def test_a_list_whose_entries_are_used_together_is_to_be_dropped_itself():
    with memwatch.profile() as prof:
        outs = []
        for _ in range(4):
            outs.append(torch.ones(WIDE, WIDE) * 2)
        torch.stack(outs).sum()
        torch.ones(6 * WIDE, WIDE).sum()
    [finding] = [each for each in prof.findings if "`outs`" in each.holder]
    assert "`del` it after its last use" in finding.advice
