"""A pipeline of two processes; each rank prints what find_leaks says about a whole schedule step."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleavedZeroBubble

from memwatch.leaks import find_leaks

HIDDEN, BATCH, MICROBATCHES = 16, 8, 4


def block():
    return nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN))


def make_step(rank, size, *, zero_bubble):
    x, target = torch.randn(BATCH, HIDDEN), torch.randn(BATCH, HIDDEN)
    numbers = [rank, rank + size] if zero_bubble else [rank]
    stages = [PipelineStage(block(), n, size * len(numbers), torch.device("cpu")) for n in numbers]
    if zero_bubble:
        schedule = ScheduleInterleavedZeroBubble(stages, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    else:
        schedule = Schedule1F1B(stages[0], MICROBATCHES, loss_fn=nn.functional.mse_loss)

    def step():
        for stage in stages:
            stage.submod.zero_grad()
        if rank == 0:
            schedule.step(x)
        elif rank == size - 1:
            schedule.step(target=target, losses=[])
        else:
            schedule.step()

    return step


def main(rank, size, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    for zero_bubble in (False, True):
        leaks = find_leaks(make_step(rank, size, zero_bubble=zero_bubble))
        sys.stdout.write(f"zero_bubble={zero_bubble} leaks={len(leaks)}\n" + "\n".join(map(str, leaks)))
    dist.destroy_process_group()


if __name__ == "__main__":
    store = sys.argv[1]
    other = os.fork()  # with all that is imported
    main(1 if other else 0, 2, store)
    if other:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
