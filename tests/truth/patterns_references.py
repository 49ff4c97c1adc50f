"""Programs with references that Python does not show: arrays, `.grad`, functions that autograd calls."""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import nn
from truth_facts import CPP, GRADIENT, RESULT, SAVED, UNNAMED, Fact, Ran, f32, pattern, var

import memwatch

ROWS, IN, HIDDEN = 251, 47, 97


@pattern(
    Fact(f32(113, 301), "temporary", "listed", var("arrays")),
    Fact(f32(113, 302), "temporary", "listed", var("arrays")),
    Fact(f32(113, 303), "temporary", "listed", f"{var('arrays')}|{var('tensor')}"),
    Fact(f32(201, 199), "temporary", "by name", var("named")),
    Fact(f32(103, 305), "held|temporary", "object", f"{var('objects')}|{var('tensor')}", most=3),
    Fact(f32(301, 307), "temporary", "last", RESULT),
)
def arrays_that_share_memory():
    with memwatch.profile() as prof:
        arrays, objects = [], np.empty(3, dtype=object)
        for number in range(3):
            tensor = torch.randn(113, 301 + number)  # peak: listed
            arrays.append(tensor.numpy())
        named = {"mean": torch.randn(201, 199).numpy()}  # peak: by name
        for number in range(3):
            objects[number] = torch.randn(103, 305)  # peak: object
        torch.randn(301, 307)  # peak: last
    assert named
    return Ran(prof)


@pattern(
    Fact(f32(113, 301), "held|temporary", "exported", var("arrays"), most=6),
    Fact(
        f32(117, 303),
        "held|temporary",
        "promised",
        rf"result .*from {var('futures')}|{var('future')}",
        most=4,
    ),
    Fact(f32(119, 307), "held|temporary", "stored", CPP, most=6),
    Fact(f32(301, 307), "temporary", "last", RESULT),
)
def memory_that_python_does_not_show():
    arrays, futures, losses = [], [], []

    def export(number):
        tensor = torch.full((113, 301), float(number))  # peak: exported
        arrays.append(np.from_dlpack(tensor))

    def promise(number):
        future = torch.futures.Future()
        future.set_result(torch.full((117, 303), float(number)))  # peak: promised
        futures.append(future)

    with memwatch.profile() as prof:
        for number in range(6):
            export(number)
        for number in range(4):
            promise(number)
        for number in range(6):
            leaf = torch.full((119, 307), float(number), requires_grad=True)  # peak: stored
            losses.append((leaf + 1).sum())
            del leaf
        torch.randn(301, 307)  # peak: last
    assert arrays[3][0, 0] == 3
    assert futures[2].value()[0, 0] == 2
    assert len(losses) == 6
    return Ran(prof)


@pattern(
    Fact(f32(ROWS, IN), "held|input", "image", f"{var('image')}|{SAVED}", op="randn"),
    Fact(f32(ROWS, IN), "gradient", "climb", r"`image` \.grad", "0|", "mm"),
    Fact(f32(ROWS, HIDDEN), "activation", "climb", SAVED, "1", "tanh.default"),
    Fact(f32(ROWS, HIDDEN), "temporary", "climb", f"{GRADIENT}|{UNNAMED}", "[12]"),
    Fact(f32(ROWS, 5), "temporary|activation", "climb", f"{SAVED}|{GRADIENT}|{UNNAMED}", ".*"),
)
def gradient_of_an_image():
    net = nn.Sequential(nn.Linear(IN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 5)).requires_grad_(False)
    with memwatch.profile() as prof:
        image = torch.randn(ROWS, IN, requires_grad=True)  # peak: image
        for _ in range(3):
            net(image).logsumexp(1).sum().backward()  # peak: climb
            with torch.no_grad():
                image += 0.1 * image.grad
            image.grad.zero_()
    return Ran(prof, {"net": net})


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        gate = torch.sigmoid(x)  # peak: gate
        ctx.save_for_backward(x, gate)
        return x * gate  # peak: gated

    @staticmethod
    def backward(ctx, gradient):
        x, gate = ctx.saved_tensors
        return gradient * (gate + x * gate * (1 - gate))  # peak: by hand


@pattern(
    Fact(f32(ROWS, 211), "activation", "rows", SAVED, "0", "addmm"),
    Fact(f32(ROWS, 211), "activation", "gate", SAVED, op="sigmoid"),
    Fact(f32(ROWS, 211), "activation", "gated", f"{SAVED}|{var('h')}", op="mul"),
    Fact(f32(ROWS, 211), "temporary", "head", var("gradient"), "1", "mm"),
    Fact(
        f32(ROWS, 211), "temporary", "by hand", rf"evaluation stack of `backward`|{RESULT}", op="mul|rsub|add"
    ),
    Fact(f32(ROWS, IN), "input", "rows", f"{SAVED}|{var('x')}", op="randn"),
)
def backward_that_is_written_by_hand():
    net = nn.Sequential(nn.Linear(IN, 211), nn.Linear(211, 7))
    with memwatch.profile() as prof:
        for _ in range(2):
            h = Swish.apply(net[0](torch.randn(ROWS, IN)))  # peak: rows
            net[1](h).pow(2).mean().backward()  # peak: head
            net.zero_grad()
            del h
    return Ran(prof, {"net": net})


@pattern(
    Fact(f32(ROWS, HIDDEN), "unknown|input|temporary", "", "not seen|`results`"),
    Fact(f32(ROWS, IN), "unknown|input|temporary", "", "not seen|`results`"),
)
def results_of_other_threads():
    net, results = nn.Linear(IN, HIDDEN), []

    def work():
        with torch.no_grad():
            results.append(net(torch.randn(ROWS, IN)))

    with memwatch.profile() as prof:
        for _ in range(2):
            worker = threading.Thread(target=work)
            worker.start()
            worker.join()
        results.pop().sum()
    return Ran(prof, {"net": net})


WEIGHTS = f32(IN * HIDDEN + HIDDEN + HIDDEN * 5 + 5)


@pattern(
    Fact(
        WEIGHTS,
        "optimizer state|temporary",
        "search",
        r"LBFGS|`(?!p`)\w+`, local variable of `step`",
        ".*",
        "sub|mul",
    ),
    Fact(
        WEIGHTS,
        "optimizer state|temporary",
        "search",
        r"LBFGS|local variable of `step`",
        ".*",
        "neg|clone|cat",
    ),
    Fact(f32(37, IN), "input|held", "", f"{var('x')}|{SAVED}|closure"),
)
def line_search_that_keeps_directions():
    net = nn.Sequential(nn.Linear(IN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 5))
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=6, history_size=4)
    x, y = torch.randn(37, IN), torch.randn(37, 5)

    def closure():
        optimizer.zero_grad()
        loss = (net(x) - y).pow(2).mean()
        loss.backward()
        return loss

    with memwatch.profile() as prof:
        for _ in range(2):
            optimizer.step(closure)  # peak: search
            prof.step()
    return Ran(prof, {"net": net})
