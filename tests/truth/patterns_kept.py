"""Memory that a training keeps beside its weights: the best weights so far, predictions.

And programs that look like it.
"""

from __future__ import annotations

import copy

import torch
from torch import nn
from truth_facts import GRAD, GRADIENT, RESULT, SAVED, UNNAMED, Fact, Ran, f32, pattern, var

import memwatch

ROWS, IN, HIDDEN = 31, 211, 503


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(IN, HIDDEN, bias=False), nn.Linear(HIDDEN, IN, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))  # peak: forward


def training(rows=ROWS):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step():
        x = torch.randn(rows, IN)  # peak: batch
        loss = (net(x) - x).pow(2).mean()  # peak: loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return net, step


WEIGHTS = (
    Fact(f32(HIDDEN, IN), "gradient|temporary", "forward", f"{GRAD}|{GRADIENT}|{UNNAMED}", "net|Net|up|down"),
    Fact(f32(ROWS, IN), "input|activation|temporary", "batch", f"{SAVED}|{var('x')}"),
    Fact(
        f32(ROWS, IN), "temporary|activation", "forward|loss", f"{SAVED}|{UNNAMED}|{GRADIENT}|{RESULT}", ".*"
    ),
    Fact(f32(ROWS, HIDDEN), "temporary|activation", "forward", f"{SAVED}|{UNNAMED}|{GRADIENT}", ".*"),
)


@pattern(
    *WEIGHTS,
    Fact(f32(HIDDEN, IN), "held", "best", f"{var('best')}|{UNNAMED}|dictionary", op="clone"),
)
def best_weights_so_far():
    net, step = training()
    best = None
    with memwatch.profile() as prof:
        for _ in range(4):  # each is better than the last
            step()
            best = {name: value.clone() for name, value in net.state_dict().items()}  # peak: best
        net.load_state_dict(best)
        del best
    return Ran(prof, {"net": net})


class Stopper:
    def __init__(self):
        self.best = None

    def improved(self, net):
        self.best = copy.deepcopy(net.state_dict())  # peak: copied


@pattern(
    *WEIGHTS,
    Fact(f32(HIDDEN, IN), "held", "copied", r"\.best`?|`memo`|not seen|dictionary|" + UNNAMED),
)
def best_weights_in_an_object():
    net, step = training()
    stopper = Stopper()
    with memwatch.profile() as prof:
        for _ in range(4):
            step()
            stopper.improved(net)
        step()
    return Ran(prof, {"net": net})


@pattern(
    *WEIGHTS,
    Fact(f32(131, IN), "held", "forward", var("predicted"), "down", "mm"),
    Fact(f32(131 * 9, IN), "temporary", "score", f"{RESULT}|{UNNAMED}"),
    Fact(f32(131 * 9, IN), "input|held", "", var("data")),
)
def predictions_after_training():
    net, step = training()
    data = torch.randn(131 * 9, IN)
    with memwatch.profile() as prof:
        for _ in range(3):
            step()
        with torch.no_grad():
            predicted = []
            for rows in data.split(131):
                predicted.append(net(rows))
            (torch.cat(predicted) - data).pow(2).mean()  # peak: score
    return Ran(prof, {"net": net})


@pattern(
    *WEIGHTS,
    Fact(f32(1301, IN), "temporary", "forward", f"{var('targets')}|{RESULT}|{UNNAMED}", "down", "mm"),
    Fact(f32(1301, IN), "temporary|input", "crop", f"{var('crop')}|{UNNAMED}"),
    Fact(f32(4 * 1301, IN), "temporary", "mean target", f"{RESULT}|{UNNAMED}"),
)
def teacher_of_every_step():
    net, step = training()
    teacher = Net()
    with memwatch.profile() as prof:
        for _ in range(3):
            with torch.no_grad():
                targets = []
                for _ in range(4):
                    crop = torch.randn(1301, IN)  # peak: crop
                    targets.append(teacher(crop))
                torch.stack(targets).mean().item()  # peak: mean target
                del targets, crop
            step()
    return Ran(prof, {"net": net, "teacher": teacher})
