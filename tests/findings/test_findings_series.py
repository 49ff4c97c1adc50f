"""Growth inside one call: a container gets more with each pass of a loop, and a pass reads at most the newest."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import func, nn
from torch.nn import functional

import memwatch

MIB = 2**20
ROWS, WIDE = 256, 1024  # a float32 tensor of them has 1 MiB
PASSES = 8


def profiled(program, *arguments):
    gc.collect()
    with memwatch.profile() as prof:
        program(*arguments)
    return prof


def kinds(prof):
    return [
        finding.kind for finding in prof.findings if finding.kind in ("growth", "graph", "drag", "iteration")
    ]


@torch.no_grad()
def rollout(keep):
    """Steps of an environment."""
    policy, seen = nn.Linear(WIDE, 4), []
    state = torch.randn(ROWS, WIDE)
    for _ in range(PASSES):
        action = policy(state).argmax(1)
        state = state * 0.9 + action[:, None]
        seen.append(state if keep else float(state.mean()))
    return len(seen)


@torch.no_grad()
def generate(keep):
    """Generated tokens, with the hidden states of each."""
    head, scores = nn.Linear(WIDE, WIDE), []
    hidden = torch.randn(ROWS, WIDE)
    for _ in range(PASSES):
        hidden = torch.tanh(head(hidden))
        scores.append(hidden if keep else float(hidden.mean()))
    return hidden


def micro_batches(keep):
    """The shape of verl #6696: the outputs keep their graphs until the step is over."""
    net, entropy_of = (nn.Sequential(nn.Linear(WIDE, WIDE), nn.GELU()) for _ in range(2))
    output_lst = []
    for _ in range(4):
        hidden = net(torch.randn(ROWS, WIDE))
        entropy = entropy_of(hidden)
        hidden.square().mean().backward()
        output_lst.append(entropy if keep else entropy.detach().mean())
    return sum(float(entropy.detach().sum()) for entropy in output_lst)


@pytest.mark.parametrize(("program", "variable"), [(rollout, "`seen`"), (generate, "`scores`")])
def test_what_each_pass_leaves_in_a_container_is_growth(program, variable):
    """It has the container and the bytes of one pass, without a mark of any step."""
    (finding,) = [each for each in profiled(program, True).findings if each.kind == "growth"]
    assert finding.holder.startswith(variable)
    assert "+1.00 MiB per iteration" in finding.advice
    assert finding.nbytes >= (PASSES - 2) * MIB
    assert "growth" not in kinds(profiled(program, False))


def test_growth_that_outlives_the_recording_is_growth():
    """The recording has no end for the life of any of these results."""
    history = []

    @torch.no_grad()
    def rollout_into_history():
        state = torch.randn(ROWS, WIDE)
        for _ in range(PASSES):
            state = state * 0.9
            history.append(state)
        state * 2

    (finding,) = [each for each in profiled(rollout_into_history).findings if each.kind == "growth"]
    assert finding.holder.startswith("`history`")
    assert "+1.00 MiB per iteration" in finding.advice


def test_a_graph_that_each_micro_batch_keeps_tells_what_one_adds():
    """`entropy_of` saves its input, which `net` returned, and the input of GELU."""
    (finding,) = [each for each in profiled(micro_batches, True).findings if each.kind == "graph"]
    assert finding.holder.startswith("`output_lst`")
    assert "+2.00 MiB per iteration" in finding.advice
    assert "per iteration" not in " ".join(map(str, profiled(micro_batches, False).findings))


def frames_with_their_graphs(keep):
    """The two linear layers have one call stack. GELU keeps the result of the first."""
    net, frames = nn.Sequential(nn.Linear(WIDE, WIDE), nn.GELU(), nn.Linear(WIDE, WIDE)), []
    for _ in range(PASSES):
        noise = torch.randn(ROWS, WIDE)
        frame = noise - 0.1 * net(noise)
        frames.append(frame if keep else frame.detach().mean())
    return len(frames)


def test_a_layer_that_keeps_nothing_hides_no_other_layer_of_its_line():
    """Each pass keeps the input of both linear layers and that of GELU."""
    (finding,) = [each for each in profiled(frames_with_their_graphs, True).findings if each.kind == "graph"]
    assert "+3.00 MiB per iteration" in finding.advice
    assert "per iteration" not in " ".join(map(str, profiled(frames_with_their_graphs, False).findings))


def probes_with_their_graphs():
    """Linear layers of several sizes have one call stack, and so have the activations between them."""
    layers = [nn.Linear(WIDE, WIDE), nn.GELU(), nn.Linear(WIDE, WIDE), nn.GELU(), nn.Linear(WIDE, 4)]
    net, history = nn.Sequential(*layers), []
    probe = torch.randn(ROWS, WIDE)
    for _ in range(PASSES):
        history.append({"probe": net(probe)})
    return len(history)


def test_a_pass_is_told_from_the_layers_of_one_line():
    """Each pass keeps the input and the result of both GELUs, and the small result of the last layer."""
    (finding,) = [each for each in profiled(probes_with_their_graphs).findings if each.kind == "graph"]
    assert "+4.00 MiB per iteration" in finding.advice


@torch.no_grad()
def list_as_cache():
    """Each token reads the keys of all tokens before it."""
    keys, token = [], torch.randn(ROWS, WIDE)
    for _ in range(PASSES):
        keys.append(token * 2)
        token = torch.stack(keys).mean(0) + 1


@torch.no_grad()
def concatenated_cache():
    keys, token = torch.zeros(0, ROWS, WIDE), torch.randn(ROWS, WIDE)
    for _ in range(PASSES):
        keys = torch.cat([keys, token[None] * 2])
        token = keys.mean(0) + 1


