"""Shapes of growth, and programs that only look like growth. Each keeps its tensors under its own name as key."""

from __future__ import annotations

import collections
import itertools
import random

import torch

STATE: dict[str, object] = {}
RANDOM = random.Random(15)


def some():
    return RANDOM.randrange(5, 500)


def fresh():
    """Begin anew: what the shapes start from."""
    RANDOM.seed(15)
    STATE.clear()
    STATE.update(
        lists_of_any_size=[],
        records=[],
        by_new_key={},
        concatenated=torch.ones(4, 8),
        layers_of_a_cache=[(torch.ones(1, 8), torch.ones(1, 8)) for _ in range(2)],
        resized=torch.empty(8),
        beside_an_average={"mean": torch.ones(700), "all": torch.ones(1, 8)},
        two_in_one_out=collections.deque([torch.ones(some()) for _ in range(50)]),
        mean={"weight": torch.ones(512)},
        last={},
        window=[torch.ones(some()) for _ in range(60)],
        first_in_first_out={},
        context=torch.ones(40, 8),
        scratch=torch.empty(8),
        previous=(None, None),
        layers_of_a_buffer=[torch.ones(some()) for _ in range(3)],
        swapped=[torch.ones(300), torch.ones(200)],
        numbers=itertools.count(),
    )


class Record:
    def __init__(self, output):
        self.output = output


def lists_of_any_size():
    STATE["lists_of_any_size"].append(torch.ones(some(), 2))


def records():
    STATE["records"].append(Record([torch.ones(some())]))


def by_new_key():
    STATE["by_new_key"][next(STATE["numbers"])] = torch.ones(some())


def concatenated():
    STATE["concatenated"] = torch.cat([STATE["concatenated"], torch.ones(2, 8)])


def layers_of_a_cache():
    for layer, (keys, values) in enumerate(STATE["layers_of_a_cache"]):
        new = torch.ones(1, 8)
        STATE["layers_of_a_cache"][layer] = torch.cat([keys, new]), torch.cat([values, new])


def resized():
    STATE["resized"].resize_(STATE["resized"].numel() + 8)


def beside_an_average():
    mean = STATE["beside_an_average"]
    mean["mean"] = 0.9 * mean["mean"]
    mean["all"] = torch.cat([mean["all"], torch.ones(1, 8)])


def two_in_one_out():
    queue = STATE["two_in_one_out"]
    queue.extend([torch.ones(some()), torch.ones(some())])
    queue.popleft()


def mean():
    STATE["mean"]["weight"] = 0.9 * STATE["mean"]["weight"] + 0.1 * torch.ones(512)


def last():
    STATE["last"]["output"] = torch.ones(some())


def window():
    STATE["window"].append(torch.ones(some()))
    STATE["window"].pop(0)


def first_in_first_out():
    queue = STATE["first_in_first_out"]
    queue[next(STATE["numbers"])] = torch.ones(64)
    while len(queue) > 3:
        del queue[next(iter(queue))]


def context():
    STATE["context"] = torch.cat([STATE["context"], torch.ones(3, 8)])[-40:].clone()


def scratch():
    STATE["scratch"].resize_(some())


def previous():
    STATE["previous"] = STATE["previous"][1], torch.ones(some())


def layers_of_a_buffer():
    STATE["layers_of_a_buffer"][next(STATE["numbers"]) % 3] = torch.ones(some())


def swapped():
    first, second = STATE["swapped"]
    STATE["swapped"] = [second.clone(), first.clone()]


LEAKS = [
    lists_of_any_size,
    records,
    by_new_key,
    concatenated,
    layers_of_a_cache,
    resized,
    beside_an_average,
    two_in_one_out,
]
INNOCENT = [
    mean,
    last,
    window,
    first_in_first_out,
    context,
    scratch,
    previous,
    layers_of_a_buffer,
    swapped,
]


# Shapes that only further calls tell: one function a call of find_leaks.


def window_that_fills(most):
    def call():
        buffer = STATE.setdefault("buffer", [])
        buffer.append(torch.ones(16))
        if len(buffer) > most:
            buffer.pop(0)

    return call


def cache_of(keys):
    def call():
        STATE.setdefault("cache", {}).setdefault(next(STATE["numbers"]) % keys, torch.ones(16))

    return call


def on_every(nth, make=lambda: STATE.setdefault("now and then", []).append(torch.ones(16))):
    def call():
        if next(STATE["numbers"]) % nth == nth - 1:
            make()

    return call


def ring():
    record = Record(torch.ones(16))
    record.ring = record


def window_beside_a_list():
    window_that_fills(5)()
    STATE.setdefault("list", []).append(torch.ones(16))
