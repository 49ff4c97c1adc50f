"""Where programs keep tensors: pipelines, queues, outputs of many kinds, caches, threads."""

from __future__ import annotations

import asyncio
from collections import deque, namedtuple
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict

import torch
from torch import nn
from truth_facts import RESULT, UNNAMED, Fact, Ran, f32, pattern, var

import memwatch

ROWS, IN, HIDDEN, OUT = 97, 61, 311, 43


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(IN, HIDDEN), nn.Linear(HIDDEN, OUT)

    def forward(self, x):
        h = torch.relu(self.up(x))  # peak: hidden
        return self.down(h)  # peak: outputs


@dataclass
class Record:
    name: str
    output: torch.Tensor
    others: list = field(default_factory=list)


@pattern(
    Fact(f32(ROWS, HIDDEN), "temporary|held", "hidden", r"`records\['up'\].output`, local", "up", "addmm"),
    Fact(
        f32(ROWS, OUT),
        "temporary|held",
        "outputs",
        rf"`records\['down'\].output`, local|{UNNAMED}|{var('result')}",
        "down",
        "addmm",
    ),
    Fact(f32(ROWS, HIDDEN), "temporary", "hidden", f"{var('h')}|{RESULT}", "net|Net", "relu"),
    Fact(f32(ROWS, IN), "input", "hooked batch", f"{var('x')}|{var('input')}"),
    Fact(f32(ROWS, OUT), "temporary", "copied", RESULT, "", "clone"),
)
def outputs_in_dataclasses_by_hooks():
    net = Net()
    records: dict[str, Record] = {}

    def hook_of(name):
        def hook(module, args, result):
            records[name] = Record(name, result.detach())

        return hook

    for name, module in net.named_children():
        module.register_forward_hook(hook_of(name))
    with memwatch.profile() as prof, torch.no_grad():
        x = torch.randn(ROWS, IN)  # peak: hooked batch
        result = net(x)
        result.clone()  # peak: copied
        records.clear()
    return Ran(prof, {"net": net})


class Transition(NamedTuple):
    state: torch.Tensor
    action: int
    following: torch.Tensor


@pattern(
    Fact(
        f32(2003),
        "held",
        "observed",
        r"`(memory|batch)(\[\d+\]\.(state|following))?`, local variable of `transitions_in_a_deque`",
    ),
    Fact(f32(48, 2003), "temporary|input", "sampled", f"{var('states')}|{UNNAMED}|{RESULT}", "", "stack"),
    Fact(f32(48, 2003), "temporary", "difference", RESULT, "", "sub"),
    Fact(f32(48, 2003), "temporary", "sampled", var("following"), "", "stack"),
)
def transitions_in_a_deque():
    memory = deque(maxlen=64)
    with memwatch.profile() as prof:
        state = torch.zeros(2003)  # peak: observed
        for number in range(80):
            following = torch.randn(2003)  # peak: observed
            memory.append(Transition(state, number % 4, following))
            state = following
            if number >= 60 and number % 4 == 0:
                batch = [memory[(7 * place) % len(memory)] for place in range(48)]
                states = torch.stack([each.state for each in batch])  # peak: sampled
                following = torch.stack([each.following for each in batch])  # peak: sampled
                (following - states).mean()  # peak: difference
                del states, following, batch
                prof.step()
    return Ran(prof)


class Head(NamedTuple):
    logits: torch.Tensor
    names: tuple


@dataclass
class Inner:
    hidden: torch.Tensor


class Output(TypedDict):
    head: Head
    inner: Inner


class Nested(Net):
    def forward(self, x) -> Output:
        h = torch.relu(self.up(x))  # peak: nested hidden
        logits = self.down(h)  # peak: nested logits
        return {"head": Head(logits, ("a", "b")), "inner": Inner(h)}


@pattern(
    Fact(
        f32(ROWS, HIDDEN),
        "held|temporary",
        "nested hidden",
        f"{var('outputs')}|`outputs.*hidden`|{var('h')}",
        "net|Nested",
        "relu",
    ),
    Fact(f32(ROWS, HIDDEN), "temporary", "nested hidden", UNNAMED, "up", "addmm"),
    Fact(
        f32(ROWS, OUT),
        "held|temporary",
        "nested logits",
        f"{var('outputs')}|`outputs.*logits`|{RESULT}",
        "down",
        "addmm",
    ),
    Fact(f32(ROWS, IN), "input|held", "", var("x")),
    Fact(f32(7 * ROWS, OUT), "temporary", "together", RESULT, "", "cat"),
)
def outputs_nested_in_many_kinds():
    net, outputs = Nested(), []
    x = torch.randn(ROWS, IN)
    with memwatch.profile() as prof, torch.no_grad():
        for _ in range(7):
            outputs.append(net(x))
        torch.cat([each["head"].logits for each in outputs])  # peak: together
        del outputs
    return Ran(prof, {"net": net})


@pattern(
    Fact(f32(ROWS, OUT), "held|temporary", "outputs", r"`logits(\[\.\.\.\])?`", "down", "addmm"),
    Fact(f32(11 * ROWS, OUT), "temporary", "all logits", f"{RESULT}|{var('everything')}", "", "cat"),
    Fact(f32(11 * ROWS, OUT), "temporary", "probabilities", RESULT, "", "softmax"),
)
def evaluation_that_keeps_logits():
    net, logits = Net(), []
    with memwatch.profile() as prof, torch.no_grad():
        for _ in range(11):
            x = torch.randn(ROWS, IN)
            logits.append(net(x))
            del x
        everything = torch.cat(logits)  # peak: all logits
        everything.softmax(-1)  # peak: probabilities
        del everything
    return Ran(prof, {"net": net})


Past = namedtuple("Past", "keys values")


@pattern(
    Fact(
        f32(8, 4, 37, 64),
        "temporary|held",
        "reordered|first past",
        rf"`(past|layer|each)(\[\d+\]|\.keys|\.values)*`, |{UNNAMED}|{RESULT}",
    ),
)
def past_reordered_by_beams():
    with memwatch.profile() as prof:
        past = [
            Past(torch.randn(8, 4, 37, 64), torch.randn(8, 4, 37, 64))  # peak: first past
            for _ in range(5)
        ]
        for _ in range(6):
            beams = torch.randperm(8)
            past = [
                Past(*(each.index_select(0, beams) for each in layer))  # peak: reordered
                for layer in past
            ]
        del past
    return Ran(prof)


@pattern(
    Fact(
        f32(1501, IN), "input|temporary|held", "produced", r"`(batch|x|queue|input|item)[^`]*`|coroutine|task"
    ),
    Fact(
        f32(1501, HIDDEN), "temporary", "hidden", f"{var('h')}|{UNNAMED}|{RESULT}", "net|Net|up", "relu|addmm"
    ),
    Fact(f32(1501, OUT), "temporary", "outputs", f"{RESULT}|{UNNAMED}", "down", "addmm"),
)
def queue_of_coroutines():
    net = Net()

    async def produce(queue):
        for _ in range(6):
            await queue.put(torch.randn(1501, IN))  # peak: produced
        await queue.put(None)

    async def consume(queue):
        while (batch := await queue.get()) is not None:
            net(batch).sum().item()

    async def main():
        queue = asyncio.Queue(3)
        await asyncio.gather(produce(queue), consume(queue))

    with memwatch.profile() as prof, torch.no_grad():
        asyncio.run(main())
    return Ran(prof, {"net": net})
