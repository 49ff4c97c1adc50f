"""Training loops of the accelerate library, and its hooks that bring weights to where they are needed."""

from __future__ import annotations

import tempfile
from dataclasses import replace

import accelerate
import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from accelerate.state import AcceleratorState
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from truth_facts import (
    GRAD,
    GRADIENT,
    LIBRARY,
    RESULT,
    SAVED,
    UNNAMED,
    Fact,
    Ran,
    f32,
    pattern,
    var,
)  # fmt: skip

import memwatch

ROWS, IN, HIDDEN, OUT = 479, 43, 311, 37
WEIGHTS = ((HIDDEN, IN), (OUT, HIDDEN))


def accelerator_of(**options):
    """Return an accelerator with its own options.

    Otherwise the library would keep the options of the process's first accelerator.
    """
    AcceleratorState._reset_state(reset_partial_state=True)
    return accelerate.Accelerator(cpu=True, **options)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(IN, HIDDEN), nn.Linear(HIDDEN, OUT)

    def forward(self, x):
        h = functional.gelu(self.up(x))  # peak: hidden
        return self.down(h)  # peak: outputs


class Points(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.points = torch.randn(4 * rows, IN)  # peak: points

    def __len__(self):
        return len(self.points)

    def __getitem__(self, number):
        return self.points[number]


BATCH = Fact(f32(ROWS, IN), "input", f"batches|{LIBRARY}", f"{SAVED}|local|argument|not seen", op="stack|cat")
DATA = Fact(f32(4 * ROWS, IN), "held|input", "points", "points")


def training(rows=ROWS, loss="loss"):
    return (
        Fact(f32(rows, HIDDEN), "activation", "hidden", SAVED, "up", "addmm"),
        Fact(f32(rows, HIDDEN), "activation", "hidden", SAVED, "net|Net|model", "gelu.default"),
        Fact(f32(rows, HIDDEN), "temporary", "outputs", GRADIENT, "down", "mm.default"),
        Fact(f32(rows, HIDDEN), "temporary", "hidden", GRADIENT, "net|Net|model", "gelu_backward"),
        Fact(f32(rows, OUT), "activation|temporary", "outputs", f"{SAVED}|{var('y')}|{GRADIENT}", "down"),
        Fact(f32(rows, OUT), "temporary", loss, f"{UNNAMED}|{GRADIENT}", op="pow|mul|div|expand"),
        replace(DATA, nbytes=f32(4 * rows, IN)),
        replace(BATCH, nbytes=f32(rows, IN)),
        Fact(f32(HIDDEN, IN), "gradient|temporary", "hidden", f"{GRAD}|{GRADIENT}", "up", "mm"),
        Fact(f32(OUT, HIDDEN), "gradient|temporary", "outputs", f"{GRAD}|{GRADIENT}", "down", "mm"),
    )


AHEAD = r"`next_batch`, local variable of suspended generator `__iter__`"


@pattern(
    *training()[:6],
    *training()[8:],
    Fact(f32(4 * ROWS, IN), "held|input", "", r"`data\.tensors`|\.tensors of TensorDataset"),
    Fact(f32(ROWS, IN), "input", f"{LIBRARY}|tuples", f"{SAVED}|{var('x')}|{AHEAD}", op="stack"),
)
def acc_data_set_of_torch():
    accelerator = accelerator_of()
    net = Net()
    data = TensorDataset(torch.randn(4 * ROWS, IN))
    with memwatch.profile() as prof:
        loader = DataLoader(data, batch_size=ROWS)
        optimizer = torch.optim.AdamW(net.parameters(), fused=True)
        model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
        for (x,) in loader:  # peak: tuples
            y = model(x)
            loss = y.pow(2).mean()  # peak: loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    return Ran(prof, {"net": net})


@pattern(*training())
def acc_prepared():
    accelerator = accelerator_of()
    net = Net()
    with memwatch.profile() as prof:
        loader = DataLoader(Points(ROWS), batch_size=ROWS)
        optimizer = torch.optim.AdamW(net.parameters(), fused=True)
        model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
        for x in loader:  # peak: batches
            y = model(x)
            loss = y.pow(2).mean()  # peak: loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    return Ran(prof, {"net": net})


@pattern(
    *training(16),
    *(
        Fact(f32(*shape), "temporary|gradient", f"clip|{LIBRARY}", f"{UNNAMED}|{RESULT}|{GRADIENT}")
        for shape in WEIGHTS
    ),
)
def acc_accumulated_and_clipped():
    accelerator = accelerator_of(gradient_accumulation_steps=2)
    net = Net()
    with memwatch.profile() as prof:
        loader = DataLoader(Points(16), batch_size=16)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True)
        model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
        for x in loader:  # peak: batches
            with accelerator.accumulate(model):
                accelerator.backward(model(x).pow(2).mean())
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)  # peak: clip
                optimizer.step()
                optimizer.zero_grad()
            prof.step()
    return Ran(prof, {"net": net})


def half(*shape):
    return f32(*shape) // 2


def half_weights():
    """Facts about the weights that autocast converts, and about their gradients."""
    for shape, mark, child in ((WEIGHTS[0], "hidden", "up"), (WEIGHTS[1], "outputs", "down")):
        yield Fact(half(*shape), "activation", mark, f"{SAVED}|autocast", child, "_to_copy")
        yield Fact(half(*shape), "temporary", mark, GRADIENT, child, "mm.default")


