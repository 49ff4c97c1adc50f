"""Programs as people train, evaluate and search, each with its corrected twin; and loops with needed memory."""

from __future__ import annotations

import collections
import copy

import torch
from torch import nn
from torch.nn import functional

WIDE = 128


def net(hidden=WIDE):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDE, hidden), nn.ReLU(), nn.Linear(hidden, WIDE))


def batch(rows=2 * WIDE):
    return torch.ones(rows, WIDE)


def average_made_anew():
    model, average = net(8 * WIDE), None
    for _ in range(3):
        fresh = copy.deepcopy(model)
        with torch.no_grad():
            for mine, theirs in zip(fresh.parameters(), model.parameters(), strict=True):
                mine.mul_(0.9).add_(theirs, alpha=0.1)
        average = fresh
    return average is None


def average_in_place():
    model = net(8 * WIDE)
    average = copy.deepcopy(model)
    for _ in range(3):
        with torch.no_grad():
            for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
                mine.mul_(0.9).add_(theirs, alpha=0.1)


def replay_with_graphs():
    value, replay = net(), collections.deque(maxlen=100)
    for _ in range(6):
        replay.append(value(batch()).max(1).values)
        value(batch(4)).sum().backward()


def replay_of_numbers():
    value, replay = net(), collections.deque(maxlen=100)
    for _ in range(6):
        with torch.no_grad():
            replay.append(value(batch()).max().item())
        value(batch(4)).sum().backward()


def retries_keep_errors():
    rows, errors = 8 * WIDE, []
    while rows > WIDE:
        try:
            return attempt(rows)
        except RuntimeError as error:
            errors.append(error)
            rows //= 2
    return None


def retries_keep_texts():
    rows, errors = 8 * WIDE, []
    while rows > WIDE:
        try:
            return attempt(rows)
        except RuntimeError as error:
            errors.append(str(error))
            rows //= 2
    return None


def attempt(rows):
    parts = [batch(rows).relu() for _ in range(4)]
    if rows > 4 * WIDE:
        raise RuntimeError("out of memory")
    return sum(part.sum() for part in parts)


def teacher_with_graph():
    teacher, student = net(4 * WIDE), net()
    for _ in range(2):
        target = teacher(batch(4 * WIDE))
        loss = functional.mse_loss(student(batch(4 * WIDE)), target.detach())
        loss.backward()
        student.zero_grad()


def teacher_without_graph():
    teacher, student = net(4 * WIDE), net()
    for _ in range(2):
        with torch.no_grad():
            target = teacher(batch(4 * WIDE))
        loss = functional.mse_loss(student(batch(4 * WIDE)), target)
        loss.backward()
        student.zero_grad()
        del target, loss  # mse_loss gives a number in a storage that is as large as its input


def beams_keep_caches():
    cache, history = torch.zeros(4, 1, WIDE), []
    for _ in range(16):
        cache = torch.cat([cache, torch.ones(4, 8, WIDE)], 1)
        history.append(cache)
        (cache @ cache.transpose(1, 2)).sum()


def beams_keep_one_cache():
    cache = torch.zeros(4, 1, WIDE)
    for _ in range(16):
        cache = torch.cat([cache, torch.ones(4, 8, WIDE)], 1)
        (cache @ cache.transpose(1, 2)).sum()


def memory_bank():
    """Every entry is read in each pass; that the program ends makes none of them useless."""
    encoder, bank = net(), []
    for _ in range(5):
        key = functional.normalize(encoder(batch()))
        against = torch.cat([*bank, key.detach()])
        (key @ against.t()).logsumexp(1).mean().backward()
        bank.append(key.detach().clone())
        del key, against


def predictions_gathered():
    """Gather predictions for torch.cat; they have to wait for it."""
    model, predictions = net(), []
    with torch.no_grad():
        for _ in range(6):
            predictions.append(model(batch()).argmax(-1))
        return torch.cat(predictions)


# name: (holding program, words that its finding must have, mended twin)
CASES = {
    "average made anew": (
        average_made_anew,
        ("weight`, local variable of `average_made_anew`",),
        average_in_place,
    ),
    "replay with graphs": (
        replay_with_graphs,
        ("`replay`, local variable of `replay_with_graphs`", "no_grad"),
        replay_of_numbers,
    ),
    "retries": (retries_keep_errors, ("`errors`", "`parts`", "the exception's text"), retries_keep_texts),
    "teacher": (teacher_with_graph, ("`target`", "no_grad"), teacher_without_graph),
    "beams": (beams_keep_caches, ("`history`, local variable of `beams_keep_caches`",), beams_keep_one_cache),
}
SILENT = [memory_bank, predictions_gathered]
