"""Compare estimates with real ranks to the byte, and estimate models that fit nowhere here.

Writes reports/estimate.md. `python reports/estimate.py ranks`, `kernels`, `large` or `litgpt` measures one part and
keeps the figures of the others, which lie in reports/estimate.json.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import socket
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import memwatch
from memwatch.cli.program import Program
from memwatch.estimate.job import Job
from memwatch.estimate.program import estimate_program
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.reading import Reading

HERE = pathlib.Path(__file__).parent
FIGURES = HERE / "estimate.json"
PROGRAM = HERE / "estimate_program.py"
WAYS = ("ddp", "ddp-view", "fsdp2", "fsdp2-bf16", "tensor-parallel")
JOBS, WORLDS = 2, (2, 4)
WORKSPACE = HERE / "estimate_workspace.py"
LLAMA, LITGPT = HERE / "estimate_llama.py", HERE / "estimate_litgpt.py"
WITH_WORKSPACE = (
    "MLP", "GPT", "ResNet", "large convolutions", "transformer", "LSTM", "sorts and sums", "bfloat16",
)  # fmt: skip
PUBLISHED = {
    "vicuna-33b-v1.3": "12.29 GB (thunder)",
    "falcon-40b": "19.98 GB (thunder)",
    "Gemma-7b": "21.31 GB (thunder)",
    "longchat-7b-16k": "10.55 GB (eager), 12.36 GB (thunder)",
    "pythia-12b": "9.65 GB (thunder)",
}
"""What Lightning-AI/lightning-thunder#1337 reports of these runs, checkpointed."""
INTRODUCTION = """\
# Estimates beside real runs

Written by `python reports/estimate.py` (parts: `ranks`, `kernels`, `large`, `litgpt`; `page` writes this page again),
torch {torch}, CPU. `memwatch estimate` computes its figures on fake tensors, as one rank, in one process."""
RANKS = """\
## Estimated and real ranks

`estimate_program.py`: three steps of a small transformer with AdamW, as real processes over gloo and as estimates. The
figure is the most bytes of tensors that were alive at once in the whole program, mesh and optimizer included. A thread
of gloo sometimes frees a buffer late, which can only raise the figure. So a real rank's figure is the lower of two
runs. The allocator of a real rank also gives workspace to kernels and buffers to gloo. These figures leave them out."""
LARGE = """\
## A model of Llama 3 70B's sizes

`estimate_llama.py`: 80 blocks, FSDP2 by block, bfloat16 parameters while they are gathered, AdamW, one sequence of
8,192 tokens for each rank, blocks checkpointed; rank 0, whose shards are the largest, and two steps."""
MODELS = """\
## Five models of litgpt with two blocks

`estimate_litgpt.py`: bfloat16, one sequence of the model's length, fused AdamW, litgpt 0.5.3, beside what
Lightning-AI/lightning-thunder#1337 reports of a GPU. Its figures of thunder are for compiled programs with checkpointed
blocks. It has one figure of eager PyTorch. Where both columns agree, the peak is in the optimizer's step or in the
gradients of embedding and head, and checkpoints do not change it. The estimate has no workspace of kernels."""
KERNELS = """\
## Tensors and workspace, beside the allocator

`estimate_workspace.py`: three steps of each program on this machine with one thread, recorded and estimated. The
real figure is the peak of the allocator, including the workspace of kernels. The estimate runs the ops near its peak
once. Ops with more than 16 MiB run at smaller sizes. The table names ops that could not run in this way."""
NOT_OF_TENSORS = ("workspace", "unknown")


