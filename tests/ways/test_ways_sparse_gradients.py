"""Sparse gradients of embeddings: the lines are applied, and tables that cannot have them get no such advice."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.nn import functional
from ways import make_program, profile_two_steps, run_lines

import memwatch

_LARGEST_ERROR_RATIO = 0.05
_ROWS, _WIDTH, _BATCH = 8_000, 32, 128


class _Scores(nn.Module):
    """A score for each of some rows of a table."""

    def __init__(self, table):
        super().__init__()
        self.table, self.score = table, nn.Linear(_WIDTH, 1)

    def forward(self, rows):
        return self.score(self.table(rows)).mean()


class _TiedScores(_Scores):
    """Another op reads the table too, so its gradient is the sum of a sparse and a dense one."""

    def forward(self, rows):
        return self.score(self.table(rows)).mean() + 1e-3 * self.table.weight.square().mean()


def _profile(model, make_optimizer, *, clips=False, lines=""):
    torch.manual_seed(1)
    optimizer = make_optimizer(model.parameters())
    run_lines(lines, model=model, optimizer=optimizer)
    batches = [torch.randint(0, _ROWS, (_BATCH, 4)) for _ in range(3)]
    gc.collect()  # tensors of earlier tests
    with memwatch.profile(holders=False) as prof:
        for batch in batches:
            optimizer.zero_grad()
            model(batch).backward()
            if clips:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return prof


def _model(make_table=nn.Embedding, make_model=_Scores):
    torch.manual_seed(0)
    return make_model(make_table(_ROWS, _WIDTH))


def _sgd(parameters, **options):
    return torch.optim.SGD(parameters, lr=0.1, **options)


def _the_way(prof):
    found = prof.ways[prof.ways["kind"] == "sparse_gradients"]
    return None if found.empty else found.iloc[0]


@pytest.mark.parametrize("make_table", [nn.Embedding, nn.EmbeddingBag])
def test_with_sgd_the_lines_give_the_peak(make_table):
    way = _the_way(_profile(_model(make_table), _sgd))
    assert way["basis"] == "estimated"
    measured = _profile(_model(make_table), _sgd, lines=way["lines"])
    assert abs(way["peak_bytes"] / measured.peak_bytes - 1) <= _LARGEST_ERROR_RATIO


def test_with_sgd_the_lines_change_no_result():
    plain, changed = _model(), _model()
    way = _the_way(_profile(plain, _sgd))
    _profile(changed, _sgd, lines=way["lines"].replace("plain", "model"))
    assert changed.table.weight.grad.is_sparse
    for one, other in zip(plain.parameters(), changed.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("make_optimizer", [torch.optim.Adam, torch.optim.AdamW])
def test_with_adam_the_lines_train_the_table_by_sparse_adam(make_optimizer):
    way = _the_way(_profile(_model(), make_optimizer))
    assert "SparseAdam" in way["way"]
    changed = _model()
    measured = _profile(changed, make_optimizer, lines=way["lines"])
    assert abs(way["peak_bytes"] / measured.peak_bytes - 1) <= _LARGEST_ERROR_RATIO
    assert not torch.equal(changed.table.weight, _model().table.weight)
    assert changed.table.weight.grad is None


_OPTIONS = {"lr": 3e-2, "betas": (0.5, 0.9), "eps": 1e-12, "maximize": True}


def test_sparse_adam_gets_the_options_of_the_group_of_its_table():
    """A first group has others. This batch reads all rows of the table, so the two optimizers do the same."""

    def make_optimizer(parameters):
        table, *others = parameters
        groups = [{"params": others, "lr": 1e-2}, {"params": [table], **_OPTIONS}]
        return torch.optim.Adam(groups, betas=(0.6, 0.7))

    def trained(lines=""):
        model, rows = _model(), torch.arange(_ROWS).reshape(-1, 4)
        optimizer = make_optimizer(model.parameters())
        made_by_lines = run_lines(lines, model=model, optimizer=optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            model(rows).backward()
            optimizer.step()
        return model, made_by_lines

    plain, _ = trained()
    changed, made_by_lines = trained(_the_way(_profile(_model(), make_optimizer))["lines"])
    (group,) = made_by_lines["of_tables"].param_groups
    assert {key: group[key] for key in _OPTIONS} == _OPTIONS
    for one, other in zip(plain.parameters(), changed.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("make_optimizer", [torch.optim.Adadelta, torch.optim.NAdam, torch.optim.Adamax])
def test_an_optimizer_whose_rule_sparse_adam_does_not_have_gets_no_such_advice(make_optimizer):
    """It keeps two tensors for the table too. The twins are Adam and AdamW."""
    assert _the_way(_profile(_model(), make_optimizer)) is None


@pytest.mark.parametrize("fused", [False, True])
def test_a_fused_sgd_takes_no_sparse_gradients(fused):
    """Its step would end in an error of torch."""
    prof = _profile(_model(), lambda parameters: _sgd(parameters, fused=fused))
    assert (_the_way(prof) is None) == fused


class _TwoTables(_Scores):
    """Reads a second table too."""

    def __init__(self, table):
        super().__init__(table)
        self.other = type(table)(_ROWS, _WIDTH)

    def forward(self, rows):
        return self.score(self.table(rows) + self.other(rows)).mean()


def _adagrad(parameters, **options):
    return torch.optim.Adagrad(parameters, lr=0.1, **options)


@pytest.mark.parametrize("make_model", [_Scores, _TwoTables])
@pytest.mark.parametrize("make_table", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("foreach", [False, True])
def test_adagrad_keeps_its_rule_and_takes_sparse_gradients(make_table, make_model, foreach):
    def make_optimizer(parameters):
        return _adagrad(parameters, foreach=foreach)

    way = _the_way(_profile(_model(make_table, make_model), make_optimizer))
    assert "SparseAdam" not in way["lines"]
    changed = _model(make_table, make_model)
    measured = _profile(changed, make_optimizer, lines=way["lines"])
    assert changed.table.weight.grad.is_sparse
    assert abs(way["peak_bytes"] / measured.peak_bytes - 1) <= 0.02
    plain = _model(make_table, make_model)
    _profile(plain, make_optimizer)
    for one, other in zip(plain.parameters(), changed.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


class Adagrad(torch.optim.Adagrad):
    """A program's own optimizer, which may take no sparse gradients."""


