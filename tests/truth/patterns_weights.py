"""Weights that are computed, rounded, penalised or stepped while a forward or a backward runs."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from truth_facts import GRAD, GRADIENT, KERNEL, RESULT, SAVED, STEP, UNNAMED, Fact, Ran, f32, pattern, var

import memwatch

IN, HIDDEN, OUT = 59, 307, 37


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(IN, HIDDEN), nn.Linear(HIDDEN, OUT)

    def forward(self, x):
        h = torch.tanh(self.up(x))  # peak: hidden
        return self.down(h)  # peak: outputs


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = parametrizations.weight_norm(nn.Linear(IN, HIDDEN))
        self.second = parametrizations.spectral_norm(nn.Linear(HIDDEN, OUT))

    def forward(self, x):
        h = torch.tanh(self.first(x))  # peak: normed hidden
        return self.second(h)  # peak: normed outputs


@pattern(
    Fact(
        f32(HIDDEN, IN),
        "activation|temporary",
        "normed hidden",
        f"{SAVED}|{UNNAMED}|{GRADIENT}",
        ".*parametrizations.*|first|",
    ),
    Fact(
        f32(OUT, HIDDEN),
        "activation|temporary",
        "normed outputs",
        f"{SAVED}|{UNNAMED}|{GRADIENT}",
        ".*parametrizations.*|second|",
    ),
    Fact(
        f32(29, HIDDEN),
        "activation|temporary",
        "normed hidden|normed outputs",
        f"{SAVED}|{UNNAMED}|{GRADIENT}|{var('h')}",
        ".*",
    ),
    Fact(f32(29, OUT), "activation|temporary", "normed outputs", f"{SAVED}|{UNNAMED}|{GRADIENT}", ".*"),
    Fact(f32(29, OUT), "activation|temporary", "normed loss", f"{SAVED}|{UNNAMED}|{GRADIENT}"),
)
def weights_that_are_normed():
    net = Normed()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(29, IN)
    with memwatch.profile() as prof:
        for _ in range(3):
            net(x).pow(2).mean().backward()  # peak: normed loss
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    return Ran(prof, {"net": net})


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(IN, HIDDEN), nn.Linear(HIDDEN, 1)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))  # peak: critic


@pattern(
    Fact(
        f32(211, HIDDEN),
        "activation|temporary",
        "critic",
        f"{SAVED}|{UNNAMED}|{GRADIENT}|{RESULT}",
        "critic|Critic|up|down",
    ),
    Fact(f32(211, IN), "activation", "mixed", f"{SAVED}|{var('mixed')}", ""),
    Fact(
        f32(211, IN),
        "activation|temporary",
        "critic",
        f"{SAVED}|{GRADIENT}|{var('slope')}|{UNNAMED}",
        "critic|Critic|up",
    ),
    Fact(
        f32(211, IN),
        "activation|temporary",
        "penalty",
        f"{SAVED}|{GRADIENT}|{UNNAMED}",
        "",
    ),
    Fact(
        f32(HIDDEN, IN),
        "gradient|temporary",
        "critic",
        f"{GRAD}|{GRADIENT}",
        "critic|Critic|up",
    ),
)
def gradient_penalty():
    critic = Critic()
    optimizer = torch.optim.Adam(critic.parameters(), foreach=False)
    with memwatch.profile() as prof:
        for _ in range(3):
            mixed = torch.randn(211, IN, requires_grad=True)  # peak: mixed
            (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)  # peak: slope
            penalty = (slope.norm(2, dim=1) - 1).pow(2).mean()  # peak: penalty
            penalty.backward()  # peak: backward of the penalty
            optimizer.step()
            optimizer.zero_grad()
            del mixed, slope, penalty
            prof.step()
    return Ran(prof, {"critic": critic})


class Observed(nn.Module):
    """A layer that rounds weights and results during training, with ranges from its observers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(IN, HIDDEN, bias=False)
        self.register_buffer("low", torch.zeros(HIDDEN))
        self.register_buffer("high", torch.zeros(HIDDEN))

    def forward(self, x):
        weight = self.layer.weight
        self.low = torch.minimum(self.low, weight.detach().amin(1))  # peak: low
        self.high = torch.maximum(self.high, weight.detach().amax(1))  # peak: high
        scale = (self.high - self.low) / 255
        zeros = torch.zeros(HIDDEN, dtype=torch.int32)
        rounded = torch.fake_quantize_per_channel_affine(weight, scale, zeros, 0, -128, 127)  # peak: rounded
        return functional.linear(x, rounded)  # peak: from rounded


@pattern(
    Fact(
        f32(HIDDEN, IN),
        "activation|temporary",
        "rounded",
        f"{SAVED}|{var('rounded')}|{GRADIENT}",
        "net|Observed",
    ),
    Fact(HIDDEN * IN, "activation", "rounded", SAVED, "net|Observed"),
    Fact(f32(HIDDEN, IN), "temporary", "from rounded", GRADIENT, "net|Observed", "mm"),
    Fact(f32(HIDDEN, IN), "gradient", "rounded", GRAD, "layer"),
    Fact(
        f32(13, HIDDEN),
        "activation|temporary",
        "from rounded|rounded loss",
        f"{SAVED}|{UNNAMED}|{GRADIENT}",
        ".*|",
    ),
    Fact(f32(HIDDEN, IN), "workspace", "rounded", KERNEL, "net|Observed", "mul"),
    Fact(f32(HIDDEN), "buffer", "low|high", r"buffer|`net\.(low|high)`", "net|Observed", "minimum|maximum"),
    Fact(
        f32(HIDDEN),
        "temporary|activation",
        "rounded",
        f"{SAVED}|{UNNAMED}|{GRADIENT}|{var('scale')}",
        "net|Observed",
    ),
)
def training_aware_of_quantization():
    net = Observed()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(13, IN)
    with memwatch.profile() as prof:
        for _ in range(3):
            net(x).pow(2).mean().backward()  # peak: rounded loss
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    return Ran(prof, {"net": net})


@pattern(
    Fact(f32(HIDDEN, IN), "gradient", "hidden", GRAD, "up", "mm"),
    Fact(f32(OUT, HIDDEN), "gradient", "outputs", GRAD, "down", "mm"),
    *(
        Fact(f32(*shape), "temporary", "stepped", f"{STEP}|{RESULT}")
        for shape in ((HIDDEN, IN), (OUT, HIDDEN), (HIDDEN,), (OUT,))
    ),
)
def optimizer_within_backward():
    net = Net()
    optimizers = {p: torch.optim.Adam([p], foreach=False) for p in net.parameters()}

    def step(p):
        optimizers[p].step()  # peak: stepped
        optimizers[p].zero_grad()

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(step)
    x = torch.randn(7, IN)
    with memwatch.profile() as prof:
        for _ in range(3):
            net(x).pow(2).mean().backward()
            prof.step()
    return Ran(prof, {"net": net})
