"""The estimate of a rank equals the tensors of a real rank, to the byte."""

from __future__ import annotations

import json

TRAINING = """
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

torch.manual_seed(0)
distributed.init_process_group("gloo")
model = nn.Sequential(nn.Linear(33, 64), nn.ReLU(), nn.Linear(64, 7))
{wrapped}
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for _ in range(3):
    model(torch.ones(4, 33)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
WAYS = {
    "fsdp2": "[fully_shard(layer) for layer in model]; fully_shard(model)",
}
BOTH = """
import json, os, sys
import torch
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
import memwatch
from memwatch.estimate.job import Job
from memwatch.estimate.program import estimate_program

torch.set_num_threads(1)
codes = {way: compile(source, way, "exec") for way, source in json.loads(sys.argv[1]).items()}

def peak_of_tensors(reading):
    storages = reading.storages
    rows = storages[storages["counted"] & ~storages["category"].isin(["workspace", "unknown"])]
    changes = [(birth, n) for birth, n in zip(rows["birth_event"], rows["nbytes"])]
    changes += [(death, -n) for death, n in zip(rows["death_event"], rows["nbytes"]) if death >= 0]
    live = peak = 0
    for _, n in sorted(changes):
        live += n
        peak = max(peak, live)
    return peak

def real(rank, way):
    init = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda backend: init("fake", store=FakeStore(), rank=rank, world_size=2)
    with memwatch.profile(stacks=False, holders=False) as prof:
        exec(codes[way], {"__name__": "__main__"})
    return peak_of_tensors(prof)

def forked(function, *arguments):
    ours, its = os.pipe()
    if os.fork() == 0:
        os.write(its, json.dumps(function(*arguments)).encode())
        os._exit(0)
    os.close(its)
    return os.fdopen(ours)

def estimated(rank, way):
    found = estimate_program(lambda: lambda: exec(codes[way], {"__name__": "__main__"}), job=Job(rank, 2))
    return peak_of_tensors(found.reading)

found = {}
for way in codes:
    pipes = [[forked(function, rank, way) for rank in range(2)] for function in (real, estimated)]
    found[way] = [[json.load(pipe) for pipe in each] for each in pipes]
print(json.dumps(found))
"""


def test_both_ranks_have_what_was_estimated(fresh_python):
    """Both ranks of FSDP2 with real tensors, the other rank imagined; the shards of seven rows are uneven.

    Over gloo a thread frees buffers late, which adds bytes now and then: reports/estimate.py compares such ranks.
    """
    programs = {way: TRAINING.format(wrapped=wrapped) for way, wrapped in WAYS.items()}
    process = fresh_python(BOTH, json.dumps(programs), OMP_NUM_THREADS="1")
    assert process.returncode == 0, process.stderr
    found = json.loads(process.stdout.splitlines()[-1])
    assert found
    for real, estimated in found.values():
        assert real == estimated
