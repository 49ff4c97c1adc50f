"""Checkpoints of modules with state: a second forward must compute what the first one did, from the same state."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

import memwatch


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class _Quantizer(nn.Module):
    """Replaces rows by the nearest ones of a codebook, and then moves the codebook towards its input."""

    def __init__(self, codes=64):
        super().__init__()
        self.before = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))
        self.register_buffer("codes", torch.randn(codes, 32))

    def forward(self, x):
        x = self.before(x)
        nearest = torch.cdist(x, self.codes).argmin(1)
        found = self.codes[nearest]
        with torch.no_grad():
            self.codes.index_put_((nearest,), 0.5 * found + 0.5 * x)
        return x + functional.mse_loss(x, found) * found


class _Normalizer(nn.Module):
    """Divides by a running size, which each call updates."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32))
        self.register_buffer("size", torch.ones(32))

    def forward(self, x):
        with torch.no_grad():
            self.size.mul_(0.5).add_(x.square().mean(0), alpha=0.5)
        return x + self.layers(x / self.size.sqrt().clone())


def _spectral():
    return nn.Sequential(spectral_norm(nn.Linear(32, 128)), nn.Tanh(), spectral_norm(nn.Linear(128, 32)))


def _batch_norm():
    return nn.Sequential(nn.Linear(32, 128), nn.BatchNorm1d(128), nn.Tanh(), nn.Linear(128, 32))


def _model(make_block, count=4):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), *(make_block() for _ in range(count)), nn.Linear(32, 1))


def _step(model, *, parts=1):
    """Run forward and backward, with several forwards before the first backward if there are parts."""
    torch.manual_seed(1)
    losses = [model(torch.randn(2000, 16)).square().mean() for _ in range(parts)]
    for loss in losses:
        loss.backward()


def _recorded(model, steps=2):
    gc.collect()  # a changed model refers to itself
    _step(model)
    with memwatch.profile(holders=False) as prof:
        for _ in range(steps):
            model.zero_grad()
            _step(model)
    return prof


def _checkpoints(prof):
    return prof.ways[prof.ways["kind"] == "checkpoint"]


@pytest.mark.parametrize("make_block", [_Quantizer, _Normalizer, _spectral, _batch_norm])
def test_the_second_forward_begins_with_the_former_buffers(make_block):
    found = _checkpoints(_recorded(_model(make_block)))
    assert not found["decision"].any()
    for parts in (1,) if make_block is _spectral else (1, 2):  # its weights differ in the second call
        plain, model = _model(make_block), _model(make_block)
        exec(found["lines"].iloc[0], {"model": model})
        for _ in range(2):
            for each in (plain, model):
                _step(each, parts=parts)
        for one, other in zip(plain.buffers(), model.buffers(), strict=True):
            assert torch.equal(one, other)
        for one, other in zip(plain.parameters(), model.parameters(), strict=True):
            assert torch.equal(one.grad, other.grad)


def test_a_backward_that_keeps_its_graph_finds_the_former_buffers_twice():
    lines = _checkpoints(_recorded(_model(_Quantizer)))["lines"].iloc[0]
    plain, model = _model(_Quantizer), _model(_Quantizer)
    exec(lines, {"model": model})
    x = torch.randn(2000, 16)
    for each in (plain, model):
        loss = each(x).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_the_copies_of_large_buffers_count():
    def make_block():
        return _Quantizer(codes=4_000)

    found = _checkpoints(_recorded(_model(make_block)))
    for way in found.itertuples():
        model = _model(make_block)
        exec(way.lines, {"model": model})
        assert way.peak_bytes == pytest.approx(_recorded(model).peak_bytes, rel=0.02)
    assert len(found)


class _InPlace(nn.Module):
    """Begins with an activation that may write over the module's argument."""

    def __init__(self, *, inplace):
        super().__init__()
        self.first = nn.LeakyReLU(0.5, inplace=inplace)
        self.layers = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32))

    def forward(self, x):
        return self.layers(self.first(x))


