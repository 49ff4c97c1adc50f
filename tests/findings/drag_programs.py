"""Programs as people write them, each holding tensors longer than it needs, and the same program mended."""

from __future__ import annotations

import gc

import torch
from torch import nn
from torch.nn import functional

WIDE = 256


def block(rows=WIDE):
    return torch.ones(rows, WIDE)


def heavy():
    """Allocate eight blocks, at once."""
    return [block() for _ in range(8)]


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDE, WIDE), nn.ReLU(), nn.Linear(WIDE, WIDE))


def logits_in_the_loop():
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), foreach=False)
    for _ in range(2):
        logits = net(block(4 * WIDE))
        logits.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        heavy()


def no_logits_in_the_loop():
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), foreach=False)
    for _ in range(2):
        net(block(4 * WIDE)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        heavy()


def last_output_alive():
    with torch.no_grad():
        net = model()
        for _ in range(3):
            output = net(block(4 * WIDE))
            output.sum()


def last_output_dropped():
    with torch.no_grad():
        net = model()
        for _ in range(3):
            output = net(block(4 * WIDE))
            output.sum()
            del output


def evaluation_collects():
    with torch.no_grad():
        features = []
        for _ in range(6):
            features.append(block().mul(2))
            features[-1].sum()
        heavy()


def evaluation_sums():
    with torch.no_grad():
        for _ in range(6):
            feature = block().mul(2)
            feature.sum()
            del feature
        heavy()


def stage(x):
    hidden = x.mul(2)
    result = hidden.sum()
    heavy()
    return result


def pipeline_of_locals():
    return stage(block(3 * WIDE))


def pipeline_without_locals():
    first = block(3 * WIDE).mul(2).sum()
    heavy()
    return first


def exception_keeps_frame():
    error = None
    try:
        failing_step()
    except ValueError as caught:
        error = caught
    heavy()
    del error
    gc.collect()


def failing_step():
    batch = block(3 * WIDE)
    batch.sum()
    raise ValueError("no more data")


def exception_dropped():
    try:
        failing_step()
    except ValueError:
        pass
    heavy()


def comprehension_keeps():
    parts = [block().mul(index) for index in range(5)]
    total = sum(part.sum() for part in parts)
    heavy()
    return total


def generator_expression():
    total = sum(part.sum() for part in (block().mul(index) for index in range(5)))
    heavy()
    return total


def retry_keeps_attempts():
    attempts = []
    for scale in range(4):
        attempt = block().mul(scale)
        attempts.append(attempt)
        if attempt.sum() > 2 * WIDE * WIDE:
            break
    heavy()


def retry_keeps_none():
    for scale in range(4):
        attempt = block().mul(scale)
        if attempt.sum() > 2 * WIDE * WIDE:
            break
    del attempt
    heavy()


def checkpoint_dictionary():
    state = {"model": block(2 * WIDE), "optimizer": block(2 * WIDE)}
    size = sum(value.sum() for value in state.values())
    heavy()
    return size


def checkpoint_popped():
    state = {"model": block(2 * WIDE), "optimizer": block(2 * WIDE)}
    size = 0
    while state:
        size += state.popitem()[1].sum()
    heavy()
    return size


class Trainer:
    def __init__(self):
        self.last_batch = None

    def keep(self):
        self.last_batch = block(3 * WIDE)
        self.last_batch.sum()
        heavy()

    def pass_on(self):
        batch = block(3 * WIDE)
        batch.sum()
        del batch
        heavy()


def attribute_of_trainer():
    Trainer().keep()


def no_attribute():
    Trainer().pass_on()


def closure_keeps():
    table = block(3 * WIDE)

    def score():
        return table.sum()

    score()
    heavy()
    return score


def closure_dropped():
    table = block(3 * WIDE)
    table.sum()
    del table
    heavy()


def whole_of_a_slice():
    big = block(4 * WIDE)
    view = big[:2]
    del big
    view.sum()
    heavy()
    return view


def slice_cloned():
    big = block(4 * WIDE)
    part = big[:2].clone()
    del big
    part.sum()
    heavy()
    return part


def conversion_keeps_source():
    source = block(2 * WIDE)
    half = source.to(torch.bfloat16)
    heavy()
    return half.sum()


def conversion_rebinds():
    source = block(2 * WIDE)
    source = source.to(torch.bfloat16)
    heavy()
    return source.sum()


def mask_and_scores():
    scores = block(2 * WIDE)
    probabilities = functional.softmax(scores, -1)
    result = probabilities.sum()
    heavy()
    return result


def mask_and_scores_dropped():
    result = functional.softmax(block(2 * WIDE), -1).sum()
    heavy()
    return result


def late_zero_grad():
    net = nn.Linear(4 * WIDE, 4 * WIDE, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
    for _ in range(2):
        with torch.no_grad():
            heavy()
        loss = net(torch.ones(2, 4 * WIDE)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def early_zero_grad():
    net = nn.Linear(4 * WIDE, 4 * WIDE, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
    for _ in range(2):
        with torch.no_grad():
            heavy()
        loss = net(torch.ones(2, 4 * WIDE)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def evaluation_with_graph():
    net = model()
    out = net(block(4 * WIDE))
    return out.sum().item()


def evaluation_without_graph():
    net = model()
    with torch.no_grad():
        return net(block(4 * WIDE)).sum().item()


# name: (holding program, words that its finding must have, mended twin)
CASES = {
    "logits": (logits_in_the_loop, ("logits", "logits_in_the_loop"), no_logits_in_the_loop),
    "last iteration's output": (last_output_alive, ("output", "last_output_alive"), last_output_dropped),
    "evaluation collects": (evaluation_collects, ("features", "evaluation_collects"), evaluation_sums),
    "stage": (pipeline_of_locals, ("hidden", "stage"), pipeline_without_locals),
    "exception": (exception_keeps_frame, ("error", "exception_keeps_frame"), exception_dropped),
    "comprehension": (comprehension_keeps, ("parts", "comprehension_keeps"), generator_expression),
    "retry": (retry_keeps_attempts, ("attempts", "retry_keeps_attempts"), retry_keeps_none),
    "checkpoint": (checkpoint_dictionary, ("state", "checkpoint_dictionary"), checkpoint_popped),
    "attribute of a trainer": (attribute_of_trainer, ("last_batch", "keep"), no_attribute),
    "closure": (closure_keeps, ("table", "closure_keeps"), closure_dropped),
    "view": (whole_of_a_slice, ("view", "whole_of_a_slice"), slice_cloned),
    "conversion": (conversion_keeps_source, ("source", "conversion_keeps_source"), conversion_rebinds),
    "scores": (mask_and_scores, ("probabilities", "mask_and_scores"), mask_and_scores_dropped),
    "late zero_grad": (late_zero_grad, (".grad", "zero_grad"), early_zero_grad),
    "graph never used": (evaluation_with_graph, ("without backward", "no_grad"), evaluation_without_graph),
}
