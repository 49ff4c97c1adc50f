"""A batch is split only if its samples are independent and the loss is a mean. Each case has a twin with a split."""

from __future__ import annotations

import pytest
import torch
from recorded_steps import record_steps
from torch import nn
from torch.nn import functional
from ways import run_lines

_LARGEST_ERROR_RATIOS = {"simulated": 0.0004, "estimated": 0.04}  # as docs/ways.md promises
_BATCH, _WIDTH, _CLASSES = 48, 40, 36


def _chain():
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(_WIDTH, _WIDTH), *(nn.GELU() for _ in range(8))) for _ in range(6))
    return nn.Sequential(*blocks, nn.Linear(_WIDTH, _CLASSES))


def _parts(prof):
    return prof.ways[prof.ways["kind"] == "micro_batches"]


def _is_split(model, loss_of, *batch):
    def step():
        model.zero_grad()
        loss_of(*batch).backward()

    return not _parts(record_steps(step)).empty


def _balance(z, counts):
    return z.square().mean() + (counts / len(z) * z.softmax(-1).mean(0)).sum()


def _choices(z):
    return z.detach().argmax(-1)


def _balance_by_histc(z):
    return _balance(z, torch.histc(_choices(z).float(), _CLASSES, 0, _CLASSES - 1))


def _balance_by_bincount(z):
    return _balance(z, torch.bincount(_choices(z), minlength=_CLASSES))


def _balance_by_scatter(z):
    return _balance(z, torch.zeros(_CLASSES).scatter_add(0, _choices(z), torch.ones(len(z))))


def _counts_for_the_eye(z):
    for counts in (torch.histc(_choices(z).float(), _CLASSES), torch.bincount(_choices(z))):
        counts.float().std().item()
    return z.square().mean()


@pytest.mark.parametrize(
    ("loss_of", "is_offered"),
    [
        (_balance_by_histc, False),
        (_balance_by_bincount, False),
        (_balance_by_scatter, False),
        (_counts_for_the_eye, True),
    ],
)
def test_a_loss_with_counts_of_the_whole_batch_gets_no_split(loss_of, is_offered):
    model, x = _chain(), torch.randn(_BATCH, _WIDTH)
    assert _is_split(model, lambda x: loss_of(model(x)), x) == is_offered


@pytest.mark.skipif(not hasattr(functional, "grouped_mm"), reason="torch has no public grouped product")
@pytest.mark.parametrize("balances", [True, False])
def test_counts_that_only_give_the_tokens_to_their_experts_are_no_loss(balances):
    """The twin also adds a balance loss."""
    model, x = _chain(), torch.randn(_BATCH, _WIDTH)
    experts = nn.Parameter(torch.randn(4, _CLASSES, 32))

    def loss_of(x):
        z = model(x)
        choices, order = (z.detach()[:, :4].argmax(-1)).sort()
        counts = torch.histc(choices.float(), 4, 0, 3)
        found = functional.grouped_mm(z[order], experts, offs=counts.cumsum(0).int())
        balance = (counts / len(z) * z[:, :4].softmax(-1).mean(0)).sum()
        return found.square().mean() + (balance if balances else 0.0)

    assert _is_split(model, loss_of, x) == (not balances)


@pytest.mark.parametrize(
    ("loss_of", "is_offered"),
    [
        (lambda z: z.mean(1).logcumsumexp(0).mean(), False),
        (lambda z: z.logcumsumexp(1).mean(), True),
        (lambda z: (z * z.mean(1, keepdim=True).softmax(0)).square().mean(), False),
        (lambda z: (z * z.softmax(1)).square().mean(), True),
        (lambda z: z.mean(1).topk(8).values.mean(), False),
        (lambda z: z.topk(8, 1).values.mean(), True),
        (lambda z: (z.mean(1) - z.mean(1).roll(1)).square().mean(), False),
        (lambda z: (z - z.roll(1, 1)).square().mean(), True),
        (lambda z: z[z.detach().mean(1).argsort()].square().mean(), True),  # the order of packed sequences
    ],
)
def test_an_op_along_the_samples_gets_no_split(loss_of, is_offered):
    model, x = _chain(), torch.randn(_BATCH, _WIDTH)
    assert _is_split(model, lambda x: loss_of(model(x)), x) == is_offered


