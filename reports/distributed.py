"""Compare the categories of memwatch with the rows of torch's FSDPMemTracker, and show DDP's buckets.

Writes reports/distributed.md: two processes on this machine, gloo, CPU. Run it as `python reports/distributed.py`.
"""

from __future__ import annotations

import functools
import json
import pathlib
import statistics
import sys
import tempfile
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import distributed, multiprocessing, nn
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import memwatch
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas

HERE = pathlib.Path(__file__).parent
WORLD, LAYERS, WIDTH, BATCH, TOKENS = 2, 4, 256, 4, 64
ROUNDS = 5
ROWS = {
    "Sharded Param": ("parameter",),
    "Unsharded Param": ("unsharded parameter",),
    "Buffer": ("buffer",),
    "OptState": ("optimizer state",),
    "Inputs": ("input",),
    "Sharded Grad + Unsharded Grad": ("gradient",),
    "All Gather + Reduce Scatter": ("communication",),
    "Activation + Temp": ("activation", "recomputed", "temporary", "held"),
}
MOVED = tuple(ROWS)[-3:]
"""Rows of FSDPMemTracker, and the categories that say the same."""
INTRODUCTION = """\
Written by `python reports/distributed.py`: {world} processes, gloo, CPU, torch {torch}; {layers} transformer layers of
width {width} between two linear ones, Adam under FSDP2 and SGD under DDP, rank 0.

FSDPMemTracker looks after each op and sees only tensors. Therefore the tools are compared after the op with the most
bytes of live tensors. A thread of gloo frees buffers now and then a moment late, so each tool shows the step with
the total that most of {rounds} steps have. Two differences are left:

* To FSDPMemTracker a gradient of a whole parameter is "Temp" until its group reduces it, and a buffer is until the
  collective takes it. memwatch names both from their birth on. The sum of these rows is the same.
* "Inputs" has the tensors from before the block. memwatch also counts small tensors of torch itself.

Only memwatch sees memory without a tensor, such as a kernel's workspace and gloo's copies."""


def model() -> nn.Sequential:
    """Return a stack of transformer layers between two linear ones."""
    torch.manual_seed(0)
    layers = [
        nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(LAYERS)
    ]
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *layers, nn.Linear(WIDTH, WIDTH))


def steps_of(
    net: nn.Module, optimizer: torch.optim.Optimizer, examples: int
) -> tuple[torch.Tensor, Callable[[], None]]:
    """Return an input of some examples and a training step that has run twice."""
    batch = torch.randn(examples, TOKENS, WIDTH)

    def step() -> None:
        net(batch).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    step()
    return batch, step


def is_of_no_tensor(rows: pandas.DataFrame) -> pandas.Series:
    """Return which rows are of memory that no tensor shows, as a kernel's workspace and gloo's copies."""
    return rows["tensor"] == ""


def at_the_highest_op(prof: memwatch.profile) -> dict[str, int]:
    """Return the bytes by category after the op after which most bytes of tensors are alive.

    FSDPMemTracker looks after each op too, and sees tensors alone.
    """
    storages, ops = prof.storages, prof.ops
    rows = storages[storages["counted"] & ~is_of_no_tensor(storages)]
    ends = (ops["start_ns"] + ops["duration_ns"]).to_numpy()
    times = prof.timeline["time_ns"].to_numpy()
    event = np.searchsorted(times, ends, side="right") - 1
    death = rows["death_event"].where(rows["death_event"] >= 0, len(times)).to_numpy()
    alive = (rows["birth_event"].to_numpy()[:, None] <= event) & (event < death[:, None])
    highest = int((alive * rows["nbytes"].to_numpy()[:, None]).sum(axis=0).argmax())
    found = rows[alive[:, highest]].groupby("category")["nbytes"].sum()
    return {str(category): int(nbytes) for category, nbytes in found.items()}


def fsdp2(policy: MixedPrecisionPolicy | None) -> dict[str, object]:
    """Return what both tools say of a step under FSDP2."""
    net = model()
    options = {} if policy is None else {"mp_policy": policy}
    for layer in net:
        fully_shard(layer, **options)
    fully_shard(net, **options)
    optimizer = torch.optim.Adam(net.parameters(), foreach=False)
    batch, step = steps_of(net, optimizer, BATCH)
    found = [both_tools(net, optimizer, batch, step) for _ in range(ROUNDS)]
    profiles, snapshots = zip(*found, strict=True)
    most = statistics.mode(rows["Total"] for rows in snapshots)
    tracked = next(rows for rows in snapshots if rows["Total"] == most)
    most = statistics.mode(sum(at_the_highest_op(prof).values()) for prof in profiles)
    prof = next(prof for prof in profiles if sum(at_the_highest_op(prof).values()) == most)
    unnamed = prof.at_peak[is_of_no_tensor(prof.at_peak)]["nbytes"].sum()
    return {
        "memwatch": at_the_highest_op(prof),
        "tracker": tracked,
        "peak_bytes": prof.peak_bytes,
        "unnamed_bytes": int(unnamed),
    }


