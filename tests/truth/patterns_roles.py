"""Tensors that leave their role and live on, or do not: gradients, parameters, buffers and optimizer state."""

from __future__ import annotations

import torch
from torch import nn
from truth_facts import RESULT, UNNAMED, Fact, Ran, f32, pattern, var

import memwatch

ROWS, IN, OUT = 6, 347, 41
WEIGHT = f32(OUT, IN)
LARGE = (19, IN, 83)
LOCAL = f"{var('large')}|{RESULT}|{UNNAMED}"
RISE = (
    Fact(f32(*LARGE), "temporary|held", "rise", LOCAL, op="zeros"),
    Fact(f32(*LARGE), "temporary|held", "exponential", RESULT, op="exp"),
)


def net_and_loss(net):
    return net(torch.randn(ROWS, IN)).pow(2).mean()  # peak: loss


def rise():
    large = torch.zeros(*LARGE)  # peak: rise
    large.exp()  # peak: exponential


def linear():
    return nn.Linear(IN, OUT, bias=False)


def gradients_logged(kept_of):
    net = linear()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    log = []
    with memwatch.profile() as prof:
        for _ in range(3):
            net_and_loss(net).backward()
            log.append(kept_of(net.weight.grad))
            optimizer.step()
            optimizer.zero_grad()
        rise()
    return Ran(prof, {"net": net})


@pattern(*RISE, Fact(WEIGHT, "held", "loss", var("log"), only=True))
def gradients_kept_in_a_list():
    return gradients_logged(lambda grad: grad)


@pattern(*RISE)
def gradients_logged_as_numbers():
    return gradients_logged(lambda grad: grad.norm().item())


@pattern(*RISE, Fact(WEIGHT, "gradient", "loss", r"`weight` \.grad", only=True))
def gradients_in_a_list_that_are_still_in_place():
    net = linear()
    with memwatch.profile() as prof:
        net_and_loss(net).backward()
        log = [net.weight.grad]
        rise()
        del log
    return Ran(prof, {"net": net})


@pattern(*RISE, Fact(WEIGHT, "gradient", "loss", r"`weight` \.grad", only=True))
def gradient_taken_out_and_put_back():
    net = linear()
    with memwatch.profile() as prof:
        net_and_loss(net).backward()
        task, net.weight.grad = net.weight.grad, None
        (task + 1).sum()
        net.weight.grad = task
        del task
        rise()
    return Ran(prof, {"net": net})


def optimizer_replaced(keep):
    net = linear()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    kept = None
    with memwatch.profile() as prof:
        net_and_loss(net).backward()
        optimizer.step()  # peak: first step
        optimizer.zero_grad()
        if keep:
            kept = optimizer.state_dict()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        rise()
        del kept
    return Ran(prof, {"net": net})


@pattern(*RISE, Fact(WEIGHT, "held", "first step", var("kept"), only=True))
def state_of_an_optimizer_that_is_gone():
    return optimizer_replaced(keep=True)


@pattern(*RISE)
def optimizer_replaced_with_its_state():
    return optimizer_replaced(keep=False)


def state_cleared(keep):
    net = linear()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    kept = []
    with memwatch.profile() as prof:
        net_and_loss(net).backward()
        optimizer.step()  # peak: cleared step
        optimizer.zero_grad()
        kept += [state["momentum_buffer"] for state in optimizer.state.values() if keep]
        optimizer.state.clear()
        rise()
        del kept
    return Ran(prof, {"net": net})


@pattern(*RISE, Fact(WEIGHT, "held", "cleared step", var("kept"), only=True))
def state_kept_when_it_was_cleared():
    return state_cleared(keep=True)


@pattern(*RISE)
def state_cleared_and_gone():
    return state_cleared(keep=False)


def loaded(keep):
    net = linear()
    with memwatch.profile() as prof:
        net(torch.randn(ROWS, IN))
        before = net.state_dict() if keep else None
        net.load_state_dict({"weight": torch.zeros(OUT, IN)}, assign=True)  # peak: loaded
        rise()
        del before
    return Ran(prof, {"net": net})


@pattern(*RISE, Fact(WEIGHT, "held", "", var("before"), only=True))
def parameters_assigned_and_the_old_ones_kept():
    return loaded(keep=True)


@pattern(*RISE)
def parameters_assigned():
    return loaded(keep=False)


class Statistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(OUT, IN))

    def forward(self, x):
        self.mean = self.mean * 0.9 + x  # peak: new mean


def averaged(keep):
    net = Statistics()
    with memwatch.profile() as prof:
        before = net.mean if keep else None
        net(torch.ones(OUT, IN))  # peak: ones
        rise()
        del before
    return Ran(prof, {"net": net})


@pattern(*RISE, Fact(WEIGHT, "held", "", var("before"), only=True))
def buffer_replaced_in_forward_and_kept():
    return averaged(keep=True)


@pattern(*RISE)
def buffer_replaced_in_forward():
    return averaged(keep=False)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(IN, 59, bias=False), nn.Linear(59, OUT, bias=False)

    def forward(self, x):
        return self.head(self.body(x))


def head_replaced(with_new_optimizer):
    net = Classifier()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with memwatch.profile() as prof:
        net_and_loss(net).backward()
        optimizer.step()
        optimizer.zero_grad()
        net.head = nn.Linear(59, 2 * OUT, bias=False)
        if with_new_optimizer:
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net_and_loss(net).backward()
        optimizer.step()
        optimizer.zero_grad()
        rise()
    return Ran(prof, {"net": net})


@pattern(
    *RISE, Fact(f32(59, OUT), "parameter", "", "an optimizer, as the parameter .* no module", "head .former.")
)
def head_replaced_that_an_optimizer_still_steps():
    return head_replaced(with_new_optimizer=False)


@pattern(*RISE)
def head_replaced_with_its_optimizer():
    return head_replaced(with_new_optimizer=True)


@pattern(
    Fact(WEIGHT, "parameter", "averaged", r"`averaged`|parameter `|input", "net|Linear|", "clone"),
    Fact(WEIGHT, "held|parameter", "", r"`own`|parameter `", "net|Linear|", "^$"),
    Fact(f32(1501, OUT), "temporary", "evaluated", f"{var('scores')}|{UNNAMED}|{RESULT}", "net|Linear|"),
    Fact(f32(1501, IN), "input|held|temporary", "evaluation data", f"{var('data')}|{var('input')}|{UNNAMED}"),
)
def evaluation_with_averaged_weights():
    net = linear()
    with memwatch.profile() as prof:
        averaged = net.weight.detach().clone()  # peak: averaged
        for _ in range(2):
            net(torch.randn(3, IN)).sum().backward()
            net.zero_grad()
            with torch.no_grad():
                averaged.lerp_(net.weight, 0.1)
                own, net.weight.data = net.weight.data, averaged
                data = torch.randn(1501, IN)  # peak: evaluation data
                scores = net(data).softmax(1)  # peak: evaluated
                net.weight.data = own
            del own, data, scores
    return Ran(prof)
