"""Compare estimates with real ranks to the byte, and estimate models that fit nowhere here.

Writes reports/estimate.md. `python reports/estimate.py ranks`, `large` or `litgpt` measures one part and keeps the
figures of the others, which lie in reports/estimate.json.
"""

from __future__ import annotations

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

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.reading import Reading

HERE = pathlib.Path(__file__).parent
FIGURES = HERE / "estimate.json"
PROGRAM = HERE / "estimate_program.py"
WAYS = ("ddp", "ddp-view", "fsdp2", "fsdp2-bf16", "tensor-parallel")
JOBS, WORLDS = 2, (2, 4)
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


def of_estimate(rank: int, world: int, program: str, *arguments: str) -> dict[str, Any]:
    """Return what the estimate of a rank says, and what making it took."""
    start_s = time.process_time()
    found = estimate_program(Program("script", program, arguments).load, job=Job(rank, world or None))
    cpu_s = time.process_time() - start_s
    figures = tensor_peak(found.reading)
    own = {"rounding_bytes": found.rounding_bytes, "cpu_s": cpu_s, "ops": len(found.reading.ops)}
    memory_kib = int(pathlib.Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    return {**figures, **own, "process_bytes": memory_kib * 1024}


def in_child(
    function: Callable[..., dict[str, Any]], *arguments: Any, **environment: str
) -> Callable[[], Any]:
    """Run a function in a fork of this process, which has imported everything; return what waits for its answer."""
    ours, its = os.pipe()
    child = os.fork()
    if child == 0:
        os.environ.update(environment)
        status = 1
        try:
            os.write(its, json.dumps(function(*arguments)).encode())
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


def main() -> None:
    kept = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    for part in sys.argv[1:] or PARTS:
        FIGURES.write_text(json.dumps({**kept, part: PARTS[part]()}, indent=1) + "\n")
        kept = json.loads(FIGURES.read_text())


PARTS = {"ranks": ranks}

if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
