"""Leaks beside, around and behind objects that do not grow: windows, slots, old objects, a layer in its own place.

Each ``leak_x`` has a ``clean_x`` with that one reference cut. The rows at the end have the expected reports.
"""

from __future__ import annotations

import collections
import functools
import heapq
import itertools

import torch
from leak_program import collect
from torch import nn

NUMBERS = itertools.count()


def tensor():
    return torch.ones(64)


class Prioritized:
    """A replay buffer: the latest transitions, and an order of priority that has them too."""

    def __init__(self):
        self.latest = collections.deque(maxlen=4)
        self.order = []

    def push(self):
        transition = tensor()
        self.latest.append(transition)
        heapq.heappush(self.order, (next(NUMBERS), transition))

    def forget(self):
        self.order = [entry for entry in self.order if any(entry[1] is each for each in self.latest)]


PRIORITIZED, FORGETFUL = Prioritized(), Prioritized()


def leak_order_beside_a_window():
    PRIORITIZED.push()


def clean_order_beside_a_window():
    FORGETFUL.push()
    FORGETFUL.forget()


SLOTS, SEEN = [None] * 8, []


def leak_list_beside_slots():
    frame = tensor()
    SLOTS[next(NUMBERS) % 4] = frame
    SEEN.append((frame,))


def clean_list_beside_slots():
    SLOTS[next(NUMBERS) % 4] = tensor()


FULL_SLOTS, SHOWN = [tensor() for _ in range(8)], []


def leak_list_beside_full_slots():
    frame = tensor()
    FULL_SLOTS[next(NUMBERS) % 4] = frame
    SHOWN.append((frame,))


def clean_list_beside_full_slots():
    FULL_SLOTS[next(NUMBERS) % 4] = tensor()


FRAMES_BY_USER: dict[object, collections.deque[torch.Tensor]] = {}


def leak_window_of_each_user():
    FRAMES_BY_USER.setdefault(next(NUMBERS), collections.deque(maxlen=3)).append(tensor())


def clean_window_of_each_user():
    FRAMES_BY_USER.setdefault("all", collections.deque(maxlen=3)).append(tensor())


class Worker:
    def __init__(self):
        self.results = []


WORKERS = collections.deque([Worker()], maxlen=2)


def leak_list_of_a_worker():
    WORKERS[0].results.append(tensor())


def clean_list_of_a_worker():
    WORKERS[0].results.append(tensor())
    WORKERS[0].results.pop()


@functools.lru_cache(maxsize=2)
def results_of(name):
    return []


def leak_list_behind_a_cache():
    results_of("leak").append(tensor())


def clean_list_behind_a_cache():
    results_of("clean").append(tensor())
    results_of("clean").pop()


class Session:
    def __init__(self, sessions, user):
        self.layers = [tensor(), tensor()]
        sessions[user] = self


SESSIONS: dict[int, Session] = {}


def leak_sessions():
    Session(SESSIONS, next(NUMBERS))


def clean_sessions():
    user = next(NUMBERS)
    Session(SESSIONS, user)
    del SESSIONS[user]


class Metric:
    """Its lists are called as the state of optimizers is."""

    def __init__(self):
        self.state = {"scores": []}

    def update(self):
        self.state["scores"].append(tensor())


METRIC, RESET_METRIC = Metric(), Metric()


def leak_metric_with_a_state():
    METRIC.update()


def clean_metric_with_a_state():
    RESET_METRIC.update()
    RESET_METRIC.state["scores"].clear()


class Adapter(nn.Module):
    """Stands in for the layer that it wraps."""

    def __init__(self, base):
        super().__init__()
        self.base, self.rank = base, nn.Parameter(tensor())


def adapted(layer):
    model = nn.Module()
    model.query = layer
    return model


ADAPTED, ADAPTED_ANEW = (adapted(Adapter(Adapter(nn.Linear(8, 8)))) for _ in range(2))


def leak_adapter_around_an_adapter():
    ADAPTED.query = Adapter(ADAPTED.query)


def clean_adapter_around_an_adapter():
    ADAPTED_ANEW.query = Adapter(ADAPTED_ANEW.query.base)


PROGRAMS = collect(
    globals(),
    [
        ("order_beside_a_window", "retained", ("PRIORITIZED", "order")),
        ("list_beside_slots", "retained", ("SEEN",)),
        ("list_beside_full_slots", "retained", ("SHOWN",)),
        ("window_of_each_user", "retained", ("FRAMES_BY_USER",)),
        ("list_of_a_worker", "retained", ("WORKERS", "results")),
        ("list_behind_a_cache", "retained", ("results_of",)),
        ("sessions", "retained", ("SESSIONS",)),
        ("metric_with_a_state", "retained", ("METRIC", "state")),
        ("adapter_around_an_adapter", "retained", ("ADAPTED", "parameter 'rank' of Adapter")),
    ],
)
