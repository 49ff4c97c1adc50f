"""Programs whose memory hangs on something of Python's: closures, caches, generators, exceptions."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import nn
from truth_facts import ANY, KERNEL, RESULT, UNNAMED, Fact, Ran, f32, of_module, pattern, var

import memwatch

SIZE = 30011


def scaled_by(count):
    table = torch.linspace(0, 1, count)  # peak: closure table

    def scale(x):
        return x * table  # peak: scaled

    return scale


@pattern(
    Fact(f32(SIZE), "held", "closure table", "closure cell `table`|free variable `table`|`table`"),
    Fact(f32(SIZE), "temporary|held", "scaled", f"{RESULT}|{var('x')}|{UNNAMED}"),
    Fact(f32(SIZE), "temporary|held", "closure input", f"{var('x')}|{UNNAMED}|{RESULT}"),
)
def closure_that_holds_a_tensor():
    with memwatch.profile() as prof:
        scale = scaled_by(SIZE)
        for _ in range(4):
            x = torch.ones(SIZE)  # peak: closure input
            x = scale(x)
            del x
    return Ran(prof)


@functools.lru_cache(maxsize=8)
def frequencies(length):
    return torch.arange(length, dtype=torch.float32).cos()  # peak: cached


@pattern(
    *(Fact(f32(SIZE + number), "held", "cached", "cache|`frequencies`") for number in range(4)),
    *(
        Fact(f32(SIZE + number), "temporary", "rotate", f"{var('y')}|{RESULT}|{UNNAMED}")
        for number in range(4)
    ),
)
def lru_cache_of_tensors():
    frequencies.cache_clear()
    with memwatch.profile() as prof:
        for _ in range(2):
            for number in range(4):
                y = frequencies(SIZE + number) * 2  # peak: rotate
                del y
    frequencies.cache_clear()
    return Ran(prof)


def windows(count):
    data = torch.zeros(count, SIZE)  # peak: generator data
    for index in range(count):
        yield data[index] + 1  # peak: window


@pattern(
    Fact(f32(5, SIZE), "held|temporary", "generator data", "`data`"),
    Fact(f32(SIZE), "temporary", "window", f"{var('window')}|{RESULT}|{UNNAMED}"),
    Fact(f32(SIZE), "temporary", "squared", f"{RESULT}|{UNNAMED}"),
)
def generator_of_windows():
    with memwatch.profile() as prof:
        for window in windows(5):
            (window * window).sum()  # peak: squared
    return Ran(prof)


class TooLargeError(Exception):
    pass


def attempt(rows):
    parts = torch.ones(rows, 101)  # peak: failed parts
    if rows > 200:
        raise TooLargeError(rows)
    return parts.exp()  # peak: attempted


@pattern(
    Fact(f32(800, 101), "temporary|held", "failed parts", "`parts`|traceback|exception"),
    Fact(f32(400, 101), "temporary|held", "failed parts", "`parts`|traceback|exception"),
    Fact(f32(200, 101), "temporary|held", "failed parts", f"{var('parts')}|{RESULT}"),
    Fact(f32(200, 101), "temporary|held", "attempted", f"{RESULT}"),
)
def errors_that_keep_tracebacks():
    rows, errors = 800, []
    with memwatch.profile() as prof:
        while True:
            try:
                attempt(rows)
                break
            except TooLargeError as error:
                errors.append(error)
                rows //= 2
    return Ran(prof)


@dataclass
class State:
    position: torch.Tensor
    speed: torch.Tensor


@pattern(
    Fact(
        f32(SIZE, 3),
        "temporary|held",
        "position|move",
        f"{var('state.position')}|{UNNAMED}|{RESULT}|{var('position')}",
    ),
    Fact(f32(SIZE, 2), "held|temporary", "speed", f"{var('state.speed')}"),
    Fact(f32(SIZE, 3), "temporary", "push", f"{UNNAMED}|{RESULT}"),
)
def dataclass_state_of_a_simulation():
    with memwatch.profile() as prof:
        state = State(torch.zeros(SIZE, 3), torch.ones(SIZE, 2))  # peak: position # peak: speed
        for _ in range(6):
            push = state.speed.sum() / SIZE
            state.position = state.position + push  # peak: move
    return Ran(prof)


class Registry:
    entries = {}  # noqa: RUF012


@pattern(
    Fact(f32(SIZE + 7), "held", "registered", "`Registry\\.entries`|`entries`|class attribute|Registry"),
    Fact(f32(SIZE + 7), "temporary", "registry use", f"{RESULT}|{UNNAMED}"),
)
def class_attribute_registry():
    with memwatch.profile() as prof:
        Registry.entries["basis"] = torch.rand(SIZE + 7)  # peak: registered
        for _ in range(3):
            (Registry.entries["basis"] * 2).sum()  # peak: registry use
    Registry.entries.clear()
    return Ran(prof)


def worker(first):
    second = first.exp()  # peak: second
    third = second.log()  # peak: third
    del second
    return third


@pattern(
    Fact(f32(SIZE + 11), "temporary|held", "first", f"{var('first')}|{var('begin')}"),
    Fact(f32(SIZE + 11), "temporary", "second", f"{var('second')}|{RESULT}", op="exp"),
    Fact(f32(SIZE + 11), "temporary", "third", RESULT, op="log"),
)
def locals_of_a_call_that_has_returned():
    with memwatch.profile() as prof:
        begin = torch.ones(SIZE + 11)  # peak: first
        for _ in range(3):
            end = worker(begin)
            end.sum()
            del end
    return Ran(prof)


@pattern(
    Fact(f32(SIZE + 13), "temporary|held", "default", "default argument|`table`|`lookup`|__defaults__"),
    Fact(f32(SIZE + 13), "temporary", "looked up", f"{RESULT}|{UNNAMED}"),
)
def default_argument():
    with memwatch.profile() as prof:

        def lookup(x, table=torch.zeros(SIZE + 13)):  # peak: default # noqa: B008
            return (table + x).sum()  # peak: looked up

        for step in range(3):
            lookup(step)
    return Ran(prof)


TABLES = {}


@pattern(
    *(
        Fact(f32(SIZE, 1 + number), "held", "module table", of_module("TABLES"), op="rand")
        for number in range(3)
    ),
    Fact(f32(SIZE, 3), "held", "module table", f"{of_module('TABLES')}|{var('table')}", op="rand"),
    Fact(f32(SIZE, 3), "temporary", "table sum", f"{RESULT}|{UNNAMED}", op="add"),
)
def global_dict_of_tables():
    with memwatch.profile() as prof:
        for number in range(3):
            TABLES[number] = torch.rand(SIZE, 1 + number)  # peak: module table
        for _ in range(2):
            for table in TABLES.values():
                (table + 1).sum()  # peak: table sum
            del table
    TABLES.clear()
    return Ran(prof)


@pattern(
    Fact(f32(311, 301), "temporary|held", "unsorted", var("x")),
    Fact(f32(311, 301), "temporary", "quantile", f"{UNNAMED}|{RESULT}"),
    Fact(2 * f32(311, 301), "temporary", "quantile", f"{UNNAMED}|{RESULT}"),
    Fact(311 * 301, "temporary", "quantile", f"{UNNAMED}|{RESULT}"),  # which are NaN, asked by torch 2.15
)
def quantile_that_sorts():
    with memwatch.profile() as prof:
        x = torch.rand(311, 301)  # peak: unsorted
        for _ in range(2):
            torch.quantile(x, 0.9, dim=1)  # peak: quantile
    return Ran(prof)


@pattern(
    Fact(f32(4, 8, 67, 67), "input|temporary|held", "pixels", f"{var('pixels')}"),
    Fact(f32(4, 24, 63, 63), "temporary", "conv", f"{var('y')}|{RESULT}|{UNNAMED}", "net|Conv2d"),
    Fact(ANY, "workspace", "conv", KERNEL, "net|Conv2d"),
)
def convolution_with_workspace():
    net = nn.Conv2d(8, 24, 5, dtype=torch.float32)
    with torch.no_grad(), memwatch.profile() as prof:
        pixels = torch.randn(4, 8, 67, 67)  # peak: pixels
        for _ in range(2):
            y = net(pixels)  # peak: conv
            del y
    return Ran(prof, {"net": net})