@pytest.mark.parametrize(
    ("product", "is_offered"),
    [
        (lambda z: torch.ones(_BATCH, _BATCH) @ z, False),
        (lambda z: torch.ones(7, _BATCH) @ z, False),
        (lambda z: z.T @ torch.ones(_BATCH, 7), False),
        (lambda z: torch.einsum("ij,jk->ik", torch.ones(_BATCH, _BATCH), z), False),
        (lambda z: torch.ones(7, _BATCH) @ z.mean(1), False),
        (lambda z: z @ torch.ones(_CLASSES, _CLASSES), True),
        (lambda z: torch.ones(7, _CLASSES) @ z.T, True),
        (lambda z: z @ torch.ones(_CLASSES), True),
    ],
)
def test_a_product_with_a_matrix_that_sums_over_the_samples_gets_no_split(product, is_offered):
    """Such a matrix is the graph of a graph network. Its twin combines the values of each sample."""
    model, x = _chain(), torch.randn(_BATCH, _WIDTH)
    assert _is_split(model, lambda x: product(model(x)).square().mean(), x) == is_offered


class _Timed(nn.Module):
    """Has a number for each sample beside the batch, such as its time in a diffusion."""

    def __init__(self, product):
        super().__init__()
        self.body, self.product = _chain(), product

    def forward(self, x, times):
        return self.body(x) * self.product(times).mean(1, keepdim=True)


@pytest.mark.parametrize(
    ("product", "is_offered"),
    [
        (
            lambda times: functional.linear(times[:, None], torch.ones(_CLASSES, 1), torch.ones(_CLASSES)),
            True,
        ),
        (lambda times: (torch.ones(_CLASSES, 1) @ times[None]).T, True),
        (lambda times: (torch.ones(7, 5) @ (torch.ones(5, 1) @ times[None])).T, True),
        (lambda times: times[None] @ torch.ones(_BATCH, _CLASSES), False),
        (lambda times: torch.ones(1, _BATCH) @ times[:, None], False),
        (lambda times: torch.ones(_BATCH, _BATCH) @ times[:, None], False),
    ],
)
def test_a_product_with_one_number_for_each_sample_combines_no_samples(product, is_offered):
    """The twins sum over these numbers. The storage of `times[:, None]` has one dimension."""
    model, batch = _Timed(product), (torch.randn(_BATCH, _WIDTH), torch.rand(_BATCH))

    def loss_of(x, times):
        return model(x, times).square().mean()

    assert _is_split(model, loss_of, *batch) == is_offered


@pytest.mark.parametrize("width", [16, 24])
def test_a_linear_layer_combines_no_samples_of_images_that_are_as_wide_as_the_batch(width):
    """Their storage `[16, 3, 16, 16]` has the sizes of the matrix `[768, 16]`. Its transpose fits the layer too."""
    blocks = (nn.GELU() for _ in range(24))
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * width, 8), nn.Linear(8, 400), *blocks)
    assert _is_split(model, lambda x: model(x).square().mean(), torch.randn(16, 3, 16, width))


class _Attention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.body, self.attention = _chain(), nn.MultiheadAttention(_CLASSES, 4, **options)

    def forward(self, x):
        z = self.body(x)
        return self.attention(z, z, z, need_weights=self.training and z.dim() == 2)[0]


@pytest.mark.parametrize(
    ("options", "shape", "is_offered"),
    [
        ({}, (_BATCH,), False),  # without a batch
        ({}, (_BATCH, 5), False),  # the first dimension is the time
        ({"batch_first": True}, (_BATCH, 5), True),
    ],
)
def test_attention_between_the_samples_gets_no_split(options, shape, is_offered):
    model, x = _Attention(**options), torch.randn(*shape, _WIDTH)
    assert _is_split(model, lambda x: model(x).square().mean(), x) == is_offered