@pytest.mark.parametrize(
    "make_optimizer", [lambda those: _adagrad(those, weight_decay=0.1), Adagrad], ids=["weight_decay", "own"]
)
def test_an_adagrad_that_may_take_no_sparse_gradients_gets_no_such_advice(make_optimizer):
    assert _the_way(_profile(_model(), make_optimizer)) is None


def test_the_state_stays_in_a_recording_of_the_whole_program():
    """The step makes it as it makes temporaries, and both are freed before the recording ends."""

    def trained(lines=""):
        gc.collect()
        with memwatch.profile(holders=False) as prof:
            model = _model()
            optimizer = torch.optim.AdamW(model.parameters())
            run_lines(lines, model=model, optimizer=optimizer)
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randint(0, _ROWS, (_BATCH, 4))).backward()
                optimizer.step()
            del model, optimizer
            gc.collect()
        return prof

    way = _the_way(trained())
    assert abs(way["peak_bytes"] / trained(way["lines"]).peak_bytes - 1) <= _LARGEST_ERROR_RATIO


def test_it_is_the_largest_fall_of_a_recommender_that_keeps_the_optimizers_rule():
    prof = profile_two_steps(make_program("recommender"))
    way = _the_way(prof)
    measured_bytes = profile_two_steps(make_program("recommender", way["lines"])).peak_bytes
    assert abs(way["peak_bytes"] / measured_bytes - 1) <= _LARGEST_ERROR_RATIO
    assert way["peak_bytes"] < 0.6 * prof.peak_bytes


@pytest.mark.parametrize(
    ("make_model", "options", "clips"),
    [
        pytest.param(_TiedScores, {}, False, id="another op reads the table"),
        pytest.param(_Scores, {"momentum": 0.9}, False, id="momentum"),
        pytest.param(_Scores, {"weight_decay": 0.1}, False, id="weight decay"),
        pytest.param(_Scores, {}, True, id="clipped"),
    ],
)
def test_a_table_whose_gradient_must_be_dense_gets_no_such_advice(make_model, options, clips):
    """The lines would end in an error of torch, or train differently."""
    prof = _profile(
        _model(make_model=make_model), lambda parameters: _sgd(parameters, **options), clips=clips
    )
    assert _the_way(prof) is None


def test_a_table_that_a_batch_reads_nearly_whole_gets_no_such_advice():
    torch.manual_seed(0)
    table = nn.Embedding(64, 512)
    optimizer = _sgd(table.parameters())
    gc.collect()
    with memwatch.profile(holders=False) as prof:
        for _ in range(3):
            optimizer.zero_grad()
            functional.mse_loss(table(torch.randint(0, 64, (256,))), torch.zeros(256, 512)).backward()
            optimizer.step()
    assert _the_way(prof) is None
