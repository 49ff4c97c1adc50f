"""A training loop that keeps each loss with its graph; the fix is `loss.item()`."""

from __future__ import annotations

import torch
from torch import nn

from memwatch.leaks import find_leaks

model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
history = []


def step() -> None:
    loss = model(torch.randn(64, 256)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss)


for leak in find_leaks(step):
    print(leak)
