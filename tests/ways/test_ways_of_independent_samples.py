"""The split of a batch is offered where the parts train like the whole, and its lines give the predicted peak."""

from __future__ import annotations

import gc
import re

import numpy as np
import pytest
import torch
from recorded_steps import record_steps
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from ways import run_lines

import memwatch

_LARGEST_ERROR_RATIO = 0.0004  # of a simulated peak, as docs/ways.md promises
_WIDTH, _BATCH, _CLASSES = 96, 96, 24


def _chain(count=6, last=_WIDTH):
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(_WIDTH, _WIDTH), *(nn.GELU() for _ in range(8))) for _ in range(count))
    return nn.Sequential(*blocks, nn.Linear(_WIDTH, last))


def _parts(prof):
    return prof.ways[prof.ways["kind"] == "micro_batches"]


def _training(model, loss_of, *batch):
    def step():
        model.zero_grad()
        loss_of(*batch).backward()

    return step


class _WithState(nn.Module):
    """A model that changes its own state by `change`, and adds the result to its input."""

    def __init__(self, change):
        super().__init__()
        self.body, self.key = _chain(), nn.Linear(_WIDTH, _WIDTH)
        self.key.requires_grad_(False)
        self.register_buffer("queue", torch.randn(_WIDTH, _WIDTH))
        self.register_buffer("calls", torch.zeros(()))
        self.norm, self._change = nn.BatchNorm1d(_WIDTH), change

    def forward(self, x):
        return self.body(self._change(self, x) + x)


def _reads_and_writes_a_queue(model, x):
    found = x @ model.queue
    with torch.no_grad():
        model.queue[:, :8] = x[:8].T
    return found


def _writes_parameters(model, x):
    with torch.no_grad():
        for parameter in model.key.parameters():
            parameter.mul_(0.9)
        return model.key(x)


def _replaces_a_buffer(model, x):
    model.queue = 0.9 * model.queue
    return x @ model.queue


def _counts_calls(model, x):
    model.calls += 1
    return x


def _keeps_a_mean_for_later(model, x):
    model.calls = 0.9 * model.calls + 0.1 * x.detach().mean()
    return x


def _normalizes(model, x):
    return model.norm(x)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (_reads_and_writes_a_queue, "queue"),
        (_writes_parameters, "key.weight"),
        (_replaces_a_buffer, "queue"),
    ],
)
def test_a_model_that_reads_the_state_it_writes_gets_no_split_but_a_note(change, name):
    model, x = _WithState(change), torch.randn(_BATCH, _WIDTH)
    prof = record_steps(_training(model, lambda x: model(x).square().mean(), x))
    assert _parts(prof).empty
    assert any("no split of the batch" in text and f"`{name}`" in text for _, text in prof.notes)


@pytest.mark.parametrize(
    ("change", "name"),
    [(_counts_calls, "`calls`"), (_keeps_a_mean_for_later, "`calls`"), (_normalizes, "batch norm")],
)
def test_state_that_the_results_do_not_depend_on_is_named_in_the_decision(change, name):
    model, x = _WithState(change), torch.randn(_BATCH, _WIDTH)
    prof = record_steps(_training(model, lambda x: model(x).square().mean(), x))
    assert all(name in decision for decision in _parts(prof)["decision"])
    assert len(_parts(prof))
    assert not any("no split of the batch" in text for _, text in prof.notes)


def test_parameters_that_the_first_forward_makes_are_no_changed_state():
    torch.manual_seed(0)
    x = torch.randn(_BATCH, _WIDTH)
    with memwatch.profile(holders=False) as prof:
        model = nn.Sequential(nn.LazyLinear(_WIDTH), _chain())
        for _ in range(3):
            _training(model, lambda x: model(x).square().mean(), x)()
    assert len(_parts(prof))


