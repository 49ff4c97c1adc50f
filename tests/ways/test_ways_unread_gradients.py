"""Modules that run with a graph and get gradients that nobody reads, such as a reference model."""

from __future__ import annotations

import contextlib
import gc

import pytest
import torch
from torch import nn
from torch.nn import functional

import memwatch

WIDTH, ROWS = 96, 512
KIND = "unread_gradients"


def chain(count=3):
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(count)))


def profiled(step):
    step()
    gc.collect()
    with memwatch.profile() as prof:
        step()
        step()
    return prof


def kinds(prof):
    return set(prof.ways["kind"])


def preferences(step_optimizer=True):
    """Return a step of DPO, whose reference model has no optimizer and runs without `no_grad`, and the names in it."""
    policy, reference = chain(), chain()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)

    def scores(model, x):
        logits = model(x)
        return logits.log_softmax(-1)[:, :8].square().sum(-1)

    def step():
        x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
        loss = -functional.logsigmoid(scores(policy, x) - scores(reference, x)).mean()
        loss.backward()
        if step_optimizer:
            optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step, {"policy": policy, "reference": reference, "model": reference}


def test_a_reference_model_needs_no_gradients():
    """The peak without them is the predicted one, and the loss is the same."""
    torch.manual_seed(0)
    step, _ = preferences()
    losses = [step() for _ in range(4)]
    torch.manual_seed(0)
    step, names = preferences()
    prof = profiled(step)
    ways = prof.ways[prof.ways["kind"] == KIND]
    (way,) = ways.to_dict("records")
    assert way["basis"] == "simulated"
    assert way["time_ratio"] < 1
    assert way["decision"] == ""  # so its code is the one that the summary shows
    exec(way["lines"], names)
    assert names["reference"][0][0].weight.requires_grad is False
    assert names["policy"][0][0].weight.requires_grad is True
    names["reference"].zero_grad()
    measured = profiled(step)
    assert way["peak_bytes"] == pytest.approx(measured.peak_bytes, rel=0.02)
    assert way["peak_bytes"] < prof.peak_bytes
    assert KIND not in kinds(measured)

    torch.manual_seed(0)
    step, names = preferences()
    names["reference"].requires_grad_(False)
    assert [step() for _ in range(4)] == losses


def test_a_backbone_that_no_optimizer_has_needs_no_gradients():
    """The optimizer has the head alone."""
    model = nn.Sequential(chain(), nn.Linear(WIDTH, 8))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)

    def step():
        x = torch.randn(ROWS, WIDTH)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    prof = profiled(step)
    (way,) = prof.ways[prof.ways["kind"] == KIND].to_dict("records")
    exec(way["lines"], {"model": model})
    model.zero_grad()
    assert model[1].weight.requires_grad
    assert way["peak_bytes"] == pytest.approx(profiled(step).peak_bytes, rel=0.02)


class Attention(nn.Module):
    """Its backward reshapes gradients: `clone`, and a view of the copy."""

    def __init__(self, read):
        super().__init__()
        self.qkv, self.out, self.read = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), read

    def forward(self, x):
        batch, time, _ = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, 4, -1).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, time, WIDTH)
        if self.read is not None:
            found.register_hook(self.read)
        return x + self.out(found)