@pattern(
    Fact(half(ROWS, HIDDEN), "activation", "hidden", SAVED, "up", "addmm"),
    Fact(half(ROWS, HIDDEN), "activation", "hidden", SAVED, "net|Net|model", "gelu.default"),
    Fact(half(ROWS, HIDDEN), "temporary", "outputs", GRADIENT, "down", "mm.default"),
    Fact(half(ROWS, HIDDEN), "temporary", "hidden", GRADIENT, "net|Net|model", "gelu_backward"),
    Fact(half(ROWS, IN), "activation", "hidden", SAVED, "up", "_to_copy"),
    Fact(half(ROWS, OUT), "temporary|activation", "outputs|loss", f"{UNNAMED}|{GRADIENT}|local", ".*|"),
    Fact(
        f32(ROWS, OUT),
        "activation|temporary",
        f"loss|step|{LIBRARY}",
        f"{SAVED}|{var('y')}|{GRADIENT}",
        ".*|",
    ),
    *half_weights(),
    *training(),
)
def acc_bfloat16():
    accelerator = accelerator_of(mixed_precision="bf16")
    net = Net()
    with memwatch.profile() as prof:
        loader = DataLoader(Points(ROWS), batch_size=ROWS)
        optimizer = torch.optim.AdamW(net.parameters(), fused=True)
        model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
        for x in loader:  # peak: batches
            y = model(x)  # peak: step
            loss = y.pow(2).mean()  # peak: loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            del x, y, loss
            prof.step()
    return Ran(prof, {"net": net})


INFERRED = (
    Fact(f32(ROWS, HIDDEN), "temporary", f"hidden|{LIBRARY}", f"{UNNAMED}|local|argument", "up", "addmm"),
    Fact(f32(ROWS, HIDDEN), "temporary", "hidden", f"{var('h')}|{UNNAMED}", "net|Net|model", "gelu.default"),
    Fact(f32(ROWS, IN), "input", "asked", f"{var('x')}|args"),
)


@pattern(*INFERRED, Fact(f32(ROWS, OUT), "temporary", "outputs", f"{RESULT}|{UNNAMED}", "down"))
def acc_weights_offloaded():
    net = accelerate.cpu_offload(Net().eval(), execution_device="cpu")
    with torch.no_grad(), memwatch.profile() as prof:
        for _ in range(3):
            x = torch.randn(ROWS, IN)  # peak: asked
            net(x)
    return Ran(prof)


@pattern(
    Fact(f32(HIDDEN, 1013), "parameter|temporary", LIBRARY, f"parameter|{UNNAMED}|local", ".*"),
    Fact(f32(19, HIDDEN), "temporary", LIBRARY, f"{UNNAMED}|local|argument", "0"),
    Fact(f32(19, 1013), "input", "deep asked", var("x")),
    Fact(f32(19, 1013), "temporary", LIBRARY, f"{UNNAMED}|local|argument", "1"),
)
def acc_weights_on_disk():
    net = nn.Sequential(nn.Linear(1013, HIDDEN), nn.Linear(HIDDEN, 1013), nn.Linear(1013, HIDDEN)).eval()
    with tempfile.TemporaryDirectory() as folder:
        accelerate.disk_offload(net, folder, execution_device="cpu")
        with torch.no_grad(), memwatch.profile() as prof:
            for _ in range(2):
                x = torch.randn(19, 1013)  # peak: deep asked
                net(x)  # peak: deep
    return Ran(prof)


class KeepsOutputs(ModelHook):
    def __init__(self):
        self.kept = []

    def post_forward(self, module, output):
        self.kept.append(output)
        return output


@pattern(
    Fact(f32(ROWS, HIDDEN), "held|temporary", LIBRARY, "kept", "up", "addmm"),
    *INFERRED,
    Fact(f32(ROWS, OUT), "temporary", "outputs", UNNAMED, "down"),
)
def acc_hook_that_keeps():
    net, hook = Net().eval(), KeepsOutputs()
    add_hook_to_module(net.up, hook)
    with torch.no_grad(), memwatch.profile() as prof:
        for _ in range(6):
            x = torch.randn(ROWS, IN)  # peak: asked
            net(x)
            prof.step()
    return Ran(prof, {"net": net})


@pattern(
    Fact(f32(ROWS, OUT), "held|temporary", "outputs", f"predictions|{var('y')}|{RESULT}", "down"),
    Fact(f32(4 * ROWS, OUT), "temporary|held", "whole", f"{RESULT}|local"),
    DATA,
    BATCH,
    *INFERRED,
)
def acc_gathered_predictions():
    accelerator = accelerator_of()
    net = Net().eval()
    predictions = []
    with torch.no_grad(), memwatch.profile() as prof:
        model, loader = accelerator.prepare(net, DataLoader(Points(ROWS), batch_size=ROWS))
        for x in loader:  # peak: batches
            y = model(x)
            predictions.append(accelerator.gather_for_metrics(y))
        whole = torch.cat(predictions)  # peak: whole
    assert len(whole) == 4 * ROWS
    return Ran(prof, {"net": net})


@pattern(*training(loss="loss in scope"))
def acc_autocast_disabled():
    accelerator = accelerator_of()
    net = Net()
    with memwatch.profile() as prof:
        loader = DataLoader(Points(ROWS), batch_size=ROWS)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
        for x in loader:  # peak: batches
            with accelerator.autocast():
                loss = net(x).pow(2).mean()  # peak: loss in scope
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    return Ran(prof, {"net": net})
