"""Show jobs of many processes: real gloo ranks, jobs in which something fails, and a merge of 1,024 captures.

Writes reports/ranks.md: `python reports/ranks.py`. Every rank trains twice: under torch's profiler, whose allocator
events count its peak, and in a block.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import memwatch
from memwatch.capture.file import add_summary
from memwatch.ranks.summary import summarise

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
from truth_events import allocator_events, peak_increase_bytes  # noqa: E402

WIDTH, ROWS, STEPS, ROUNDS, MANY = 128, 64, 3, 5, 1024
RANK_OF_A_FAULT = 1
INTRODUCTION = """\
Written by `python reports/ranks.py`: torch {torch}, gloo, CPU, {cores} cores, processes of one machine.

## Peaks of ranks

Each rank trains a small network plainly under torch's profiler {rounds} times, whose allocator events count its peak,
and {rounds} times in a block. A thread of gloo sometimes frees a buffer a moment late, so both may see
more than one peak. The columns show how many peaks in blocks equal a peak of the plain runs, and the most frequent
peaks.
"""


def block() -> nn.Sequential:
    """Return a small network, the same in every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))


def _steps(net: nn.Module) -> Callable[[], None]:
    optimizer = torch.optim.SGD(net.parameters(), momentum=0.9)
    batch = torch.randn(ROWS, WIDTH)

    def run() -> None:
        for _ in range(STEPS):
            net(batch).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def ddp() -> Callable[[], None]:
    return _steps(DistributedDataParallel(block()))


def fsdp2() -> Callable[[], None]:
    net = block()
    for layer in (net[0], net[2]):
        fully_shard(layer)
    return _steps(fully_shard(net))


def tensor_parallel() -> Callable[[], None]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return _steps(parallelize_module(block(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}))


