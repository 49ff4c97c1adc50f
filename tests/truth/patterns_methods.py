"""Methods of training and adaptation, written by hand or with torch's own tools."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel
from truth_facts import GRAD, GRADIENT, RESULT, SAVED, UNNAMED, Fact, Ran, f32, pattern, var

import memwatch

ROWS, IN, HIDDEN, OUT, RANK = 96, 59, 307, 37, 5
GRADIENTS = (
    Fact(f32(HIDDEN, IN), "gradient", "hidden", GRAD, "up", "mm"),
    Fact(f32(OUT, HIDDEN), "gradient", "outputs", GRAD, "down", "mm"),
    Fact(f32(HIDDEN, IN), "temporary", "hidden", GRADIENT, "up", "mm"),
)
ACTIVATIONS = (
    Fact(f32(ROWS, HIDDEN), "activation", "hidden", f"{SAVED}|{var('h')}", "net|Net", "tanh.default"),
    Fact(f32(ROWS, HIDDEN), "temporary", "hidden", f"{UNNAMED}|{RESULT}", "up", "addmm"),
    Fact(f32(ROWS, HIDDEN), "temporary", "outputs", GRADIENT, "down", "mm"),
    Fact(f32(ROWS, HIDDEN), "temporary", "hidden", GRADIENT, "net|Net", "tanh_backward"),
    Fact(f32(ROWS, OUT), "temporary|activation", "outputs", f"{SAVED}|{GRADIENT}|{UNNAMED}", "down"),
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(IN, HIDDEN), nn.Linear(HIDDEN, OUT)

    def forward(self, x):
        h = torch.tanh(self.up(x))  # peak: hidden
        return self.down(h)  # peak: outputs


class LoRA(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(IN, HIDDEN, bias=False).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(RANK, IN))
        self.up = nn.Parameter(torch.zeros(HIDDEN, RANK))
        self.merged = None

    def merge(self):
        self.merged = self.base.weight + self.up @ self.down  # peak: merged

    def forward(self, x):
        if self.merged is not None:
            return functional.linear(x, self.merged)  # peak: by merged
        return self.base(x) + x @ self.down.T @ self.up.T


@pattern(
    Fact(f32(HIDDEN, IN), "temporary|held", "merged", var("net.merged"), op="add"),
    Fact(f32(301, IN), "input", "to evaluate", var("batch")),
    Fact(f32(301, HIDDEN), "temporary", "by merged", UNNAMED, "net|LoRA", "mm"),
    Fact(f32(301, HIDDEN), "temporary", "probabilities", RESULT, "", "softmax"),
)
def adapters_by_hand_that_are_merged():
    net = LoRA()
    optimizer = torch.optim.AdamW([net.down, net.up], foreach=False)
    with memwatch.profile() as prof:
        for _ in range(2):
            net(torch.randn(ROWS, IN)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            net.merge()
            batch = torch.randn(301, IN)  # peak: to evaluate
            net(batch).softmax(-1)  # peak: probabilities
    return Ran(prof, {"net": net})


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimization, as its widespread implementation has it."""

    def __init__(self, params, base, **options):
        super().__init__(params, options)
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old_p"] = p.data.clone()  # peak: old weights
                p.add_(p.grad * 0.05)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old_p"]
        self.base.step()  # peak: averaged
        self.zero_grad()


