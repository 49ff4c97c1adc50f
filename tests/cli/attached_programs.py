"""Programs that a test attaches to. Each runs until its standard input is closed, and writes a line when ready."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import os
import sys
import threading
import time

import torch
from truth_events import allocator_events, peak_increase_bytes

KEPT = torch.ones(1 << 18)
"""A tensor from before the recording."""
_C_PAUSE_US = 5_000_000
_PAUSE_S = 0.02
"""Between steps, so that few of them run before a client comes."""


def make_training():
    """Return a model and a function that trains it a step. Only the model and its optimizer outlive a step."""
    torch.manual_seed(0)
    linear = torch.nn.Linear
    model = torch.nn.Sequential(linear(64, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batch = torch.ones(256, 64)

    def step():
        model(batch).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def make_scripted():
    """Return a model, and a function that stays in C++ for seconds."""
    start = torch.ones(128, 128)

    @torch.jit.script
    def loop(start: torch.Tensor, rounds: int) -> torch.Tensor:
        for _ in range(rounds):
            start = torch.relu(start @ start) * 0.01
        return start

    def step():
        loop(start, 20)
        ctypes.CDLL(None).usleep(_C_PAUSE_US)

    return None, step


def digest(model):
    """Return a hash of the parameters."""
    return hashlib.sha256(
        b"".join(each.detach().numpy().tobytes() for each in model.parameters())
    ).hexdigest()


def peak_bytes(step):
    """Return the peak of a step by the allocator's own account, with all that is alive between steps."""
    increase_bytes = peak_increase_bytes(allocator_events(step))
    tensors = [each for each in gc.get_objects() if type(each) in {torch.Tensor, torch.nn.Parameter}]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    return increase_bytes + sum(storages.values())


def main():
    """Train until standard input is closed; print the number of steps and their result."""
    model, step = {"training": make_training, "scripted": make_scripted}[sys.argv[1]]()
    torch.set_num_threads(1)
    over = threading.Event()
    for _ in range(2):
        step()
    print(os.getpid(), peak_bytes(step), flush=True)  # noqa: T201
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    steps = 3
    while not over.is_set():
        step()
        steps += 1
        time.sleep(_PAUSE_S)
    print(steps, "" if model is None else digest(model), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
