"""Programs with several networks, with wrappers around one, or with data that a module's variable keeps."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from truth_facts import GRADIENT, RESULT, SAVED, UNNAMED, Fact, Ran, f32, of_module, pattern, var

import memwatch

ROWS, IN, HIDDEN, OUT = 64, 53, 331, 31


def mlp(inputs, hidden, outputs):
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


@pattern(
    Fact(f32(512, 167), "activation", "fake", SAVED, "generator.1", "relu"),
    Fact(f32(512, 167), "temporary", "fake", f"{UNNAMED}|{RESULT}", "generator.0", "addmm"),
    Fact(f32(512, 167), "temporary", "fake", GRADIENT, "generator.[12]", "mm.default|threshold_backward"),
    Fact(f32(512, 24), "activation|input", "fake", f"{SAVED}|{var('fake')}", "generator.2"),
    Fact(f32(512, 24), "input", "", f"{SAVED}|{var('real')}"),
    Fact(f32(512, 139), "activation", "judge fake|judge real|train generator", SAVED, "critic.1", "relu"),
    Fact(f32(512, 139), "temporary", "judge fake|judge real|train generator", UNNAMED, "critic.0", "addmm"),
    Fact(
        f32(512, 139),
        "temporary",
        "judge fake|judge real|train generator",
        GRADIENT,
        "critic.[12]",
        "mm.default|threshold_backward",
    ),
)
def gan_with_two_optimizers():
    generator, critic = mlp(16, 167, 24), mlp(24, 139, 1)
    makes = torch.optim.Adam(generator.parameters(), fused=True)
    judges = torch.optim.Adam(critic.parameters(), fused=True)
    real = torch.randn(512, 24)
    with memwatch.profile() as prof:
        for _ in range(2):
            fake = generator(torch.randn(512, 16))  # peak: fake
            judge = critic(real).mean()  # peak: judge real
            (critic(fake.detach()).mean() - judge).backward()  # peak: judge fake
            judges.step()
            judges.zero_grad()
            (-critic(fake).mean()).backward()  # peak: train generator
            makes.step()
            makes.zero_grad()
            del fake, judge
            prof.step()
    return Ran(prof, {"generator": generator, "critic": critic})


@pattern(
    Fact(f32(503, IN), "input", "second batch", f"{var('b')}|{SAVED}"),
    Fact(f32(503, 61), "temporary", "encode", var("a"), "encoder|Linear", "addmm"),
    Fact(f32(503, 61), "activation|input", "decode", SAVED, op="tanh.default"),
    Fact(f32(503, 61), "temporary", "decode", GRADIENT, "decoder|Linear|", "mm.default|tanh_backward"),
    Fact(f32(503, 307), "activation", "decode", f"{SAVED}|{var('out')}", "decoder|Linear", "addmm"),
    Fact(f32(503, 307), "temporary", "two roots loss", f"{GRADIENT}|{UNNAMED}", op="pow|mul|div|expand"),
)
def two_root_modules():
    encoder, decoder = nn.Linear(IN, 61), nn.Linear(61, 307)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
    with memwatch.profile() as prof:
        for _ in range(2):
            b = torch.randn(503, IN)  # peak: second batch
            a = encoder(b)  # peak: encode
            out = decoder(a.tanh())  # peak: decode
            loss = out.pow(2).mean()  # peak: two roots loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            del b, a, out, loss
    return Ran(prof, {"encoder": encoder, "decoder": decoder})


class Lit(nn.Module):
    """A module whose own forward is never called: its trainer calls `training_step`."""

    def __init__(self):
        super().__init__()
        self.net = mlp(IN, HIDDEN, OUT)

    def training_step(self, batch):
        return self.net(batch).pow(2).mean()  # peak: training step

    def configure_optimizers(self):
        return torch.optim.Adam(self.net.parameters(), fused=True)


class Trainer:
    def fit(self, model, batches):
        optimizer = model.configure_optimizers()
        for batch in batches:
            loss = model.training_step(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


@pattern(
    Fact(f32(499, HIDDEN), "activation", "training step", SAVED, "net.1", "relu"),
    Fact(f32(499, HIDDEN), "temporary", "training step", f"{UNNAMED}|{RESULT}", "net.0", "addmm"),
    Fact(
        f32(499, HIDDEN),
        "temporary",
        "training step",
        GRADIENT,
        r"net\.[12]",
        "mm.default|threshold_backward",
    ),
    Fact(f32(499, IN), "held", "loader", f"{var('batches')}|{var('batch')}|{SAVED}"),
)
def lightning_like():
    lit = Lit()
    with memwatch.profile() as prof:
        batches = [torch.randn(499, IN) for _ in range(3)]  # peak: loader
        Trainer().fit(lit, batches)
    return Ran(prof, {"lit": lit})


@pattern(
    Fact(f32(1021, 64), "held", "bank", f"{of_module('BANK')}|{SAVED}"),
    Fact(f32(128, 1021), "temporary", "similarity", var("similarity"), op="mm"),
    Fact(f32(128, 1021), "activation", "contrast", SAVED, op="log_softmax.default"),
    Fact(f32(128, 1021), "temporary", "contrast", GRADIENT, op="backward"),
)
def contrastive_memory_bank():
    net = nn.Linear(IN, 64)
    with memwatch.profile() as prof:
        BANK["features"] = torch.randn(1021, 64)  # peak: bank
        for step in range(3):
            queries = net(torch.randn(128, IN))
            similarity = queries @ BANK["features"].t()  # peak: similarity
            functional.cross_entropy(similarity, torch.arange(128)).backward()  # peak: contrast
            BANK["features"][step * 128 : (step + 1) * 128] = queries.detach()
            net.zero_grad()
            prof.step()
    BANK.clear()
    return Ran(prof, {"net": net})


BANK = {}