def pipeline_1f1b() -> Callable[[], None]:
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(block(), rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 2 * world, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(stage.submod.parameters(), momentum=0.9)
    batch, target = torch.randn(2 * ROWS, WIDTH), torch.randn(2 * ROWS, WIDTH)

    def run() -> None:
        for _ in range(STEPS):
            if rank == 0:
                schedule.step(batch)
            elif rank == world - 1:
                schedule.step(target=target, losses=[])
            else:
                schedule.step()
            optimizer.step()
            optimizer.zero_grad()

    return run


JOBS = {"DDP": ddp, "FSDP2": fsdp2, "tensor parallel": tensor_parallel, "pipeline 1F1B": pipeline_1f1b}


def be_rank(rank: int, world: int, folder: pathlib.Path) -> None:
    """Run all jobs, and leave a capture and the plain peaks of each."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    for number, make in enumerate(JOBS.values()):
        run = make()
        run()
        plain = [peak_increase_bytes(allocator_events(run)) for _ in range(ROUNDS)]
        observed = []
        for _ in range(ROUNDS):
            path = folder / f"{number}.rank{rank}.memwatch"
            path.unlink(missing_ok=True)
            with memwatch.profile(path) as prof:
                run()
            observed.append(prof.peak_increase_bytes)
        (folder / f"{number}.rank{rank}.json").write_text(json.dumps([plain, observed]))
        ranks = prof.gather()
        assert ranks is None or len(ranks.compared) == world
        dist.barrier()
    dist.destroy_process_group()


def forked_ranks(world: int, folder: pathlib.Path) -> None:
    """Run all ranks, each in a fork of this process."""
    children = []
    for rank in range(world):
        child = os.fork()
        if not child:
            try:
                be_rank(rank, world, folder)
            finally:
                os._exit(int(sys.exc_info()[0] is not None))
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)


def rows_of_jobs(world: int) -> list[str]:
    """Return the rows of the table for jobs of so many ranks."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        forked_ranks(world, folder)
        rows = []
        for number, job in enumerate(JOBS):
            ranks = memwatch.merge(sorted(folder.glob(f"{number}.rank*.memwatch")))
            assert ranks.notes == [], ranks.notes
            for rank in range(world):
                plain, observed = json.loads((folder / f"{number}.rank{rank}.json").read_text())
                row = ranks.ranks.loc[f"rank {rank}"]
                same = sum(peak in plain for peak in observed)
                often = [max(set(peaks), key=peaks.count) for peaks in (plain, observed)]
                cells = (*often, row["communication_bytes"])
                rows.append(
                    f"| {job} | {world} | {rank} | {' | '.join(f'{cell:,}' for cell in cells)} | {same} of {ROUNDS} |"
                )
                print(rows[-1], flush=True)
    return rows


FAULTY = """
import os, resource, signal, sys, time, torch
import torch.distributed as dist
from torch import nn
fault, bad = sys.argv[1], int(os.environ["RANK"]) == 1
if fault == "disk" and bad:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
dist.init_process_group("gloo")
net = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(30):
    for _ in range(20):
        net(torch.randn(32, 64)).sum().backward()
        optimizer.step()
    time.sleep(0.1)
    if fault == "kill" and bad and step == 25:
        os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
dist.destroy_process_group()
"""


def job_with(fault: str, folder: pathlib.Path) -> list[pathlib.Path]:
    """Run two ranks under `memwatch run`, in which rank 1 fails; return their captures."""
    words = [sys.executable, "-m", "memwatch", "run", "-q", "-o", "x.memwatch", "-c", FAULTY, fault]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    environment["MASTER_PORT"] = "29613" if fault == "kill" else "29617"
    environment["PYTHONPATH"] = str(HERE.parent)
    ranks = [
        subprocess.Popen(
            words,
            cwd=folder,
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    for each in ranks:
        each.communicate(timeout=300)
    return sorted(folder.glob("x.rank*.memwatch"))


def faults() -> list[str]:
    """Return what a merge says of jobs in which something fails."""
    said = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for title, fault in (("Rank 1 is killed", "kill"), ("The disk of rank 1 is full", "disk")):
            shutil.rmtree(folder / fault, ignore_errors=True)
            (folder / fault).mkdir()
            captures = job_with(fault, folder / fault)
            said.append(_told(title, captures))
        whole = captures_of_many(2, folder)
        change(whole[1], skew_ns=3600 * 10**9, host="node1")
        said.append(_told("The clock of the second host is an hour ahead", whole))
        with sqlite3.connect(whole[0]) as database:
            database.execute("PRAGMA user_version = 3")
        database.close()
        said.append(_told("And rank 0 was recorded by another memwatch, with a summary", whole))
        whole[1].write_bytes(whole[1].read_bytes()[:5000])
        said.append(_told("And the capture of rank 1 was cut", whole))
    return said


def _told(title: str, captures: list[pathlib.Path]) -> str:
    ranks = memwatch.merge(captures)
    notes = "\n".join(f"* {kind}: {text}" for kind, text in ranks.notes)
    print(title, notes, flush=True)
    folder = str(captures[0].parent)
    compared = ", ".join(f"{name} {ranks.ranks.loc[name, 'peak_bytes']:,} B" for name in ranks.compared)
    return f"**{title}.** Peaks: {compared}.\n\n{notes}\n".replace(f"{folder}/", "")


def captures_of_many(count: int, folder: pathlib.Path) -> list[pathlib.Path]:
    """Return captures that are those of many ranks: one recording with the places of all."""
    first = folder / "first.memwatch"
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = nn.Sequential(*(nn.Linear(32, 32) for _ in range(12)))
    optimizer = torch.optim.AdamW(net.parameters())
    with memwatch.profile(first) as prof:
        for _ in range(50):
            net(torch.randn(16, 32)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    add_summary(first, summarise(prof.capture))
    paths = []
    for rank in range(count):
        paths.append(folder / f"many.rank{rank}.memwatch")
        shutil.copyfile(first, paths[-1])
        change(paths[-1], rank=rank, world_size=count, host=f"node{rank // 8}", pid=1000 + rank)
    first.unlink()
    return paths


def change(path: pathlib.Path, *, skew_ns: int = 0, **meta: object) -> None:
    """Change the place of a capture, the clock of its host, and make its peak its own."""
    with sqlite3.connect(path) as database:
        (text,) = database.execute("SELECT value FROM meta WHERE key = 'summary'").fetchone()
        summary = json.loads(text)
        summary["steps"]["end_ns"] = [ns + skew_ns for ns in summary["steps"]["end_ns"]]
        extra = 1024 * int(meta.get("rank", 0))
        summary["peak_bytes"] += extra
        summary["sites"][0][-2] += extra
        summary["category_bytes"][summary["sites"][0][0]] += extra
        for key, value in {**meta, "summary": summary}.items():
            database.execute("DELETE FROM meta WHERE key = ?", (key,))
            database.execute("INSERT INTO meta VALUES (?, ?)", (key, json.dumps(value)))
    database.close()


MERGE = """
import resource, sys, time, pathlib
import memwatch, memwatch.ranks.page
folder = pathlib.Path(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
begin = time.process_time()
ranks = memwatch.merge(sorted(folder.glob("many.rank*.memwatch")))
ranks.summary(color=False)
ranks.report(folder / "many.html")
most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(time.process_time() - begin, most << 10, before << 10, len(ranks.compared))
"""


def merge_of_many() -> str:
    """Return the row of a merge of many captures, with its page."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        captures = captures_of_many(MANY, folder)
        size = captures[0].stat().st_size
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
        done = subprocess.run(
            [sys.executable, "-c", MERGE, name], env=environment, capture_output=True, text=True, check=True
        )
        seconds, most, before, compared = map(float, done.stdout.split())
        page = (folder / "many.html").stat().st_size
    return (
        f"| {int(compared):,} | {size / 2**10:.0f} KiB | {seconds:.1f} | {most / 2**30:.2f} | "
        f"{(most - before) / 2**30:.2f} | {page / 1e6:.2f} |"
    )


def main() -> None:
    many = merge_of_many()
    print(many, flush=True)
    jobs = [row for world in (2, 4) for row in rows_of_jobs(world)]
    said = faults()
    cores = len(os.sched_getaffinity(0))
    text = "\n".join(
        [
            "# Ranks\n",
            INTRODUCTION.format(torch=torch.__version__, cores=cores, rounds=ROUNDS),
            "| job | ranks | rank | plain peak increase, B | in a block, B | most for collectives, B | the same |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *jobs,
            "\n## A merge of many\n",
            f"{MANY:,} captures with summaries: merge, text and page, and the whole page of the worst rank.\n",
            "| captures | each | CPU s | most memory, GiB | beyond imports, GiB | page, MB |",
            "| --- | --- | --- | --- | --- | --- |",
            many,
            "\n## Notes when something fails\n",
            *said,
        ]
    )
    (HERE / "ranks.md").write_text(text)


if __name__ == "__main__":
    main()