def both_tools(
    net: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor, step: Callable[[], None]
) -> tuple[memwatch.profile, dict[str, int]]:
    """Return a profile of a step, and FSDPMemTracker's rows at the peak of another one."""
    with memwatch.profile() as prof:
        step()
    tracker = FSDPMemTracker(net, optimizer)
    tracker.track_inputs((batch,))
    with tracker:
        step()
    rows = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    return prof, {str(getattr(row, "value", row)): int(nbytes) for row, nbytes in rows.items()}


def ddp(*, view: bool) -> dict[str, object]:
    """Return what the peak of a step under DistributedDataParallel is made of, and what is found."""
    net = model()
    with memwatch.profile() as prof:
        net = DistributedDataParallel(net, gradient_as_bucket_view=view)
        steps_of(net, torch.optim.SGD(net.parameters(), lr=0.01, foreach=False), 1)
    found = prof.at_peak.groupby("category")["nbytes"].sum()
    buckets = prof.at_peak[prof.at_peak["name"].str.startswith("bucket ")]
    return {
        "memwatch": {str(category): int(nbytes) for category, nbytes in found.items()},
        "peak_bytes": prof.peak_bytes,
        "buckets": buckets["nbytes"].tolist(),
        "parameter_bytes": sum(parameter.nbytes for parameter in net.parameters()),
        "findings": [
            [finding.kind, finding.nbytes, finding.predicted_peak_bytes] for finding in prof.findings
        ],
    }


PROGRAMS: dict[str, Callable[[], dict[str, object]]] = {
    "FSDP2, float32": functools.partial(fsdp2, None),
    "FSDP2, bfloat16 parameters, gradients reduced in float32": functools.partial(
        fsdp2, MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    ),
    "DDP": functools.partial(ddp, view=False),
    "DDP, gradient_as_bucket_view=True": functools.partial(ddp, view=True),
}


def rank(number: int, folder: str, program: str) -> None:
    """Be one of the processes of a program; the first writes what it found."""
    torch.set_num_threads(1)
    store = f"file://{folder}/rendezvous"
    distributed.init_process_group("gloo", init_method=store, rank=number, world_size=WORLD)
    result = PROGRAMS[program]()
    if number == 0:
        (pathlib.Path(folder) / "result.json").write_text(json.dumps(result))
    distributed.barrier()
    distributed.destroy_process_group()


def compared(result: dict[str, dict[str, int]]) -> list[str]:
    """Return a table of both tools' figures at the highest op."""
    lines = [
        "| FSDPMemTracker's row | bytes | memwatch's category | bytes | difference |",
        "| --- " * 5 + "|",
    ]
    theirs, ours = result["tracker"], result["memwatch"]
    for row, categories in ROWS.items():
        their_bytes = sum(theirs.get(part, 0) for part in row.split(" + "))
        our_bytes = sum(ours.get(category, 0) for category in categories)
        lines.append(
            f"| {row} | {their_bytes:,} | {' + '.join(categories)} | {our_bytes:,} | {our_bytes - their_bytes:+,} |"
        )
    moved = [
        (sum(theirs.get(part, 0) for row in MOVED for part in row.split(" + "))),
        (sum(ours.get(category, 0) for row in MOVED for category in ROWS[row])),
    ]
    lines.append(f"| the three before | {moved[0]:,} | | {moved[1]:,} | {moved[1] - moved[0]:+,} |")
    total, tracked = sum(ours.values()), theirs["Total"]
    return [*lines, f"| Total | {tracked:,} | all of these | {total:,} | {total - tracked:+,} |"]


def report(results: dict[str, dict[str, object]]) -> list[str]:
    """Return the lines of the report."""
    lines = [
        "# Distributed training, beside torch's FSDPMemTracker",
        "",
        INTRODUCTION.format(world=WORLD, torch=torch.__version__, layers=LAYERS, width=WIDTH, rounds=ROUNDS),
    ]
    for name, result in results.items():
        lines += ["", f"## {name}", ""]
        if "tracker" in result:
            lines += compared(result)
            seen = format_bytes(result["peak_bytes"])
            lines += [
                "",
                (
                    f"The peak including memory without a tensor: {seen}. "
                    f"That memory is {format_bytes(result['unnamed_bytes'])}."
                ),
            ]
            continue
        lines += ["| category at the peak | bytes |", "| --- | --- |"]
        lines += [f"| {category} | {nbytes:,} |" for category, nbytes in result["memwatch"].items()]
        lines += [
            "",
            f"Peak: {result['peak_bytes']:,} bytes. Parameters: {result['parameter_bytes']:,} bytes. ",
        ]
        lines[-1] += f"Buckets: {' + '.join(f'{nbytes:,}' for nbytes in result['buckets'])} bytes."
        lines += [
            f"Finding `{kind}`: {nbytes:,} bytes, the peak would fall to {peak:,} bytes."
            for kind, nbytes, peak in result["findings"]
        ]
    return lines


def main() -> int:
    """Run the processes and write the report."""
    results = {}
    for program in PROGRAMS:
        with tempfile.TemporaryDirectory() as folder:
            multiprocessing.spawn(rank, (folder, program), WORLD)
            results[program] = json.loads((pathlib.Path(folder) / "result.json").read_text())
    text = "\n".join(report(results)) + "\n"
    (HERE / "distributed.md").write_text(text)
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