def tensor_peak(reading: Reading) -> dict[str, Any]:
    """Return the most bytes of tensors that were alive at once, and what they were, by category."""
    storages = reading.storages
    rows = storages[storages["counted"] & (storages["origin"] != "workspace")]
    rows = rows[~rows["category"].isin(NOT_OF_TENSORS)]
    sizes = rows["nbytes"].to_numpy()
    birth, death = rows["birth_event"].to_numpy(), rows["death_event"].to_numpy()
    changes = np.zeros(len(reading.timeline) + 1, dtype=np.int64)
    np.add.at(changes, np.maximum(birth, 0), sizes)
    np.subtract.at(changes, death[death >= 0], sizes[death >= 0])
    curve = np.cumsum(changes)
    peak = int(curve.argmax())
    alive = rows[(birth <= peak) & ((death < 0) | (death > peak))]
    return {
        "bytes": int(curve[peak]),
        "categories": {str(name): int(n) for name, n in alive.groupby("category")["nbytes"].sum().items()},
        "allocator_bytes": reading.peak_bytes,
    }


def of_real_rank(way: str) -> dict[str, Any]:
    """Return what this process, one of a job, had at most."""
    sys.argv[:] = [str(PROGRAM), way]
    with memwatch.profile() as prof:
        exec(compile(PROGRAM.read_text(), str(PROGRAM), "exec"), {"__name__": "__main__"})
    return tensor_peak(prof)


