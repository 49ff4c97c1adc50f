"""Where programs keep tensors for a while: caches, futures, threads, maps of files, packed sequences."""

from __future__ import annotations

import functools
import tempfile
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import numpy as np
import torch
from torch import nn
from torch.nn.utils import rnn
from truth_facts import LIBRARY, RESULT, SAVED, UNNAMED, Fact, Ran, f32, pattern, var

import memwatch

ROWS, IN, HIDDEN, OUT = 97, 61, 311, 43


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(IN, HIDDEN), nn.Linear(HIDDEN, OUT)

    def forward(self, x):
        h = torch.relu(self.up(x))  # peak: hidden
        return self.down(h)  # peak: outputs


FORWARD = (
    Fact(
        f32(ROWS, HIDDEN),
        "temporary|activation",
        "hidden",
        f"{var('h')}|{UNNAMED}|{RESULT}|{SAVED}",
        "net|Net|up",
        "relu|addmm",
    ),
    Fact(f32(ROWS, OUT), "temporary|activation", "outputs", f"{RESULT}|{UNNAMED}", "down", "addmm"),
)


MASK: ContextVar[torch.Tensor | None] = ContextVar("MASK", default=None)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(733, 733, bias=False)

    @functools.cached_property
    def table(self):
        return torch.ones(733, 733).tril()  # peak: table

    def forward(self, x):
        return self.layer(x) * self.table * MASK.get()  # peak: masked


@pattern(
    Fact(f32(733, 733), "held|temporary", "table", r"`(net|self)\.table`|" + UNNAMED, "net|Masked", "tril"),
    Fact(f32(733, 733), "temporary", "table", UNNAMED, "net|Masked", "ones"),
    Fact(f32(733, 733), "held|temporary|input", "mask", r"`mask`|MASK|context variable", "", "ones|full"),
    Fact(f32(733, 733), "temporary", "masked", f"{RESULT}|{UNNAMED}", "net|Masked", "mul"),
    Fact(f32(733, 733), "temporary", "masked", UNNAMED, "layer", "mm"),
    Fact(f32(733, 733), "held|input", "", var("x"), "", "^$"),
)
def cached_property_and_context_variable():
    net = Masked()
    x = torch.randn(733, 733)
    with memwatch.profile() as prof, torch.no_grad():
        token = MASK.set(torch.full((733, 733), 2.0))  # peak: mask
        for _ in range(3):
            net(x)
        MASK.reset(token)
    return Ran(prof, {"net": net})


@pattern(
    Fact(f32(2, 499, 83), "held|temporary", "embedded", r"`(store|cache|self)(\.items)?(\[\.\.\.\])?`"),
    Fact(f32(2, 499, 83), "temporary", "embedded", f"{RESULT}|{UNNAMED}|{var('found')}"),
    Fact(f32(2, 499, 83), "input|temporary", "document", f"{var('document')}|{UNNAMED}"),
)
def ordered_cache_that_evicts():
    class Store:
        def __init__(self, most):
            self.items, self.most = OrderedDict(), most

        def embed(self, name):
            if name in self.items:
                self.items.move_to_end(name)
                return self.items[name]
            document = torch.randn(2, 499, 83)  # peak: document
            self.items[name] = document.cos()  # peak: embedded
            if len(self.items) > self.most:
                self.items.popitem(last=False)
            return self.items[name]

    with memwatch.profile() as prof:
        store = Store(6)
        for number in range(40):
            store.embed(number * 7 % 23).sum().item()
        del store
    return Ran(prof)


@pattern(
    Fact(f32(8, 1021), "held|temporary", "answered", r"`answers(\[\.\.\.\])?[^`]*`|Future"),
    Fact(f32(8, 1021), "input|temporary", "asked", f"`(requests|request|x)[^`]*`|{UNNAMED}"),
    Fact(f32(13 * 8, 1021), "temporary", "answers together", RESULT, "", "cat"),
)
def results_in_futures():
    with ThreadPoolExecutor(1) as pool, memwatch.profile() as prof:
        answers = []
        for _ in range(13):
            request = torch.randn(8, 1021)  # peak: asked
            answer = request.sin()  # peak: answered
            answers.append(pool.submit(lambda kept: kept, answer))
            del request, answer
        torch.cat([each.result() for each in answers])  # peak: answers together
        del answers
    return Ran(prof)


@pattern(*FORWARD, Fact(f32(ROWS, IN), "input", "in the thread", f"{var('x')}|{var('input')}"))
def profile_within_a_thread_pool():
    net, ran = Net(), []

    def work():
        with memwatch.profile() as prof, torch.no_grad():
            x = torch.randn(ROWS, IN)  # peak: in the thread
            net(x)
            del x
        ran.append(prof)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return Ran(ran[0], {"net": net})


@pattern(
    Fact(f32(353, 71), "temporary|input", "scaled", f"{var('batch')}|{UNNAMED}|{var('x')}|{RESULT}"),
    Fact(f32(353, 71), "temporary", "shifted", f"{RESULT}|{UNNAMED}"),
)
def batches_of_a_memory_map():
    with tempfile.NamedTemporaryFile() as file:
        table = np.memmap(file.name, dtype=np.uint8, mode="w+", shape=(353 * 4, 71))
        with memwatch.profile() as prof:
            for start in range(0, 353 * 4, 353):
                batch = torch.from_numpy(table[start : start + 353]).float()  # peak: scaled
                (batch / 255).mean().item()  # peak: shifted
                del batch
        del table
    return Ran(prof)


@pattern(
    Fact(
        f32(sum(range(20, 80, 3)), 83),
        "temporary|input",
        f"packed|{LIBRARY}",
        rf"`packed(\.data|\[\.\.\.\])?`|{var('input')}|{UNNAMED}",
    ),
    Fact(f32(sum(range(20, 80, 3)), 83), "temporary", "packed cosine", RESULT, "", "cos"),
    Fact(f32(20, 77, 83), "input|temporary", "padded", var("padded")),
)
def packed_sequences():
    with memwatch.profile() as prof:
        lengths = list(range(20, 80, 3))[::-1]
        padded = torch.zeros(len(lengths), 77, 83)  # peak: padded
        packed = rnn.pack_padded_sequence(padded, lengths, batch_first=True)  # peak: packed
        packed.data.cos()  # peak: packed cosine
        del packed, padded
    return Ran(prof)


class Dropping(nn.Module):
    """Blocks of a residual network, some of them left out at random."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(89, 89, bias=False) for _ in range(6))

    def forward(self, x):
        for number, block in enumerate(self.blocks):
            if self.training and number % 3 == 1:
                continue
            x = x + torch.sigmoid(block(x))  # peak: residual
        return x


@pattern(
    Fact(f32(509, 89), "activation", "residual", f"{SAVED}|{var('x')}", "net|Dropping", "add|sigmoid"),
    Fact(f32(509, 89), "temporary", "residual", f"{UNNAMED}|{RESULT}|gradient in flight|call into C", ".*"),
    Fact(
        f32(509, 89),
        "temporary|activation",
        "depth loss",
        f"{SAVED}|{UNNAMED}|{RESULT}|gradient in flight|call into C",
    ),
    Fact(f32(509, 89), "held|input", "", f"{var('x')}|{SAVED}", "", "^$"),
)
def stochastic_depth():
    net = Dropping()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(509, 89)
    with memwatch.profile() as prof:
        for _ in range(3):
            net(x).pow(2).mean().backward()  # peak: depth loss
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    return Ran(prof, {"net": net})