class _Counting(nn.Module):
    """Counts its calls in a tensor that is a plain attribute, and its result depends on it."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32))
        self.calls = torch.ones(())

    def forward(self, x):
        self.calls.add_(1)
        return x + self.layers(x) / self.calls.item()


@pytest.mark.parametrize(
    "make_block", [lambda: _InPlace(inplace=True), _Counting], ids=["argument", "attribute"]
)
def test_a_block_that_writes_a_tensor_from_outside_is_not_checkpointed(make_block):
    """Its parts are."""
    model = _model(make_block)
    found = _checkpoints(_recorded(model))
    assert len(found)
    assert all(".layers" in modules for modules in found["modules"])
    changed = _model(make_block)
    exec(found["lines"].iloc[0], {"model": changed})
    plain = _model(make_block)
    for each in (plain, changed):
        _step(each)
    for one, other in zip(plain.parameters(), changed.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_the_twin_of_a_block_that_writes_over_its_argument_is_checkpointed():
    found = _checkpoints(_recorded(_model(lambda: _InPlace(inplace=False))))
    assert list(found["modules"]) == ["1, 2, 3", "1, 3"]


class _Tempered(nn.Module):
    """Divides by a temperature, which `change` changes before."""

    def __init__(self, change):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32))
        self.calls, self.first, self.length, self.scale = 0, True, 0, 1.0
        self.register_buffer("mean", torch.ones(32))
        self._change = change

    def forward(self, x):
        if self.first:
            self.first = False  # once for good
        self.length = len(x)  # equal in each call
        self._change(self, x)
        return x + self.layers(x / self.mean / (self.scale + self.calls))


def _count(block, x):
    block.calls += 1


def _anneal(block, x):
    block.scale *= 0.9


def _replace(block, x):
    block.mean = 0.5 * block.mean + 0.5 * x.detach().square().mean(0)


def _nothing(block, x):
    pass


@pytest.mark.parametrize(
    ("change", "attribute"), [(_count, "calls"), (_anneal, "scale"), (_replace, "mean"), (_nothing, "")]
)
def test_a_block_that_changes_its_own_attribute_is_not_checkpointed_and_its_twin_is(change, attribute):
    """Its second forward would compute with the new value. A part of it that changes nothing may be checkpointed."""
    model = _model(lambda: _Tempered(change))
    with memwatch.profile(holders=False) as prof:
        for _ in range(3):
            model.zero_grad()
            _step(model)
    blocks = [name for name, each in model.named_modules() if type(each) is _Tempered]
    changed = prof.ways.attrs["changed_attributes"]
    assert changed == (dict.fromkeys(blocks, attribute) if attribute else {})
    found = _checkpoints(prof)
    assert len(found)
    assert all((".layers" in modules) == bool(attribute) for modules in found["modules"])
    parts = prof.ways[prof.ways["kind"] == "micro_batches"]
    if change is _replace:  # the results depend on the buffer
        assert parts.empty
    else:
        assert len(parts)
        assert all((f"`{attribute}`" in decision) == bool(attribute) for decision in parts["decision"])


@pytest.mark.words
@pytest.mark.parametrize(
    ("change", "count", "start", "end"),
    [
        (
            _count,
            1,
            "1 module (_Tempered): it changes",
            "it in a buffer and write the buffer in place, and it can be",
        ),
        (_count, 4, "4 modules (_Tempered): each changes", "and they can be"),
        (
            _replace,
            4,
            "4 modules (_Tempered): each changes",
            "or write this buffer in place, and they can be",
        ),
    ],
)
def test_a_note_says_what_would_make_a_checkpoint_possible(change, count, start, end):
    model = _model(lambda: _Tempered(change), count)
    with memwatch.profile(holders=False) as prof:
        for _ in range(3):
            _step(model)
    (text,) = [text for _, text in prof.notes if "no checkpoint is offered" in text]
    assert text.startswith(f"no checkpoint is offered for {start} its own attribute")
    assert text.endswith(f"{end} checkpointed")


class _OwnNumber(int):
    def __eq__(self, other):
        raise AssertionError("code of the program ran")

    __hash__ = int.__hash__


def test_numbers_of_the_programs_own_classes_are_not_compared():
    def set_own(block, x):
        block.calls = _OwnNumber(0)

    model = _model(lambda: _Tempered(set_own))
    with memwatch.profile(holders=False) as prof:
        for _ in range(3):
            _step(model)
    assert not prof.ways.attrs["changed_attributes"]