def chunks_that_are_joined():
    return torch.cat([torch.randn(ROWS, WIDE).exp() for _ in range(PASSES)]).sum()


def chunks_that_are_freed_in_time():
    chunks = []
    for _ in range(PASSES):
        chunks.append(torch.randn(ROWS, WIDE).exp())
        if len(chunks) == 2:
            torch.cat(chunks).sum()
            chunks.clear()


def layers_of_one_forward():
    model = nn.Sequential(*(nn.Linear(WIDE, WIDE) for _ in range(PASSES)))
    model(torch.randn(ROWS, WIDE)).square().mean().backward()


@pytest.mark.parametrize(
    "program",
    [
        list_as_cache, concatenated_cache, chunks_that_are_joined, chunks_that_are_freed_in_time,
        layers_of_one_forward,
    ],
)  # fmt: skip
def test_a_series_that_a_later_op_reads_is_no_growth(program):
    """A cache that each token reads must be kept, and so must tensors that wait for the op that joins them."""
    assert kinds(profiled(program)) == []


def test_a_list_that_each_step_fills_anew_is_no_series():
    """Only the gradients of the last step are alive: `del` frees the earlier ones."""

    def program():
        weights = [torch.randn(ROWS, WIDE, requires_grad=True) for _ in range(3)]
        for _ in range(PASSES):
            grads = torch.autograd.grad(sum(weight.exp().sum() for weight in weights), weights)
            for weight, grad in zip(weights, grads, strict=True):
                weight.data.sub_(grad, alpha=0.1)

    told = " ".join(map(str, profiled(program).findings))
    assert "per iteration" not in told
    assert "growth" not in kinds(profiled(program))


def test_inputs_that_a_later_loop_reads_are_no_growth():
    """A list that is filled by one loop and read by the next is drag after that: `del` frees it."""

    def program():
        inputs = [torch.randn(ROWS, WIDE) for _ in range(PASSES)]
        total = sum(float(each.exp().sum()) for each in inputs)
        torch.randn(4 * ROWS, WIDE).sum()
        return total

    assert kinds(profiled(program)) == ["drag"]


def gradients_of_samples(steps, keep):
    """One line makes several results of each step. A list keeps the gradients of all steps, or none does."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))

    def loss_of(weights, x, y):
        return functional.cross_entropy(func.functional_call(model, weights, (x[None],)), y[None])

    gradients_of = func.vmap(func.grad(loss_of), in_dims=(None, 0, 0))
    kept = []
    for _ in range(steps):
        x, y = torch.rand(64, 64), torch.randint(0, 10, (64,))
        weights = {name: each.detach() for name, each in model.named_parameters()}
        gradients = gradients_of(weights, x, y)
        if keep:
            kept.append(gradients)
        norm = torch.stack([each.flatten(1).norm(dim=1) for each in gradients.values()], 1).norm(dim=1)
        share = (1 / (norm + 1e-6)).clamp(max=1)
        for name, weight in model.named_parameters():
            weight.grad = torch.einsum("b...,b->...", gradients[name], share) / 64
        torch.optim.SGD(model.parameters(), lr=0.1).step()


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_several_results_of_one_line_in_a_pass_are_no_passes(steps):
    """The dictionary of gradients is bound anew in each step, so that two of them are alive at most."""
    found = profiled(gradients_of_samples, steps, False).findings
    assert "growth" not in [each.kind for each in found]
    assert "per iteration" not in " ".join(map(str, found))


def test_a_list_of_the_gradients_of_each_step_grows_with_each_pass():
    found = profiled(gradients_of_samples, PASSES, True).findings
    assert any("per iteration" in each.advice for each in found if each.holder.startswith("`kept`"))


class State:
    def __init__(self, previous, result):
        self.previous, self.result = previous, result


def linked_states(keep):
    """Each state refers to the one before it. The program reads the newest two."""
    model, state = nn.Linear(WIDE, WIDE), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(PASSES + 4):
        result = model(torch.randn(ROWS, WIDE))
        loss = result.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state = State(state, result.detach())
        if state.previous is not None:
            float((state.result - state.previous.result).norm())
        if not keep:
            state.previous = None


def test_states_that_refer_to_the_one_before_are_growth():
    (finding,) = [each for each in profiled(linked_states, True).findings if each.kind == "growth"]
    assert finding.holder.startswith("`state.previous.previous")
    assert finding.nbytes >= (PASSES - 2) * MIB
    assert "+1.00 MiB per iteration" in finding.advice
    assert not [each for each in profiled(linked_states, False).findings if each.kind in ("growth", "output")]


@torch.no_grad()
def states_that_each_pass_reads():
    state = None
    for _ in range(PASSES):
        state = State(state, torch.randn(ROWS, WIDE).exp())
        each, total = state, 0.0
        while each is not None:
            total += float(each.result.sum())
            each = each.previous


class Layer(nn.Module):
    """A layer that keeps its newest result, and another layer inside."""

    def __init__(self, depth):
        super().__init__()
        self.linear = nn.Linear(WIDE, WIDE)
        self.inner = Layer(depth - 1) if depth else None

    def forward(self, x):
        self.seen = torch.tanh(self.linear(x))
        return self.seen if self.inner is None else self.inner(self.seen)


@torch.no_grad()
def nested_layers_that_keep_their_newest_result():
    model = Layer(5)
    for _ in range(PASSES):
        model(torch.randn(ROWS, WIDE)).sum()


@pytest.mark.parametrize(
    "program", [states_that_each_pass_reads, nested_layers_that_keep_their_newest_result]
)
def test_linked_objects_that_keep_no_more_with_each_pass_or_are_read_are_no_growth(program):
    assert "growth" not in kinds(profiled(program))