def _gradients(model):
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("options", [{"ignore_index": 0}, {"ignore_index": 0, "label_smoothing": 0.1}])
def test_parts_count_by_the_targets_that_a_cross_entropy_does_not_ignore(options):
    """The last quarter of the batch has no such target at all, and another one has few."""
    model, x = _chain(last=_CLASSES), torch.randn(_BATCH, _WIDTH)
    targets = torch.randint(1, _CLASSES, (_BATCH,))
    targets[:12], targets[72:] = 0, 0

    def loss_of(x, targets):
        return functional.cross_entropy(model(x), targets, **options)

    way = _parts(record_steps(_training(model, loss_of, x, targets))).iloc[0]
    assert "ignore_index" in way["decision"]
    _training(model, loss_of, x, targets)()
    whole = _gradients(model)
    model.zero_grad()
    in_parts = run_lines(way["lines"])["backward_in_parts"]
    assert torch.allclose(in_parts(loss_of, x, targets, parts=4, ignore_index=0), loss_of(x, targets))
    for one, other in zip(whole, _gradients(model), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("keeps_graph", [True, False], ids=["graph", "values"])
def test_parts_do_not_shrink_what_each_pass_keeps(keeps_graph):
    """Each part adds its result to the list, so a pass keeps as many bytes in parts as whole."""

    def trained(parts):
        model, kept = _chain(), []
        with memwatch.profile(holders=False) as prof:
            for _ in range(8):
                model.zero_grad()
                for part in torch.randn(_BATCH, _WIDTH).chunk(parts):
                    out = model(part)
                    kept.append(model[0](part) if keeps_graph else out.detach().repeat(1, 8))
                    (out.square().mean() / parts).backward()
                    del out
        return prof

    offered = _parts(trained(1))
    assert len(offered)
    for way in offered.itertuples():
        parts = int(re.search(r"in (\d+) parts", way.way)[1])
        assert way.peak_bytes == pytest.approx(trained(parts).peak_bytes, rel=0.02)


@pytest.mark.parametrize("shape", [(), (4,)], ids=["rows", "images"])
@pytest.mark.parametrize("weighs", [False, True])
def test_a_cross_entropy_with_class_weights_gets_no_split(weighs, shape):
    """It divides by the sum of the weights of the whole batch."""
    model, x = _chain(last=_CLASSES), torch.randn(_BATCH, *shape, _WIDTH)
    targets = torch.randint(0, _CLASSES, (_BATCH, *shape))
    weight = torch.rand(_CLASSES) if weighs else None

    def loss_of(x, targets):
        return functional.cross_entropy(model(x).movedim(-1, 1), targets, weight=weight)

    assert _parts(record_steps(_training(model, loss_of, x, targets))).empty == weighs


def _balance(z):
    p = z.softmax(-1)
    return z.square().mean() + (functional.one_hot(p.argmax(-1), 90).float().mean(0) * p.mean(0)).sum()


def _share_of_mask(z):
    mask = (z > 0).float()
    return (z.square() * mask).sum() / mask.sum()


def _share_of_mask_in_each_sample(z):
    mask = (z > 0).float()
    return ((z.square() * mask).sum(1) / mask.sum(1)).mean()


def _standardized(z):
    return ((z - z.mean(0)) / (z.std(0) + 1)).pow(4).mean()


def _standardized_in_each_sample(z):
    return ((z - z.mean(1, keepdim=True)) / (z.std(1, keepdim=True) + 1)).pow(4).mean()


def _centered_by_a_constant_of_the_batch(z):
    with torch.no_grad():
        center = z.mean(0)
    return (z - center).square().mean()


def _several_terms(z):
    terms = torch.stack([z.square().mean(), z.abs().sum() / len(z), 0.1 * z.mean(0).sum()])
    loss = -(1 - terms.mean()) * 2
    loss.detach().abs().log10(), loss.exp()  # metrics
    return loss


def _means_of_each_sample_in_a_product(z):
    return (z.mean(1) * z.square().mean(1)).mean()


@pytest.mark.parametrize(
    ("loss_of", "is_offered"),
    [
        (_balance, False),
        (_share_of_mask, False),
        (_standardized, False),
        (_centered_by_a_constant_of_the_batch, False),
        (lambda z: z.square().mean().sqrt(), False),
        (lambda z: z.mean(0).square().sum(), False),
        (_share_of_mask_in_each_sample, True),
        (_standardized_in_each_sample, True),
        (_several_terms, True),
        (_means_of_each_sample_in_a_product, True),
        (lambda z: functional.mse_loss(z, torch.ones_like(z)) * torch.tensor(0.5), True),
    ],
)
def test_a_loss_that_is_not_linear_in_a_mean_over_the_batch_gets_no_split(loss_of, is_offered):
    model, x = _chain(last=90), torch.randn(_BATCH, _WIDTH)
    prof = record_steps(_training(model, lambda x: loss_of(model(x)), x))
    assert len(_parts(prof)) if is_offered else _parts(prof).empty


@pytest.mark.parametrize(
    "loss_of",
    [_share_of_mask_in_each_sample, _standardized_in_each_sample, _means_of_each_sample_in_a_product],
)
def test_a_mean_of_each_sample_stays_one_where_a_sample_has_as_many_values_as_the_batch_has_samples(loss_of):
    model, x = _chain(last=_BATCH), torch.randn(_BATCH, _WIDTH)
    assert len(_parts(record_steps(_training(model, lambda x: loss_of(model(x)), x))))


class _TimeFirst(nn.Module):
    """Computes with the time before the batch, as many recurrent networks do."""

    def __init__(self):
        super().__init__()
        self.body, self.head = _chain(), nn.Linear(_WIDTH, 4)

    def forward(self, x):
        hidden = self.body(x.transpose(0, 1).contiguous())
        return self.head(hidden.mean(0).tanh())


@pytest.mark.parametrize("time", [16, 24])  # also a multiple of the batch
def test_a_mean_over_the_time_is_no_mean_over_the_batch(time):
    model, x = _TimeFirst(), torch.randn(8, time, _WIDTH)
    assert len(_parts(record_steps(_training(model, lambda x: model(x).square().mean(), x))))


class _Groups(nn.Module):
    """Normalizes groups of channels, in images that have as many rows as the batch has samples."""

    def __init__(self):
        super().__init__()
        self.body, self.head = _chain(), nn.Linear(_WIDTH, 64)

    def forward(self, x):
        groups = self.head(self.body(x)).movedim(-1, 1).contiguous().view(8, 8, -1)
        return groups / (groups.square().mean(-1, keepdim=True) + 1).sqrt()


def test_a_mean_over_groups_of_channels_is_no_mean_over_the_batch():
    model, x = _Groups(), torch.randn(8, 8, 8, _WIDTH)
    assert len(_parts(record_steps(_training(model, lambda x: model(x).square().mean(), x))))


@pytest.mark.parametrize("is_offered", [False, True])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_loss_within_a_checkpoint_is_followed_too(use_reentrant, is_offered):
    model, x = _chain(), torch.randn(_BATCH, _WIDTH)
    head = nn.Linear(_WIDTH, 90)

    def penalty(z):
        mean = head(z).mean(0)
        return mean.sum() if is_offered else mean.square().sum()

    def loss_of(x):
        z = model(x)
        return z.square().mean() + checkpoint(penalty, z, use_reentrant=use_reentrant)

    assert _parts(record_steps(_training(model, loss_of, x))).empty != is_offered


def _with_logits_in_variables(*, lines="", keeps=None):
    """Return a step that keeps the logits in a variable until the next step."""
    model, optimizer = _chain(count=2, last=1_024), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    in_parts = run_lines(lines).get("backward_in_parts")

    def loss_of(x, targets):
        return functional.cross_entropy(model(x), targets)

    def train():
        for _ in range(3):
            x, targets = torch.randn(_BATCH * 8, _WIDTH), torch.randint(0, 1_024, (_BATCH * 8,))
            optimizer.zero_grad()
            if in_parts:
                loss = in_parts(loss_of, x, targets)
            else:
                logits = model(x)
                loss = functional.cross_entropy(logits, targets)
                loss.backward()
                if keeps is not None:
                    keeps.append(logits.detach())
            optimizer.step()
        return loss

    gc.collect()
    with memwatch.profile(holders=False) as prof:
        train()
    return prof


def test_results_that_only_variables_of_the_step_keep_die_before_the_backward():
    """The lines have the forward in a function, whose variables die when it returns."""
    found = _parts(_with_logits_in_variables())
    assert len(found)
    for way in found.itertuples():
        measured_bytes = _with_logits_in_variables(lines=way.lines).peak_bytes
        assert way.basis == "simulated"
        assert abs(way.peak_bytes / measured_bytes - 1) <= _LARGEST_ERROR_RATIO


def test_results_that_the_program_keeps_stay():
    kept = _with_logits_in_variables(keeps=[])
    assert _parts(kept).empty or _parts(kept)["peak_bytes"].min() > 3 * _BATCH * 8 * 1_024


class _Steps(nn.Module):
    """One step in time, whose result is the next state."""

    def __init__(self):
        super().__init__()
        self.body = _chain()

    def forward(self, state, x=None):
        return self.body(state if x is None else state + x).tanh()


@pytest.mark.parametrize("has_inputs", [False, True])
def test_a_rollout_gets_no_split_and_a_recurrence_gets_one(has_inputs):
    """The step makes the later inputs of a rollout from results of its model, so no batch comes from outside."""
    model, inputs = _Steps(), torch.randn(4, _BATCH, _WIDTH)

    def step():
        model.zero_grad()
        state, loss = torch.zeros(_BATCH, _WIDTH), 0.0
        for x in inputs:
            state = model(state, x.clone()) if has_inputs else model(state + 0.1 * torch.randn_like(state))
            loss = loss + state.square().mean()
        loss.backward()

    assert _parts(record_steps(step)).empty != has_inputs


@pytest.mark.parametrize("is_one", [True, False])
def test_several_backwards_through_one_forward_get_no_split(is_one):
    model, x = _chain(), torch.randn(_BATCH, _WIDTH)

    def step():
        model.zero_grad()
        z = model(x)
        if is_one:
            (z.square().mean() + z.abs().mean()).backward()
        else:
            z.square().mean().backward(retain_graph=True)
            z.abs().mean().backward()

    assert _parts(record_steps(step)).empty != is_one


def test_several_backwards_of_their_own_forwards_get_a_split():
    model, x = _chain(), torch.randn(_BATCH, _WIDTH)

    def step():
        model.zero_grad()
        for _ in range(3):
            model(x).square().mean().backward()

    assert set(_parts(record_steps(step))["basis"]) == {"simulated"}


@pytest.mark.parametrize(("chunks", "basis"), [(1, "simulated"), (6, "estimated")])
def test_a_program_that_divides_its_batch_itself_gets_an_estimate(chunks, basis):
    """The parts of the batch need not have a whole number of its chunks."""
    model, x = _chain(), torch.randn(_BATCH, _WIDTH)

    def loss_of(x):
        return torch.cat([model(chunk) for chunk in x.chunk(chunks)]).square().mean()

    assert set(_parts(record_steps(_training(model, loss_of, x)))["basis"]) == {basis}


def test_the_workspace_of_an_op_counts_as_a_whole():
    """Each of its pieces may be small. The kernels of convolutions take several pieces at once."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Conv2d(33, 33, 3, padding=1) for _ in range(150)))
    x = torch.randn(8, 33, 12, 12)
    prof = record_steps(_training(model, lambda x: model(x).square().mean(), x))
    allocations = prof._tables.facts.allocations
    is_scratch = allocations.storage == -1
    largest_bytes = int(allocations.nbytes[is_scratch].max())
    nbytes = np.bincount(allocations.op[is_scratch], weights=allocations.nbytes[is_scratch])
    assert largest_bytes < 0.01 * prof.peak_increase_bytes < nbytes.max()
    assert set(_parts(prof)["basis"]) == {"estimated"}