def _evidence_bound(reduction):
    def loss_of(z):
        mean, deviation = z.chunk(2, 1)
        if reduction == "sum":
            divergence = -0.5 * torch.sum(1 + deviation - mean.pow(2) - deviation.exp())
        else:
            divergence = -0.5 * torch.mean(torch.sum(1 + deviation - mean.pow(2) - deviation.exp(), dim=1))
        return (
            functional.binary_cross_entropy(mean.sigmoid(), torch.ones_like(mean), reduction=reduction)
            + divergence
        )

    return loss_of


@pytest.mark.parametrize(
    ("loss_of", "is_offered"),
    [
        (_evidence_bound("sum"), False),
        (_evidence_bound("mean"), True),
        (lambda z: z.square().sum(), False),
        (lambda z: z.square().sum() / len(z), True),
        (lambda z: z.square().mean() + 0.1 * z.abs().sum(), False),
        (lambda z: z.square().mean() + 0.1 * z.abs().sum(1).mean(), True),
    ],
)
def test_a_loss_with_a_sum_that_nothing_divides_gets_no_split(loss_of, is_offered):
    """The lines weigh each part by its share of the batch."""
    model, x = _chain(), torch.randn(_BATCH, _WIDTH)
    assert _is_split(model, lambda x: loss_of(model(x)), x) == is_offered


class _Recurrent(nn.Module):
    """Takes one step in time, and returns the state after it."""

    def __init__(self):
        super().__init__()
        self.cell, self.body = nn.RNNCell(_WIDTH, _WIDTH), _chain()

    def forward(self, x, state):
        state = self.cell(x, state)
        return self.body(state), state


@pytest.mark.parametrize("carries", [True, False])
def test_a_state_that_the_next_step_reads_gets_no_split(carries):
    """The second part of a batch would read the state after the first part."""
    model, x = _Recurrent(), torch.randn(_BATCH, _WIDTH)
    first, total = torch.zeros(_BATCH, _WIDTH), torch.zeros(())
    last = first

    def step():
        nonlocal last, total
        model.zero_grad()
        z, state = model(x, last)
        loss = z.square().mean()
        loss.backward()
        total = total + loss.detach()
        last = state.detach() if carries else first

    assert _parts(record_steps(step, steps=3)).empty == carries


def _assert_lines_give_the_peak(model, loss_of, *batch):
    optimizer = torch.optim.Adam(model.parameters())

    def measured(lines=""):
        in_parts = run_lines(lines).get("backward_in_parts")

        def step():
            optimizer.zero_grad()
            if in_parts:
                in_parts(loss_of, *batch)
            else:
                loss_of(*batch).backward()
            optimizer.step()

        return record_steps(step)

    found = _parts(measured())
    assert len(found)
    for way in found.itertuples():
        error_ratio = abs(way.peak_bytes / measured(way.lines).peak_bytes - 1)
        assert error_ratio <= _LARGEST_ERROR_RATIOS[way.basis]


