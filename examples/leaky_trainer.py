"""A trainer and its model refer to each other: every run waits for the garbage collector."""

from __future__ import annotations

from torch import nn

from memwatch.leaks import find_leaks, why_alive


class Trainer:
    """Trains a model that knows its trainer."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        model.trainer = self


def one_run() -> None:
    Trainer(nn.Linear(512, 512))


for leak in find_leaks(one_run):
    print(leak)

kept = Trainer(nn.Linear(8, 8))
print(why_alive(kept.model.weight))
