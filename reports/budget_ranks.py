"""DistributedDataParallel under a budget: two processes train on the CPU, once plainly and once compiled.

Run `python reports/budget_ranks.py [steps]`. Both ways see the same data, half of each batch on each rank. It prints
the peaks and how many losses are equal, and ends with an error if a loss, a parameter or the budget differs.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings

import torch
from budget_steps import model
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from memwatch.replay.measure import measure_peak

RANKS = 2
SHARE = 60


class Net(nn.Module):
    """A model with a forward of its own: inside DDP, torch.compile leaves torch's own containers as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = model()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map rows to rows."""
        return self.blocks(x)


def train(net: nn.Module, steps: int) -> tuple[list[float], int]:
    """Train; return the losses, and the peak increase of the last forward and backward."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(distributed.get_rank())
    losses, peak_bytes = [], 0
    for number in range(steps):
        x = torch.randn(256, 32, generator=data)
        optimizer.zero_grad()
        if number == steps - 1:
            with measure_peak("cpu") as measured:
                loss = net(x).square().mean()
                loss.backward()
            peak_bytes = measured.peak_increase_bytes
        else:
            loss = net(x).square().mean()
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, peak_bytes


def rank(number: int, file: str, steps: int) -> None:
    """Train on one rank in both ways, and compare them."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=number, world_size=RANKS)
    found = []
    for is_planned in (False, True):
        net = Net()
        torch.manual_seed(2 + number)
        parallel = DistributedDataParallel(net)
        if is_planned:
            options = {"budget": f"{SHARE}%", "time_limit_s": 2.0}
            parallel = torch.compile(parallel, backend="memwatch", options=options)
        losses, peak_bytes = train(parallel, steps)
        found.append((losses, peak_bytes, [each.detach().clone() for each in net.parameters()]))
    (wanted, eager_bytes, before), (losses, planned_bytes, after) = found
    same = sum(one == other for one, other in zip(wanted, losses, strict=True))
    is_equal = all(map(torch.equal, before, after))
    print(
        f"rank {number}: {same} of {steps} losses are equal, parameters {'are' if is_equal else 'differ'}"
        f"{' equal' if is_equal else ''}; peak {100 * planned_bytes / eager_bytes:.1f} % of eager PyTorch's"
    )
    sys.stdout.flush()
    distributed.destroy_process_group()
    if same != steps or not is_equal or planned_bytes > eager_bytes * SHARE / 100:
        os._exit(1)


def main() -> None:
    """Run both ranks."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(rank, (os.path.join(folder, "store"), steps), nprocs=RANKS)


if __name__ == "__main__":
    main()
