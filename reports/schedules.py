"""Measure a million scheduled steps, and what a kill leaves: `python reports/schedules.py [STEPS [KILLS]]`.

The steps are those of a tiny model. Every 1,000th holds one block more than the others, so that the curve of the steps
has peaks that are known by construction. The kills are SIGKILL at random moments of a recording to a file, in a forked
process that says after each step what it has done.
"""

from __future__ import annotations

import os
import pathlib
import random
import resource
import signal
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import memwatch

if TYPE_CHECKING:
    from collections.abc import Callable

EXTRA_FLOATS = 4096
TEMPLATE = """# Schedules

`python reports/schedules.py {steps} {count}`, torch {torch}. Each 1,000th step holds a block more than the others,
whose bytes are known; *exact* counts the steps whose peak is higher by exactly these. `keep="peaks"` is measured on
fewer steps.

| recorded | steps | ops | file | bytes per step | memory grew by | CPU per step | highest step | peak | exact |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
{rows}

The program was killed by SIGKILL at random moments. *Lost* counts the files that had fewer steps after the kill than
before it. A file lacks the steps since its last flush.

| kills | files read | lost | most steps behind |
| ---: | ---: | ---: | ---: |
{killed}
"""
OUTPUT = pathlib.Path(__file__).with_suffix(".md")


def train(prof: memwatch.Profile, steps: int, done: int | None = None) -> None:
    """Run steps of training of a tiny model; write a byte to a pipe after each."""
    model, data = nn.Linear(4, 4), torch.ones(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for step in range(steps):
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()
        if step % 1000 == 999:
            torch.ones(EXTRA_FLOATS + step // 1000)
        prof.step()
        if done is not None:
            os.write(done, b".")


def infer(prof: memwatch.Profile, steps: int) -> None:
    """Run steps of inference of a tiny model."""
    model, data = nn.Linear(4, 4), torch.ones(4, 4)
    with torch.no_grad():
        for step in range(steps):
            model(data)
            if step % 1000 == 999:
                torch.ones(EXTRA_FLOATS + step // 1000)
            prof.step()


def many_steps(steps: int, folder: pathlib.Path) -> list[str]:
    """Return a row of the table for each schedule."""
    rows: list[str] = []
    for name, run, count, options in (
        ("inference, every 1,000th, 3 first", infer, steps, {"schedule": _action}),
        ("training, every 1,000th, 3 first", train, steps, {"schedule": _action}),
        ('training, keep="peaks"', train, steps // 500, {"keep": "peaks"}),
    ):
        path = folder / f"{len(rows)}.memwatch"
        record(path, run, 1000, options)  # what is loaded once does not count
        before_bytes = resident_bytes()
        started_s = time.process_time()
        record(path, run, count, options)
        spent_s, grown_bytes = time.process_time() - started_s, resident_bytes() - before_bytes
        reading = memwatch.load(path)
        curve = reading.capture.tables["step_curve"]
        told = int(curve["peak_bytes"].max())
        rows.append(
            f"| {name} | {count:,} | {reading.capture.rows('ops'):,} | {path.stat().st_size / 2**20:.1f} MiB "
            f"| {path.stat().st_size / count:.1f} | {grown_bytes / 2**20:.0f} MiB | {1e6 * spent_s / count:.0f} us "
            f"| {told:,} B | {reading.peak_bytes:,} B | {count_peaks(curve, count)} |"
        )
        print(rows[-1], flush=True)
    return rows


def _action(step: int) -> torch.profiler.ProfilerAction:
    is_recorded = step < 3 or step % 1000 == 0
    return torch.profiler.ProfilerAction.RECORD if is_recorded else torch.profiler.ProfilerAction.NONE


def count_peaks(curve: Any, steps: int) -> str:
    """Return how many of the steps with a block more have exactly its bytes more than the step before them."""
    peaks = dict(zip(curve["step"].tolist(), curve["end_live_bytes"].tolist(), strict=True))
    high = dict(zip(curve["step"].tolist(), curve["peak_bytes"].tolist(), strict=True))
    exact = sum(
        high[step] == peaks[step] + 4 * (EXTRA_FLOATS + step // 1000) for step in range(999, steps, 1000)
    )
    return f"{exact:,} of {steps // 1000:,}"


def record(path: pathlib.Path, run: Callable[..., None], steps: int, options: dict[str, Any]) -> None:
    """Record steps to a file."""
    path.unlink(missing_ok=True)
    with memwatch.profile(path, **options) as prof:
        run(prof, steps)


def resident_bytes() -> int:
    """Return what the process has resident now."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def kills(count: int, folder: pathlib.Path) -> list[str]:
    """Kill recordings at random moments; return how many were read, and what the last steps were."""
    chance, read, lost, behind = random.Random(0), 0, 0, list[int]()
    for number in range(count):
        path = folder / f"killed-{number}.memwatch"
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                with memwatch.profile(path, schedule=_action) as prof:
                    train(prof, 1 << 40, send)
            finally:
                os._exit(1)
        os.close(send)
        time.sleep(chance.uniform(0.5, 4.0))
        before = known_steps(path)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        done = 0
        while chunk := os.read(receive, 1 << 16):
            done += len(chunk)
        os.close(receive)
        after = known_steps(path)
        read += after is not None
        lost += (before or 0) > (after or 0)
        behind.append(done - (after or 0))
    return [f"| {count} | {read} | {lost} | {max(behind):,} |"]


def known_steps(path: pathlib.Path) -> int | None:
    """Return how many steps a file knows; None where there is no recording in it yet."""
    try:
        run = memwatch.load(path)
    except memwatch.CaptureError:
        return None
    return len(set(run.capture.tables["step_curve"]["step"].tolist()))


def main() -> None:
    """Measure, and write the report."""
    torch.set_num_threads(1)
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        rows = many_steps(steps, folder)  # before the forks: they need not load what it loads
        killed = kills(count, folder)
    text = TEMPLATE.format(
        steps=steps, count=count, torch=torch.__version__, rows="\n".join(rows), killed="\n".join(killed)
    )
    OUTPUT.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