@pytest.mark.parametrize("batch", [256, 192])
def test_the_peak_is_right_for_a_model_that_runs_three_times(batch):
    """The batch may be as large as the layers are wide. A gradient is complete after the last run's backward."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64))
    inputs = [torch.randn(batch, 64) for _ in range(3)]

    def loss_of(anchor, positive, negative):
        return functional.triplet_margin_loss(model(anchor), model(positive), model(negative))

    _assert_lines_give_the_peak(model, loss_of, *inputs)


class _SelfAttention(nn.MultiheadAttention):
    def forward(self, z):
        return z + super().forward(z, z, z, need_weights=False)[0]


def test_the_peak_is_right_for_attention_that_puts_the_batch_third():
    torch.manual_seed(0)
    model = nn.Sequential(*(_SelfAttention(_WIDTH, 4, batch_first=True) for _ in range(4)))
    x = torch.randn(_BATCH, 49, _WIDTH)
    _assert_lines_give_the_peak(model, lambda x: model(x).square().mean(), x)


_TIME = 24
_TARGETS = torch.randint(0, _CLASSES, (_BATCH, _TIME), generator=torch.Generator().manual_seed(1))
_PART_IS_VALID = torch.arange(_TIME) < torch.arange(1, _BATCH + 1)[:, None] % _TIME + 1


def _rows(z):
    return z.flatten(0, 1)


def _placed_again(z, valid):
    """Computes with the valid values alone, as an encoder without padding or an expert does."""
    found = torch.zeros_like(z)
    found[valid] = z[valid].tanh()
    return (z + found).square().mean()


def _errors(z):
    return z.square().mean(-1)


def _weighed(z, valid, weight):
    targets = valid.float()[..., None].expand_as(z)
    return functional.binary_cross_entropy_with_logits(z, targets, pos_weight=weight)


def _joined_again(z, valid):
    order = torch.cat([valid.flatten().nonzero(), (~valid).flatten().nonzero()]).squeeze(1)
    first, second = _rows(z)[valid.flatten()].tanh(), _rows(z)[~valid.flatten()].sigmoid()
    return torch.cat([first, second])[order.argsort()].square().mean()


_OF_PICKS = [
    (lambda z, valid, _: z[valid].square().mean(), False),
    (lambda z, valid, _: z.masked_select(valid[..., None]).square().mean(), False),
    (lambda z, valid, _: z[valid.nonzero(as_tuple=True)].square().mean(), False),
    (lambda z, valid, _: _rows(z).index_select(0, valid.flatten().nonzero()[:, 0]).square().mean(), False),
    (lambda z, valid, targets: functional.cross_entropy(z[valid], targets[valid]), False),
    (lambda z, valid, _: z[valid].tanh().square().sum() / valid.sum(), False),
    (lambda z, valid, _: (z.square().mean(-1) * valid).sum() / valid.sum().clamp(min=1), False),
    (lambda z, valid, _: z[valid[:, 7]].square().mean(), False),
    (lambda z, valid, _: z.transpose(0, 1)[valid.T].square().mean(), False),
    (lambda z, valid, _: (_errors(z) * valid).mean() / valid.float().mean(), False),
    (lambda z, valid, _: (_errors(z) * valid).sum() * valid.sum().reciprocal(), False),
    (lambda z, valid, _: (_errors(z) * (valid / valid.float().mean())).mean(), False),
    (lambda z, valid, _: (_errors(z) * (valid / valid.sum())).sum(), False),
    (lambda z, valid, _: torch.einsum("bt,bt->", _errors(z), valid.float()) / valid.sum(), False),
    (lambda z, valid, _: _weighed(z, valid, (~valid).sum() / valid.sum()), False),
    (lambda z, _, targets: _errors(z).mean() / targets.cumsum(0).float().std(), False),
    (lambda z, valid, _: _weighed(z, valid, torch.tensor(3.0)), True),
    (lambda z, valid, _: (_errors(z) * (valid / valid.float().mean(1, keepdim=True))).mean(), True),
    (lambda z, valid, _: _errors(z).mean() + valid.float().mean(), True),
    (lambda z, valid, _: (_errors(z), valid.sum() / valid.numel())[0].mean(), True),
    (lambda z, valid, _: (z.square().mean(-1) * valid).sum() / valid.numel(), True),
    (lambda z, valid, _: ((z.square().mean(-1) * valid).sum(1) / valid.sum(1)).mean(), True),
    (lambda z, valid, _: z[torch.arange(len(z)), valid.sum(1) - 1].square().mean(), True),
    (lambda z, valid, _: z[:, torch.tensor([3, 7, 20])].square().mean(), True),
    (lambda z, valid, _: z[:, torch.arange(_TIME) % 5 == 0].square().mean(), True),
    (lambda z, valid, _: _placed_again(z, valid), True),
    (lambda z, valid, _: _joined_again(z, valid), True),
]


def _train_parts_alike(model, loss_of, batch):
    """Return True if the gradients of four parts add up to those of the batch."""

    def gradient(parts):
        model.zero_grad()
        for part in zip(*(each.chunk(parts) for each in batch), strict=True):
            (loss_of(*part) / parts).backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    whole = gradient(1)
    return bool((gradient(4) - whole).norm() < 1e-4 * whole.norm())


@pytest.mark.parametrize(("loss_of", "is_offered"), _OF_PICKS)
def test_a_mean_over_values_that_a_mask_picks_gets_no_split(loss_of, is_offered):
    """The parts have other numbers of such values, so their gradients do not add up to those of the batch."""
    model, x = _chain(), torch.randn(_BATCH, _TIME, _WIDTH)

    def of_batch(x, valid, targets):
        return loss_of(model(x) * x[..., :_CLASSES], valid, targets)

    batch = x, _PART_IS_VALID, _TARGETS
    is_alike = _train_parts_alike(model, of_batch, batch)
    assert is_alike == is_offered
    assert _is_split(model, of_batch, *batch) == is_offered


def _permutation(z):
    return torch.randperm(len(z), generator=torch.Generator().manual_seed(len(z)))


def _with_another_sample(z, targets):
    return (z * z[_permutation(z)].detach()).mean()


def _with_targets_of_another_sample(z, targets):
    return (z * targets[_permutation(z)]).mean()


def _ranks(targets):
    return targets[:, 0, 0].argsort().argsort()


_ALONG_THE_BATCH = [
    (lambda z, t: (z.softmax(0) * t).mean(), False),
    (lambda z, t: (z * t.softmax(0)).mean(), False),
    (lambda z, t: (z - t.cumsum(0)).square().mean(), False),
    (lambda z, t: (z * t.sort(0).values).mean(), False),
    (lambda z, t: (z * (t > t[:, 0, 0].quantile(0.3))).mean(), False),
    (lambda z, t: (z.mean((1, 2)) * (t[:, 0] @ t[:, 0].T).tanh().mean(1)).mean(), False),
    (lambda z, t: (z * z.flip(0).detach()).mean(), False),
    (lambda z, t: (z.mean((1, 2)) * _ranks(t)).mean(), False),
    (lambda z, t: functional.mse_loss(z, t, reduction="sum"), False),
    (lambda z, t: functional.cross_entropy(z[:, 0], t[:, 0].argmax(-1), reduction="sum"), False),
    (_with_another_sample, False),
    (_with_targets_of_another_sample, False),
    (lambda z, t: (z.softmax(1) * t).mean(), True),
    (lambda z, t: (z * t.softmax(1)).mean(), True),
    (lambda z, t: (z - t.cumsum(-1)).square().mean(), True),
    (lambda z, t: (z * t.sort(1).values).mean(), True),
    (lambda z, t: (z * z.flip(1).detach()).mean(), True),
    (lambda z, t: functional.mse_loss(z, t, reduction="sum") / len(z), True),
    (lambda z, t: functional.cross_entropy(z[:, 0], t[:, 0].argmax(-1), reduction="sum") / len(z), True),
    (lambda z, t: (z[_permutation(z)] * t[_permutation(z)]).square().mean(), None),
    (lambda z, t: (z[_ranks(t)][_ranks(t).argsort()] * t).mean(), True),
]


@pytest.mark.parametrize(("loss_of", "is_offered"), _ALONG_THE_BATCH)
def test_an_op_along_the_batch_of_results_or_targets_gets_no_split(loss_of, is_offered):
    """The dimension of an op is recorded, so its twin along another dimension is split."""
    model, x = _chain(), torch.randn(_BATCH, _TIME, _WIDTH)

    def of_batch(x, targets):
        return loss_of(model(x) * x[..., :_CLASSES], targets)

    batch = x, torch.randn(_BATCH, _TIME, _CLASSES)
    assert _train_parts_alike(model, of_batch, batch) == (is_offered is not False)
    if is_offered is not None:  # two equal permutations have different indices, so this one may be refused
        assert _is_split(model, of_batch, *batch) == is_offered


def _decision(loss_of, *batch):
    found = _parts(record_steps(lambda: loss_of(*batch).backward()))
    return found.iloc[0]["decision"]


@pytest.mark.parametrize("is_read", [True, False])
def test_a_number_of_the_whole_batch_that_the_program_reads_needs_a_decision(is_read):
    """The twin reads the loss itself, for a log."""
    model, x = _chain(), torch.randn(_BATCH, _TIME, _WIDTH)

    def loss_of(x, valid):
        errors = _errors(model(x)) * valid
        if is_read:
            return errors.sum() / valid.sum().item()
        loss = errors.mean()
        loss.item()
        return loss

    assert ("`item()` at" in _decision(loss_of, x, _PART_IS_VALID)) == is_read


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_lines_count_targets_only_for_a_cross_entropy_that_divides_by_their_number(reduction):
    model, x = _chain(), torch.randn(_BATCH, _TIME, _WIDTH)
    targets = torch.where(_PART_IS_VALID, _TARGETS, -100)

    def loss_of(x, targets):
        return functional.cross_entropy(model(x).mT, targets, reduction=reduction).mean()

    found = _parts(record_steps(lambda: loss_of(x, targets).backward())).iloc[0]
    assert ("ignore_index" in found["lines"]) == (reduction == "mean")
    model.zero_grad()
    loss_of(x, targets).backward()
    whole = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    run_lines(found["lines"])["backward_in_parts"](loss_of, x, targets, parts=4)
    for one, parameter in zip(whole, model.parameters(), strict=True):
        assert torch.allclose(one, parameter.grad, atol=1e-6)


@pytest.mark.parametrize(
    ("other_term", "is_named"),
    [
        (lambda z: 0, False),
        (lambda z: z.square().mean(), True),
        (lambda z: z.square().sum() / len(z), True),
        (lambda z: z.square().mean().item() * 0, False),
        (lambda z: z.new_ones(_BATCH, 0, 4).view(_BATCH, 0).flip(0).sum().item(), False),
    ],
    ids=["none", "a mean", "a sum", "a metric", "no values"],
)
def test_the_decision_names_terms_that_the_counts_of_targets_do_not_fit(other_term, is_named):
    model, x = _chain(), torch.randn(_BATCH, _TIME, _WIDTH)

    def loss_of(x, targets):
        z = model(x)
        return functional.cross_entropy(z.mT, targets) + other_term(z)

    assert ("other terms" in _decision(loss_of, x, _TARGETS)) == is_named


@pytest.mark.parametrize("has_two_terms", [False, True])
def test_the_losses_of_accumulated_batches_are_no_terms_of_one_loss(has_two_terms):
    """Each backward has one loss. The loss of the twin has cross entropies with other targets."""
    model, x = _chain(), torch.randn(_BATCH, _TIME, _WIDTH)
    others = _TARGETS.flip(1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step():
        for targets in (_TARGETS, others):
            z = model(x).mT
            loss = functional.cross_entropy(z, targets) / 2
            if has_two_terms:
                loss = loss + functional.cross_entropy(z, others.flip(0))
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    found = _parts(record_steps(step)).iloc[0]
    assert ("other terms" in found["decision"]) == has_two_terms


def test_a_split_is_an_estimate_if_a_mask_picks_much_of_the_batch():
    """The sizes of what it picks do not follow from the recording."""
    model, x = _chain(), torch.randn(_BATCH, _TIME, _WIDTH)
    bases = []
    for loss_of in (_placed_again, lambda z, valid: (z + z.tanh()).square().mean()):
        found = _parts(record_steps(lambda loss_of=loss_of: loss_of(model(x), _PART_IS_VALID).backward()))
        bases.append(set(found["basis"]))
    assert bases == [{"estimated"}, {"simulated"}]


class _Pooling(nn.Module):
    """Weighs the steps in time of each sample by a product with its query, which has one column."""

    def __init__(self, product):
        super().__init__()
        self.body, self.query, self.product = _chain(), nn.Linear(_CLASSES, _CLASSES), product

    def forward(self, x):
        z = self.body(x)
        return (self.product(z, self.query(z.mean(1)))[..., None] * z).sum(1)


@pytest.mark.parametrize(
    ("product", "is_offered"),
    [
        (lambda z, query: (z @ query[..., None]).squeeze(-1).softmax(-1), True),
        (lambda z, query: (query[:, None] @ z.mT).squeeze(1).softmax(-1), True),
        (lambda z, query: (z * query[:, None]).sum(-1).softmax(-1), True),
        (lambda z, query: (query @ query.T).tanh() @ z.mean(-1), False),
        (lambda z, query: (query[None] @ query.T[None])[0].tanh() @ z.mean(-1), False),
    ],
)
def test_a_product_with_one_query_for_each_sample_combines_no_samples(product, is_offered):
    model, x = _Pooling(product), torch.randn(_BATCH, _TIME, _WIDTH)

    def loss_of(x):
        return model(x).square().mean()

    assert _train_parts_alike(model, loss_of, (x,)) == is_offered
    assert _is_split(model, loss_of, x) == is_offered
    if is_offered:
        _assert_lines_give_the_peak(model, loss_of, x)


@pytest.mark.parametrize(
    ("positions", "is_offered"),
    [(lambda given: torch.arange(len(given)), True), (lambda given: given, False)],
    ids=["positions", "data"],
)
def test_distances_between_positions_combine_no_samples_though_there_are_as_many(positions, is_offered):
    """As in T5: the tokens of a sequence are a multiple of the samples. Distances between data may mix samples."""
    model, x, given = _chain(), torch.randn(_BATCH, 2 * _BATCH, _WIDTH), torch.rand(2 * _BATCH)

    def loss_of(x, given):
        z, places = model(x), positions(given)
        scores = z @ z.mT - (places[None] - places[:, None]).abs()
        return (scores.softmax(-1) @ z).square().mean()

    assert _is_split(model, loss_of, x, given) == is_offered


class _Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU()) for _ in range(6))

    def forward(self, x):
        results = []
        for layer in self.layers:
            x = x + layer(x)
            results.append(x)
        return results


def test_a_head_that_reads_several_results_of_a_model_is_no_rollout():
    """The head may be outside the model. Its calls read no results of its own."""
    model, head = _Layers(), nn.Linear(_WIDTH, 4)
    both, x = nn.ModuleList([model, head]), torch.randn(_BATCH, _TIME, _WIDTH)

    def loss_of(x):
        return sum(head(each).square().mean() for each in model(x))

    assert _train_parts_alike(both, loss_of, (x,))
    _assert_lines_give_the_peak(both, loss_of, x)


def test_a_model_that_reads_its_own_results_after_those_of_another_is_a_rollout():
    encoder, model = _Layers(), nn.Linear(_WIDTH, _WIDTH)
    x = torch.randn(_BATCH, _WIDTH)

    def loss_of(x):
        state, loss = encoder(x)[-1], 0.0
        for _ in range(4):
            state = model(state + 0.1 * torch.randn_like(state)).tanh()
            loss = loss + state.square().mean()
        return loss

    assert not _is_split(nn.ModuleList([encoder, model]), loss_of, x)


@pytest.mark.parametrize("probability", [0.0, 0.1])
def test_the_decision_names_dropout_that_draws_other_numbers_for_the_parts(probability):
    model, x = nn.Sequential(_chain(), nn.Dropout(probability)), torch.randn(_BATCH, _WIDTH)
    found = _parts(record_steps(lambda: model(x).square().mean().backward()))
    assert len(found)
    assert all(("dropout" in decision) == (probability > 0) for decision in found["decision"])
