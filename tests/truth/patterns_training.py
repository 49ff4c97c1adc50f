"""Training loops as people write them."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional
from truth_facts import GRAD, GRADIENT, RESULT, SAVED, STEP, UNNAMED, Fact, Ran, f32, pattern, var

import memwatch

ROWS, IN, HIDDEN, OUT = 64, 53, 331, 31


class Net(nn.Module):
    def __init__(self, hidden=HIDDEN):
        super().__init__()
        self.up, self.down = nn.Linear(IN, hidden), nn.Linear(hidden, OUT)

    def forward(self, x):
        h = functional.relu(self.up(x))  # peak: hidden
        return self.down(h)  # peak: outputs


def hidden_and_its_gradient(rows=ROWS, hidden=HIDDEN):
    return (
        Fact(f32(rows, hidden), "activation", "hidden", f"{SAVED}|{var('h')}", "net|Net|student", "relu"),
        Fact(f32(rows, hidden), "temporary", "hidden", f"{UNNAMED}|{RESULT}|{var('input')}", "up", "addmm"),
        Fact(f32(rows, hidden), "temporary", "outputs", GRADIENT, "down", "mm"),
        Fact(
            f32(rows, hidden),
            "temporary",
            "hidden",
            f"{GRADIENT}|{RESULT}",
            "net|Net|student",
            "threshold_backward",
        ),
    )


def weight_gradients():
    """Facts about the gradients of `Net`: in `.grad`, or on their way there."""
    return (
        Fact(f32(HIDDEN, IN), "gradient", "hidden", GRAD, "up", "mm"),
        Fact(f32(OUT, HIDDEN), "gradient", "outputs", GRAD, "down", "mm"),
        Fact(f32(HIDDEN, IN), "temporary", "hidden", GRADIENT, "up", "mm"),
    )


@pattern(
    *hidden_and_its_gradient(1024),
    Fact(f32(1024, IN), "input", "batch", f"{SAVED}|{var('x')}"),
    Fact(f32(1024, OUT), "temporary", "outputs", f"{GRADIENT}|{var('y')}|{UNNAMED}|{RESULT}", "down|net|Net"),
    Fact(f32(1024, OUT), "activation", "outputs", f"{SAVED}|{var('y')}", "down"),
    Fact(f32(1024, OUT), "temporary", "loss", f"{GRADIENT}|{RESULT}|{UNNAMED}"),
)
def sgd_with_momentum():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)
    with memwatch.profile() as prof:
        for _ in range(3):
            x = torch.randn(1024, IN)  # peak: batch
            y = net(x)
            loss = y.pow(2).mean()  # peak: loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            del x, y, loss
            prof.step()
    return Ran(prof, {"net": net})


@pattern(
    Fact(f32(HIDDEN, IN), "temporary", "hidden", GRADIENT, "up", "mm"),
    Fact(f32(OUT, HIDDEN), "temporary", "outputs", GRADIENT, "down", "mm"),
    Fact(f32(HIDDEN, IN), "gradient", "hidden", GRAD, "up", "mm"),
    Fact(f32(OUT, HIDDEN), "gradient", "outputs", GRAD, "down", "mm"),
    *hidden_and_its_gradient(16),
)
def gradient_accumulation():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    micro_batches = [torch.randn(16, IN) for _ in range(4)]
    with memwatch.profile() as prof:
        for _ in range(2):
            for x in micro_batches:
                net(x).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    return Ran(prof, {"net": net})


def steps_of(make_optimizer, rows=8):
    net = Net()
    optimizer = make_optimizer(net.parameters())
    x = torch.randn(rows, IN)
    with memwatch.profile() as prof:
        for _ in range(3):
            net(x).pow(2).mean().backward()
            optimizer.step()  # peak: step
            optimizer.zero_grad()
            prof.step()
    return Ran(prof, {"net": net})


TEMPORARIES = tuple(
    Fact(f32(*shape), "temporary", "step", f"{STEP}|{RESULT}")
    for shape in ((HIDDEN, IN), (OUT, HIDDEN), (HIDDEN,), (OUT,))
)


@pattern(*TEMPORARIES)
def adam_foreach():
    return steps_of(lambda parameters: torch.optim.Adam(parameters, foreach=True))


@pattern(*TEMPORARIES)
def adam_single():
    return steps_of(lambda parameters: torch.optim.Adam(parameters, foreach=False))


@pattern(*hidden_and_its_gradient(8), *TEMPORARIES)
def adamw_fused():
    return steps_of(lambda parameters: torch.optim.AdamW(parameters, fused=True))


@pattern()
def adam_amsgrad_after_its_first_step():
    return steps_of(lambda parameters: torch.optim.Adam(parameters, amsgrad=True, fused=True))


@pattern(
    *(
        Fact(
            f32(*shape),
            "temporary|gradient",
            "clip|hidden|outputs",
            f"{UNNAMED}|{RESULT}|{GRADIENT}|{GRAD}",
            "|up|down",
        )
        for shape in ((HIDDEN, IN), (OUT, HIDDEN))
    ),
    *hidden_and_its_gradient(8),
)
def gradient_clipping():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True)
    x = torch.randn(8, IN)
    with memwatch.profile() as prof:
        for _ in range(3):
            net(x).pow(2).mean().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=True)  # peak: clip
            optimizer.step()
            optimizer.zero_grad()
    return Ran(prof, {"net": net})


FLAT = HIDDEN * IN + HIDDEN + OUT * HIDDEN + OUT


@pattern(
    Fact(
        f32(FLAT),
        "temporary|optimizer state|held",
        "lbfgs",
        rf"{STEP}|{RESULT}|state|`.*`, (local variable|argument) of `(step|_.*)`",
    ),
)
def lbfgs_history():
    net, x = Net(), torch.randn(8, IN)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=6, history_size=5)

    def closure():
        optimizer.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        return loss

    with memwatch.profile() as prof:
        for _ in range(2):
            optimizer.step(closure)  # peak: lbfgs
    return Ran(prof, {"net": net})


@pattern(
    Fact(f32(HIDDEN, IN), "held", "ema dict", var("average"), op="clone"),
    Fact(f32(OUT, HIDDEN), "held", "ema dict", var("average"), op="clone"),
    Fact(f32(401, IN), "input", "ema batch", SAVED),
    *hidden_and_its_gradient(401),
    *weight_gradients(),
)
def ema_in_a_dict():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with memwatch.profile() as prof:
        average = {name: value.detach().clone() for name, value in net.named_parameters()}  # peak: ema dict
        for _ in range(3):
            net(torch.randn(401, IN)).pow(2).mean().backward()  # peak: ema batch
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for name, value in net.named_parameters():
                    average[name].mul_(0.99).add_(value, alpha=0.01)
            prof.step()
    return Ran(prof, {"net": net})


@pattern(
    Fact(f32(HIDDEN, IN), "held|parameter", "ema copy", r"`average\.|parameter", "average.up|up|", "clone"),
    Fact(
        f32(OUT, HIDDEN), "held|parameter", "ema copy", r"`average\.|parameter", "average.down|down|", "clone"
    ),
    Fact(f32(401, IN), "input", "ema batch", SAVED),
    *hidden_and_its_gradient(401),
    *weight_gradients(),
)
def ema_by_deepcopy():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with memwatch.profile() as prof:
        average = copy.deepcopy(net).requires_grad_(False)  # peak: ema copy
        for _ in range(3):
            net(torch.randn(401, IN)).pow(2).mean().backward()  # peak: ema batch
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for slow, fast in zip(average.parameters(), net.parameters()):
                    slow.lerp_(fast, 0.01)
            prof.step()
    return Ran(prof)


@pattern(
    Fact(f32(607, IN), "input", "zeros batch", SAVED), *hidden_and_its_gradient(607), *weight_gradients()
)
def gradients_kept_as_zeros():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with memwatch.profile() as prof:
        for _ in range(3):
            optimizer.zero_grad(set_to_none=False)
            net(torch.randn(607, IN)).pow(2).mean().backward()  # peak: zeros batch
            optimizer.step()
    return Ran(prof, {"net": net})


@pattern(
    Fact(f32(300, 2003), "temporary", "logits", var("logits"), "net|Linear", "addmm"),
    Fact(f32(300, 2003), "activation", "cross entropy", SAVED, op="log_softmax.default"),
    Fact(f32(300, 2003), "temporary", "cross entropy", GRADIENT, op="backward"),
)
def logits_kept_through_backward():
    net, targets = nn.Linear(IN, 2003), torch.randint(2003, (300,))
    with memwatch.profile() as prof:
        for _ in range(2):
            logits = net(torch.randn(300, IN))  # peak: logits
            loss = functional.cross_entropy(logits, targets)  # peak: cross entropy
            loss.backward()
            net.zero_grad()
    return Ran(prof, {"net": net})


@pattern(
    Fact(f32(257, HIDDEN), "activation", "hidden", SAVED, "net|Net", "relu"),
    Fact(f32(257, HIDDEN), "temporary", "hidden", f"{UNNAMED}|{RESULT}|{var('input')}", "up", "addmm"),
    Fact(f32(257, OUT), "activation", "outputs", SAVED, "down"),
    Fact(f32(257, IN), "input", "history", f"{SAVED}|{var('x')}"),
)
def loss_history_that_keeps_graphs():
    net, history = Net(), []
    with memwatch.profile() as prof:
        for _ in range(5):
            loss = net(torch.randn(257, IN)).pow(2).mean()  # peak: history
            history.append(loss)
    return Ran(prof, {"net": net})


@pattern(
    *hidden_and_its_gradient(300),
    Fact(f32(300, 719), "temporary", "hidden", f"{UNNAMED}|{RESULT}|{var('input')}", "up", "addmm"),
    Fact(f32(300, 719), "temporary", "hidden", f"{var('h')}|{RESULT}", "teacher|Net", "relu"),
    Fact(f32(300, IN), "input", "distilled", f"{SAVED}|{var('x')}"),
)
def distillation():
    teacher, student = Net(719).eval(), Net()
    with memwatch.profile() as prof:
        for _ in range(2):
            x = torch.randn(300, IN)  # peak: distilled
            with torch.no_grad():
                target = teacher(x)
            functional.mse_loss(student(x), target).backward()
            student.zero_grad()
    return Ran(prof, {"teacher": teacher, "student": student})


@pattern(
    *(
        Fact(
            f32(*shape),
            "temporary|activation|held|gradient",
            f"inner step|{mark}|inner gradient",
            f"{SAVED}|{var('fast')}|{var('grads')}|{var('grad')}|{GRADIENT}|{UNNAMED}",
            module,
        )
        for shape, mark in (((HIDDEN, IN), "hidden"), ((OUT, HIDDEN), "outputs"))
        for module in ("", "up|down")
    ),
    *(
        Fact(
            f32(rows, HIDDEN),
            "activation|temporary",
            "hidden|outputs|inner gradient|meta",
            f"{SAVED}|{GRADIENT}|{UNNAMED}|{var('input')}",
            module,
        )
        for rows in (40, 41)
        for module in ("", "net|Net|up|down")
    ),
)
def maml():
    net = Net()
    support, query = torch.randn(40, IN), torch.randn(41, IN)
    with memwatch.profile() as prof:
        for _ in range(2):
            fast = dict(net.named_parameters())
            for _ in range(3):
                loss = torch.func.functional_call(net, fast, support).pow(2).mean()  # peak: inner loss
                # peak: inner gradient
                grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
                fast = {
                    name: value - 0.1 * grad  # peak: inner step
                    for (name, value), grad in zip(fast.items(), grads)
                }
            torch.func.functional_call(net, fast, query).pow(2).mean().backward()  # peak: meta
            net.zero_grad()
            del fast, grads, loss
    return Ran(prof, {"net": net})
