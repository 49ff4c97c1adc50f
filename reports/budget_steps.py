"""Many training steps under a budget: the losses stay those of eager PyTorch, and nothing piles up.

Run `python reports/budget_steps.py [steps]`. A model with dropout trains at half of eager PyTorch's peak; on the way a
step fails between forward and backward, a batch of a new size comes, and the model and its optimizer are saved and
loaded. It prints the figures, and ends with an error if a loss differs or memory grows.
"""

from __future__ import annotations

import copy
import gc
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable


class StepError(Exception):
    """A step that fails."""


def model() -> nn.Module:
    """Return the model as it starts."""
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Linear(32, 96), nn.GELU(), nn.Linear(96, 32), nn.Dropout(0.2)) for _ in range(4)
    ]
    return nn.Sequential(*blocks, nn.Linear(32, 8))


def train(net: nn.Module, call: Callable[..., Any], steps: int) -> tuple[list[float], list[int]]:
    """Train; return the loss of each step, and how many tensors lived at some moments after the first steps."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(1)
    losses, tensors = [], []
    for number in range(steps):
        rows = 384 if number >= steps // 2 and number % 5 == 0 else 256
        x = torch.randn(rows, 32, generator=data)
        optimizer.zero_grad()
        loss = call(x).square().mean()
        if number % 50 == 10:  # the backward never comes
            try:
                raise StepError
            except StepError:
                continue
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if number == steps // 3:
            state = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
            net.load_state_dict(state[0])
            optimizer.load_state_dict(state[1])
            del state
        if number in (steps * 3 // 4, steps - 1):
            del loss, x
            gc.collect()
            tensors.append(sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects()))
    return losses, tensors


def main() -> None:
    """Compare the steps."""
    torch.set_num_threads(1)
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    net = model()
    torch.manual_seed(2)
    wanted, _ = train(net, net, steps)
    net = model()
    torch.manual_seed(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        call = torch.compile(net, backend="memwatch", options={"budget": "50%", "time_limit_s": 2.0})
        found, tensors = train(net, call, steps)
    same = sum(one == other for one, other in zip(found, wanted, strict=True))
    print(
        f"{same} of {len(wanted)} losses are equal; tensors alive: {tensors}; CPU {time.process_time():.1f} s"
    )
    if found != wanted or tensors[-1] > tensors[0]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