def attending(read=None):
    """Return a step whose teacher has attention and no optimizer, and the teacher."""
    student = nn.Sequential(*(Attention(None) for _ in range(2)))
    teacher = nn.Sequential(*(Attention(read) for _ in range(4)))
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)

    def step():
        x = torch.randn(16, 64, WIDTH)
        (student(x) - teacher(x)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, teacher


def test_a_teacher_with_attention_needs_no_gradients():
    step, teacher = attending()
    (way,) = (prof := profiled(step)).ways.query("kind == @KIND").to_dict("records")
    exec(way["lines"], {"teacher": teacher, "model": teacher})
    teacher.zero_grad()
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert way["peak_bytes"] == pytest.approx(profiled(step).peak_bytes, rel=0.02)
    assert way["peak_bytes"] < 0.8 * prof.peak_bytes


class SavingProduct(torch.autograd.Function):
    """Saves both factors, whichever gradient is needed."""

    @staticmethod
    def forward(ctx, first, second):
        ctx.save_for_backward(first, second)
        return first * second

    @staticmethod
    def backward(ctx, gradient):
        first, second = ctx.saved_tensors
        return gradient * second, gradient * first


@pytest.mark.parametrize("product", [torch.mul, lambda one, other: one @ other.T, SavingProduct.apply])
def test_a_product_of_both_models_saves_no_factor_for_a_gradient_that_nobody_reads(product):
    """A function of the program's own saves them all the same."""
    student, teacher = chain(1), chain(1)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)

    def step():
        x = torch.randn(ROWS, WIDTH)
        loss = 0.0
        for _ in range(6):
            loss = loss + product(student(x), teacher(x)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    (way,) = profiled(step).ways.query("kind == @KIND").to_dict("records")
    teacher.requires_grad_(False).zero_grad()
    assert way["peak_bytes"] == pytest.approx(profiled(step).peak_bytes, rel=0.02)


def test_a_teacher_whose_gradients_a_hook_reads_within_the_attention_keeps_them():
    seen = []
    step, _ = attending(lambda gradient: seen.append(gradient.flatten()[0].item()))
    assert KIND not in kinds(profiled(step))
    assert seen


def test_without_a_step_of_an_optimizer_nothing_is_known():
    step, _ = preferences(step_optimizer=False)
    assert KIND not in kinds(profiled(step))


def with_reading(read):
    """A step whose second model has no optimizer, but `read` reads its gradients or those of its input."""
    model, other = chain(1), chain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        x = torch.randn(ROWS, WIDTH)
        read(model, other, x)
        optimizer.step()
        optimizer.zero_grad()
        other.zero_grad()

    return step


def trained_by_hand(model, other, x):
    (model(x) - other(x)).square().mean().backward()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.data -= 0.1 * parameter.grad


def clipped(model, other, x):
    (model(x) - other(x)).square().mean().backward()
    torch.nn.utils.get_total_norm([parameter.grad for parameter in other.parameters()]).item()


def through_a_frozen_model(model, other, x):
    other(model(x)).square().mean().backward()


def saliency(model, other, x):
    model(x).square().mean().backward()
    x.requires_grad_()
    other(x).square().mean().backward()
    x.grad.abs().max().item()


def saliency_by_grad(model, other, x):
    model(x).square().mean().backward()
    x.requires_grad_()
    loss = other(x).square().mean()
    (gradient,) = torch.autograd.grad(loss, x, retain_graph=True)
    loss.backward()
    gradient.abs().max().item()


def gradient_penalty(model, other, x):
    model(x).square().mean().backward()
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(other(x).sum(), x, create_graph=True)
    gradient.norm(dim=1).sub(1).square().mean().backward()


def hook_reads(model, other, x):
    seen = []
    handle = other[0][0].weight.register_post_accumulate_grad_hook(
        lambda it: seen.append(it.grad.norm().item())
    )
    (model(x) - other(x)).square().mean().backward()
    handle.remove()


def prompt(model, other, x):
    """A tensor that no module has is trained through the model."""
    soft = torch.zeros(ROWS, WIDTH, requires_grad=True)
    (model(x) - other(x + soft)).square().mean().backward()
    soft.data -= soft.grad


@pytest.mark.parametrize(
    "read",
    [
        trained_by_hand, clipped, through_a_frozen_model, saliency, saliency_by_grad, gradient_penalty, hook_reads,
        prompt,
    ],
)  # fmt: skip
def test_a_model_whose_gradients_are_read_keeps_them(read):
    assert KIND not in kinds(profiled(with_reading(read)))


def no_reading(model, other, x):
    (model(x) - other(x)).square().mean().backward()


def test_the_same_step_that_reads_no_gradients_does_not_need_them():
    assert KIND in kinds(profiled(with_reading(no_reading)))


def test_two_models_in_turns_keep_their_gradients():
    """In a GAN the step of the generator gives gradients to the discriminator, which its own optimizer has."""
    generator, discriminator = chain(), chain()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (generator, discriminator)]

    def step():
        for optimizer in optimizers:
            x = torch.randn(ROWS, WIDTH)
            discriminator(generator(x)).square().mean().backward()
            optimizer.step()
            for each in optimizers:
                each.zero_grad()

    assert KIND not in kinds(profiled(step))


def cut_off(iterations, *, has_second_optimizer):
    """Return a recording of two models that an error ends before the second optimizer has its turn."""
    model, other = chain(1), chain()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
    second = torch.optim.SGD(other.parameters(), lr=0.1)
    with contextlib.suppress(ValueError), memwatch.profile() as prof:
        for number in range(iterations + 1):
            model(torch.randn(ROWS, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            other(torch.randn(ROWS, WIDTH)).square().mean().backward()
            if number == iterations:
                raise ValueError
            if has_second_optimizer:
                second.step()
            second.zero_grad()
    return prof


def test_a_recording_that_ends_before_the_second_optimizer_steps_does_not_end_its_training():
    """It does not show yet that there are two optimizers. After some iterations it shows that there is only one."""
    early = kinds(cut_off(0, has_second_optimizer=True))
    assert early.isdisjoint({KIND, "sgd", "adafactor", "micro_batches", "step_in_backward"})
    assert KIND not in kinds(cut_off(3, has_second_optimizer=True))
    assert KIND in kinds(cut_off(3, has_second_optimizer=False))


def test_a_recording_that_ends_early_gets_advice_for_its_only_optimizer():
    """Its twin has gradients of another model, which no step has read so far."""
    model = chain(6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
    with contextlib.suppress(ValueError), memwatch.profile() as prof:
        for number in range(2):
            model(torch.randn(8, WIDTH)).square().mean().backward()
            if number == 1:
                raise ValueError
            optimizer.step()
            optimizer.zero_grad()
    assert {"sgd", "adafactor"} <= kinds(prof)
