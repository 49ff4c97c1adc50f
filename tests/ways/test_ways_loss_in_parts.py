"""A loss in parts: offered where only a cross entropy of the program's own code reads the logits."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.nn import functional
from ways import run_lines

import memwatch

_cross_entropy = functional.cross_entropy
_WIDTH, _WORDS, _TOKENS = 32, 2_000, 256


class _Model(nn.Module):
    def __init__(self, head):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU())
        self.head = head

    def forward(self, x):
        return self.head(self.body(x))


class _Training:
    """A language model of one layer; `loss` makes the loss of its result."""

    def __init__(self, loss, head=None):
        torch.manual_seed(0)
        gc.collect()
        self.model = _Model(nn.Linear(_WIDTH, _WORDS) if head is None else head)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.x, self.target = torch.randn(4, _TOKENS // 4, _WIDTH), torch.randint(0, _WORDS, (_TOKENS,))
        self.target[:7] = -100
        self._loss = loss

    def step(self):
        self.optimizer.zero_grad()
        self._loss(self.model(self.x), self.target).backward()
        self.optimizer.step()


def _of_function(logits, target):
    return functional.cross_entropy(logits.flatten(0, 1), target)


def _of_variable(logits, target):
    logits = logits[:, :-1].reshape(-1, logits.shape[-1])  # a copy
    return functional.cross_entropy(logits, target[: len(logits)], label_smoothing=0.1)


def _of_copy(logits, target):
    rows = logits[:, :-1].reshape(-1, logits.shape[-1])  # a copy, while the logits are alive too
    return functional.cross_entropy(rows, target[: len(rows)])


def _of_module(logits, target):
    return nn.CrossEntropyLoss(reduction="sum")(logits.view(-1, logits.shape[-1]), target) / 100


def _of_number_of_words(logits, target):
    """The program names the size of the vocabulary itself, and has its own name for the function."""
    return _cross_entropy(logits.view(-1, _WORDS), target, weight=torch.arange(1.0, 1 + _WORDS))


def _of_each_token(logits, target):
    return functional.cross_entropy(logits.flatten(0, 1), target, reduction="none").mean()


def _with_accuracy(logits, target):
    assert logits.argmax(-1).shape == logits.shape[:-1]
    return _of_function(logits, target)


def _with_penalty(logits, target):
    return _of_function(logits, target) + logits.logsumexp(-1).square().mean()


def _recorded(training):
    training.step()
    with memwatch.profile(holders=False) as prof:
        training.step()
        training.step()
    return prof


def _way_of(prof):
    found = [way for way in prof.ways.itertuples() if way.kind == "loss_in_parts"]
    return found[0] if found else None


@pytest.mark.parametrize(
    "loss", [_of_function, _of_variable, _of_copy, _of_module, _of_number_of_words, _of_each_token]
)
def test_it_gives_the_promised_peak_and_nearly_the_same_results(loss):
    """In evaluation the model returns logits as before."""
    way = _way_of(_recorded(_Training(loss)))
    assert way.basis == "simulated"
    assert way.time_ratio > 1
    assert "rounds" in way.decision
    changed = _Training(loss)
    run_lines(way.lines, training=changed)
    assert _recorded(changed).peak_bytes == pytest.approx(way.peak_bytes, rel=0.02)
    plain = _Training(loss)
    _recorded(plain)
    for one, other in zip(plain.model.parameters(), changed.model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    with torch.no_grad():
        assert changed.model(changed.x).shape == (4, _TOKENS // 4, _WORDS)


def test_together_with_checkpoints_it_keeps_its_promise():
    """What the parts have alive is beside what the checkpoints keep."""

    def deep():
        training = _Training(_of_function)
        torch.manual_seed(0)
        block = (nn.Linear(_WIDTH, 32 * _WIDTH), nn.GELU(), nn.Linear(32 * _WIDTH, _WIDTH))
        training.model.body = nn.Sequential(*(nn.Sequential(*block) for _ in range(4)))
        return training

    found = [way for way in _recorded(deep()).ways.itertuples() if way.kind == "checkpoint + loss_in_parts"]
    assert found
    for way in found:
        changed = deep()
        run_lines(way.lines, training=changed)
        assert _recorded(changed).peak_bytes == pytest.approx(way.peak_bytes, rel=0.02)


def test_it_is_offered_beside_an_evaluation_without_gradients():
    """Its loss has no backward, and its logits stay whole."""

    class Evaluated(_Training):
        def step(self):
            super().step()
            with torch.no_grad():
                self._loss(self.model(self.x[:1]), self.target[: _TOKENS // 4])

    way = _way_of(_recorded(Evaluated(_of_function)))
    changed = Evaluated(_of_function)
    run_lines(way.lines, training=changed)
    assert _recorded(changed).peak_bytes == pytest.approx(way.peak_bytes, rel=0.02)


class _TwoHeads(_Training):
    """Another loss, of large tensors, is computed between the logits and their cross entropy."""

    def __init__(self, words, most_pixels):
        super().__init__(_of_function, nn.Linear(_WIDTH, words))
        self.target %= words
        self.pixels = nn.Linear(_WIDTH, most_pixels)

    def step(self):
        self.optimizer.zero_grad()
        hidden = self.model.body(self.x)
        pixels, logits = self.pixels(hidden), self.model.head(hidden)
        pixels_loss = functional.binary_cross_entropy_with_logits(pixels, torch.zeros_like(pixels))
        loss = self._loss(logits, self.target)
        del pixels, logits
        (pixels_loss + loss).backward()
        self.optimizer.step()


def test_a_variable_for_the_logits_keeps_the_input_of_the_head():
    """The stand-in for the logits is this input; it stays as long as the logits would."""

    class Wide(_Training):
        def __init__(self):
            super().__init__(_of_function)
            self.first = nn.Linear(_WIDTH, 2 * _WIDTH)
            block = (nn.Linear(2 * _WIDTH, 64 * _WIDTH), nn.GELU(), nn.Linear(64 * _WIDTH, 2 * _WIDTH))
            self.model.body = nn.Sequential(
                *(nn.Sequential(*block) for _ in range(3)), nn.LayerNorm(2 * _WIDTH)
            )
            self.model.head = nn.Linear(2 * _WIDTH, _WORDS)
            self.x = self.first(self.x).detach().repeat(2, 1, 1)
            self.target = self.target.repeat(2)

        def step(self):
            self.optimizer.zero_grad()
            self.logits = self.model(self.x)
            self._loss(self.logits, self.target).backward()
            self.optimizer.step()

    found = [way for way in _recorded(Wide()).ways.itertuples() if "loss_in_parts" in way.kind]
    assert found
    for way in found:
        changed = Wide()
        run_lines(way.lines, training=changed)
        assert _recorded(changed).peak_bytes == pytest.approx(way.peak_bytes, rel=0.003)
        del changed


def test_it_counts_no_other_loss_that_is_computed_after_the_logits():
    """Ten words have small logits: their parts spare next to nothing."""
    assert _way_of(_recorded(_TwoHeads(10, 4_000))) is None


def test_beside_another_loss_it_keeps_its_promise():
    """The other loss has tensors of nearly the size of the logits, which stay whole."""
    way = _way_of(_recorded(_TwoHeads(4_000, 3_000)))
    changed = _TwoHeads(4_000, 3_000)
    run_lines(way.lines, training=changed)
    assert _recorded(changed).peak_bytes == pytest.approx(way.peak_bytes, rel=0.02)


@pytest.mark.parametrize("loss", [_of_function, _with_accuracy, _with_penalty])
def test_its_lines_leave_a_program_that_reads_the_logits_correct(loss):
    """Any other use of the logits gets real ones."""
    lines = _way_of(_recorded(_Training(_of_function))).lines
    plain, changed = _Training(loss), _Training(loss)
    run_lines(lines, training=changed)
    plain.step()
    changed.step()
    for one, other in zip(plain.model.parameters(), changed.model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("loss", [_with_accuracy, _with_penalty])
def test_it_is_not_offered_where_the_program_reads_the_logits(loss):
    """With the change they would be computed in any case."""
    assert _way_of(_recorded(_Training(loss))) is None


def test_it_is_not_offered_where_the_logits_are_no_result_of_a_linear_layer():
    """The head has another layer after it, so its weight alone does not make the logits."""
    head = nn.Sequential(nn.Linear(_WIDTH, _WORDS), nn.Hardtanh())
    assert _way_of(_recorded(_Training(_of_function, head))) is None


def test_it_is_not_offered_for_a_loss_that_a_library_computes(monkeypatch):
    """Its lines may need the size of the vocabulary from the logits."""
    from memwatch.analysis.facts import places
    from memwatch.own_code import CodeOwner

    prof = _recorded(_Training(_of_function))

    def owners(self, stack):
        return [CodeOwner.TORCH, *[CodeOwner.INSTALLED] * (len(self.frames(stack)) - 1)]

    monkeypatch.setattr(places.CallStacks, "owners", owners)
    assert _way_of(prof) is None