def of_estimate(rank: int, world: int, program: str, *arguments: str, steps: int = 3) -> dict[str, Any]:
    """Return what the estimate of a rank says, and what making it took."""
    start_s = time.process_time()
    found = estimate_program(
        Program("script", program, arguments).load, job=Job(rank, world or None), steps=steps
    )
    cpu_s = time.process_time() - start_s
    figures = tensor_peak(found.reading)
    own = {"rounding_bytes": found.rounding_bytes, "cpu_s": cpu_s, "ops": len(found.reading.ops)}
    memory_kib = int(pathlib.Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    return {**figures, **own, "process_bytes": memory_kib * 1024}


def in_child(
    function: Callable[..., dict[str, Any]], *arguments: Any, steps: int = 3, **environment: str
) -> Callable[[], Any]:
    """Run a function in a fork of this process, which has imported everything; return what waits for its answer."""
    options = {"steps": steps} if steps != 3 else {}
    ours, its = os.pipe()
    child = os.fork()
    if child == 0:
        os.environ.update(environment)
        status = 1
        try:
            os.write(its, json.dumps(function(*arguments, **options)).encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    os.close(its)

    def answer() -> Any:
        with open(ours) as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        return json.loads(text)

    return answer


def real_job(way: str, world: int) -> list[dict[str, Any]]:
    """Run a job of real processes over gloo; return what each rank had at most."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": str(world), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    answers = [
        in_child(of_real_rank, way, RANK=str(rank), LOCAL_RANK=str(rank), **common) for rank in range(world)
    ]
    return [answer() for answer in answers]


def ranks() -> list[dict[str, Any]]:
    """Compare every rank of real jobs with its estimate."""
    rows = []
    for world in WORLDS:
        for way in WAYS:
            jobs = [real_job(way, world) for _ in range(JOBS)]
            for rank in sorted({0, world - 1}):
                real = min((job[rank] for job in jobs), key=lambda found: found["bytes"])
                estimated = in_child(of_estimate, rank, world, str(PROGRAM), way)()
                rows.append({"way": way, "world": world, "rank": rank, "real": real, "estimate": estimated})
                print(way, world, rank, real["bytes"], estimated["bytes"], file=sys.stderr)
                if real["bytes"] != estimated["bytes"]:
                    print(real["categories"], estimated["categories"], file=sys.stderr)
    return rows


def kernels() -> dict[str, dict[str, Any]]:
    """Compare the peak of the allocator with an estimate that has workspace."""
    return {
        name: {"real": in_child(real_peak, name)(), "estimate": in_child(estimated_peak, name)()}
        for name in WITH_WORKSPACE
    }


def real_peak(name: str) -> dict[str, Any]:
    """Return the peak of a real run."""
    with memwatch.profile() as prof:
        Program("script", str(WORKSPACE), (name,)).load()()
    return {"bytes": prof.peak_bytes}


def estimated_peak(name: str) -> dict[str, Any]:
    """Return the parts of an estimate."""
    found = estimate_program(Program("script", str(WORKSPACE), (name,)).load)
    assert found.workspace is not None
    return {"bytes": found.tensor_bytes, "workspace": dataclasses.asdict(found.workspace)}


def kernel_lines(figures: dict[str, Any]) -> list[str]:
    """Return the table of tensors and workspace."""
    lines = [
        "| program | real peak, bytes | estimated: tensors | workspace | difference | at smaller sizes | not known |",
        "| --- | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for name, row in figures.items():
        real, tensors, workspace = (
            row["real"]["bytes"],
            row["estimate"]["bytes"],
            row["estimate"]["workspace"],
        )
        difference = tensors + workspace["nbytes"] - real
        scaled = "yes" if workspace["is_scaled"] else "no"
        cells = [name, *(f"{n:,}" for n in (real, tensors, workspace["nbytes"], difference)), scaled]
        lines.append(f"| {' | '.join(cells)} | {', '.join(workspace['unknown'])} |")
    return lines


def large() -> dict[str, dict[str, Any]]:
    """Estimate rank 0 of large jobs; two steps, for the third is as the second."""
    return {str(world): in_child(of_estimate, 0, world, str(LLAMA), steps=2)() for world in (256, 4096)}


def litgpt() -> dict[str, dict[str, Any]]:
    """Estimate litgpt's models with two blocks; the environment's LITGPT says where the package is."""
    return {
        name: {
            how: in_child(of_estimate, 0, 0, str(LITGPT), name, how)() for how in ("checkpointed", "plain")
        }
        for name in PUBLISHED
    }


def page(figures: dict[str, Any]) -> str:
    """Return the report."""
    lines = [INTRODUCTION.format(torch=torch.__version__), "", RANKS, ""]
    lines += [
        "| way | ranks | rank | real, bytes | estimated, bytes | difference |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in figures["ranks"]:
        real, estimated = row["real"]["bytes"], row["estimate"]["bytes"]
        lines.append(
            f"| {row['way']} | {row['world']} | {row['rank']} | {real:,} | {estimated:,} | {estimated - real:,} |"
        )
    lines += ["", KERNELS, "", *kernel_lines(figures["kernels"])]
    lines += ["", LARGE, ""]
    lines += [
        "| ranks | peak of tensors | rounding | parameters and state | CPU time | memory of the process | ops |"
    ]
    lines += ["| ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for world, found in figures["large"].items():
        kept = sum(found["categories"].get(name, 0) for name in ("parameter", "optimizer state"))
        sizes = (format_bytes(found[name]) for name in ("bytes", "rounding_bytes"))
        cells = [f"{int(world):,}", *sizes, format_bytes(kept), f"{found['cpu_s']:.0f} s"]
        lines.append(f"| {' | '.join(cells)} | {format_bytes(found['process_bytes'])} | {found['ops']:,} |")
    lines += [
        "",
        "The parts of the peak:",
        "",
        "| category | " + " | ".join(f"{int(world):,} ranks" for world in figures["large"]) + " |",
    ]
    lines += ["| --- |" + " ---: |" * len(figures["large"])]
    names = sorted({name for each in figures["large"].values() for name in each["categories"]})
    for name in names:
        cells = [format_bytes(found["categories"].get(name, 0)) for found in figures["large"].values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", MODELS, "", "| model | checkpointed | not | published |", "| --- | ---: | ---: | ---: |"]
    for name, found in figures["litgpt"].items():
        checkpointed, plain = (found[how]["bytes"] / 1e9 for how in ("checkpointed", "plain"))
        lines.append(f"| {name} | {checkpointed:.2f} GB | {plain:.2f} GB | {PUBLISHED[name]} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    kept = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    for part in sys.argv[1:] or PARTS:
        if part != "page":
            kept[part] = PARTS[part]()
            FIGURES.write_text(json.dumps(kept, indent=1) + "\n")
    FIGURES.with_suffix(".md").write_text(page(kept))


PARTS = {"ranks": ranks, "kernels": kernels, "large": large, "litgpt": litgpt}

if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