@pattern(
    *(
        Fact(nbytes, "parameter", "old weights|", r"^parameter `", layer, "clone|^$")
        for nbytes, layer in ((f32(HIDDEN, IN), "up"), (f32(OUT, HIDDEN), "down"))
    ),
    *(
        Fact(nbytes, "optimizer state", "averaged", "`momentum_buffer` of", layer, "clone")
        for nbytes, layer in ((f32(HIDDEN, IN), "up"), (f32(OUT, HIDDEN), "down"))
    ),
    Fact(f32(HIDDEN), "parameter|optimizer state|gradient", "old weights|averaged|hidden|", ".*", "up"),
    *GRADIENTS,
    *ACTIVATIONS,
)
def sharpness_aware_minimization():
    net = Net()
    optimizer = SAM(net.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    x = torch.randn(ROWS, IN)
    with memwatch.profile() as prof:
        for _ in range(3):
            net(x).pow(2).mean().backward()
            optimizer.first_step()
            net(x).pow(2).mean().backward()
            optimizer.second_step()
            prof.step()
    return Ran(prof)  # the parameters' memory at the end is not that at the peak


class Lookahead:
    def __init__(self, optimizer, every=2):
        self.optimizer, self.every, self.count = optimizer, every, 0
        self.slow = [
            [p.detach().clone() for p in group["params"]]  # peak: slow weights
            for group in optimizer.param_groups
        ]

    @torch.no_grad()
    def step(self):
        self.optimizer.step()
        self.count += 1
        if self.count % self.every == 0:
            for group, slow in zip(self.optimizer.param_groups, self.slow):
                for p, s in zip(group["params"], slow):
                    s.add_(p - s, alpha=0.5)
                    p.copy_(s)


@pattern(
    *(
        Fact(nbytes, "held", "slow weights", var("lookahead.slow"), op="clone")
        for nbytes in (f32(HIDDEN, IN), f32(OUT, HIDDEN), f32(HIDDEN), f32(OUT))
    ),
    *GRADIENTS,
    *ACTIVATIONS,
)
def lookahead_around_an_optimizer():
    net = Net()
    x = torch.randn(ROWS, IN)
    with memwatch.profile() as prof:
        lookahead = Lookahead(torch.optim.Adam(net.parameters(), foreach=False))
        for _ in range(4):
            loss = net(x).pow(2).mean()
            loss.backward()
            lookahead.step()
            lookahead.optimizer.zero_grad()
            prof.step()
    return Ran(prof, {"net": net})


@pattern(*GRADIENTS, *ACTIVATIONS)
def weights_averaged_by_torch():
    net = Net()
    averaged = AveragedModel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(ROWS, IN)
    with memwatch.profile() as prof:
        for _ in range(3):
            optimizer.zero_grad()
            net(x).pow(2).mean().backward()
            optimizer.step()
            averaged.update_parameters(net)
            prof.step()
        with torch.no_grad():
            averaged(x)
    return Ran(prof, {"net": net, "averaged": averaged})


DIM, KEYS, IMAGES = 41, 1009, 23


class MoCo(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(IN, DIM), nn.Linear(IN, DIM)
        self.key.requires_grad_(False)
        self.register_buffer("queue", functional.normalize(torch.randn(DIM, KEYS), dim=0))

    def forward(self, first, second):
        q = functional.normalize(self.query(first), dim=1)
        with torch.no_grad():
            for ours, theirs in zip(self.query.parameters(), self.key.parameters()):
                theirs.mul_(0.99).add_(ours, alpha=0.01)
            k = functional.normalize(self.key(second), dim=1)
        positive = (q * k).sum(1, keepdim=True)
        negative = q @ self.queue.clone().detach()  # peak: negative
        logits = torch.cat([positive, negative], 1)  # peak: logits
        self.queue = torch.cat([k.T, self.queue[:, :-IMAGES]], 1)  # peak: queue
        return logits


@pattern(
    Fact(f32(DIM, KEYS), "activation", "negative", f"{SAVED}|{var('net.queue')}", "net|MoCo", "clone"),
    Fact(f32(DIM, KEYS), "buffer", "queue|", "buffer", "net|MoCo", "cat|^$"),
    Fact(f32(IMAGES, KEYS), "temporary", "negative", f"{var('negative')}|{UNNAMED}", "net|MoCo", "mm"),
    Fact(f32(IMAGES, KEYS + 1), "temporary", "logits", f"{var('logits')}|{UNNAMED}", "net|MoCo", "cat"),
    Fact(f32(IMAGES, KEYS + 1), "temporary|activation", "loss", f"{RESULT}|{SAVED}|{GRADIENT}|{UNNAMED}"),
    Fact(f32(IMAGES, KEYS), "temporary", "negative", f"{GRADIENT}", "net|MoCo"),
)
def contrastive_queue_in_a_buffer():
    net = MoCo()
    optimizer = torch.optim.SGD(net.query.parameters(), lr=0.1)
    with memwatch.profile() as prof:
        for _ in range(3):
            logits = net(torch.randn(IMAGES, IN), torch.randn(IMAGES, IN))
            loss = functional.cross_entropy(logits, torch.zeros(IMAGES, dtype=torch.long))  # peak: loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            del logits, loss
            prof.step()
    return Ran(prof, {"query": net.query, "key": net.key})  # the queue at the end lies elsewhere


STEPS, CELL = 11, 67


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(CELL, CELL, bias=False)

    def forward(self, x, h):
        return torch.tanh(self.w(h) + x)  # peak: next hidden


@pattern(
    Fact(
        f32(STEPS, 83, CELL), "input|held|temporary", "sequence", var("sequence", "truncated_backpropagation")
    ),
    Fact(
        f32(83, CELL),
        "activation|held",
        "next hidden",
        f"{SAVED}|{var('h')}|{UNNAMED}|{RESULT}",
        "net|Cell",
        "tanh.default",
    ),
    Fact(f32(83, CELL), "temporary", "next hidden", UNNAMED, "net|Cell|w", "mm|add"),
    Fact(
        f32(83, CELL), "temporary", "next hidden|square", GRADIENT, ".*|", "tanh_backward|mm|mul|pow|add|div"
    ),
    Fact(f32(83, CELL), "activation|temporary", "square", f"{SAVED}|{UNNAMED}|{RESULT}", "", "mul|pow"),
    Fact(f32(83, CELL), "input|activation|held", "first hidden", f"{SAVED}|{var('h')}"),
)
def truncated_backpropagation():
    net = Cell()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with memwatch.profile() as prof:
        h = torch.zeros(83, CELL)  # peak: first hidden
        for _ in range(4):
            sequence = torch.randn(STEPS, 83, CELL)  # peak: sequence
            h, loss = h.detach(), 0
            for x in sequence:
                h = net(x, h)
                loss = loss + h.pow(2).mean()  # peak: square
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            del sequence, x
    return Ran(prof, {"net": net})


@pattern(
    *(
        Fact(
            nbytes,
            "temporary|input",
            "perturbed",
            f"{var('weights')}|{UNNAMED}|{RESULT}|reached from .*`weights`",
            op="add|mul|randn",
        )
        for nbytes in (f32(HIDDEN, IN), f32(OUT, HIDDEN), f32(HIDDEN), f32(OUT))
    ),
    Fact(
        f32(2003, HIDDEN), "temporary", "hidden", f"{var('h')}|{RESULT}|{UNNAMED}", "net|Net|up", "tanh|addmm"
    ),
    Fact(f32(2003, OUT), "temporary", "outputs", f"{RESULT}|{UNNAMED}", "down"),
    Fact(f32(2003, IN), "held|input", "", var("x")),
)
def evolution_of_functional_weights():
    net = Net()
    x = torch.randn(2003, IN)
    with memwatch.profile() as prof, torch.no_grad():
        for seed in range(5):
            generator = torch.Generator().manual_seed(seed)
            weights = {
                name: p + 0.1 * torch.randn(p.shape, generator=generator)  # peak: perturbed
                for name, p in net.named_parameters()
            }
            torch.func.functional_call(net, weights, (x,)).pow(2).mean().item()
    return Ran(prof, {"net": net})
