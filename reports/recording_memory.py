"""Measure how much recording one million ops makes the process grow, in memory and into a file.

Each run has a process of its own; the resident set is sampled every 20 ms from before the block until after
it. Reading the capture afterwards is not recording, and takes more. Writes reports/recording_memory.md:
`python reports/recording_memory.py [--ops N]`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import torch

import memwatch

OPS = 1_000_000
LIMITS_MIB = {"in memory": 300, "into a file": 100}
HERE = Path(__file__).parent


def train() -> None:
    """Run one step of a small MLP: about 60 ops."""
    for parameter in MODEL.parameters():
        parameter.grad = None
    MODEL(BATCH).sum().backward()
    OPTIMIZER.step()


MODEL = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(4)])
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.01, foreach=False)
BATCH = torch.randn(4, 16)


def measure(ops: int, path: str | None) -> dict[str, float]:
    """Record `ops` ops and give the growth of the process, in MiB, at most and in the end."""
    torch.set_num_threads(1)
    train()
    with memwatch.profile():
        train()
    process, most_bytes = psutil.Process(), [0]
    before_bytes = process.memory_info().rss

    def sample() -> None:
        while True:
            most_bytes[0] = max(most_bytes[0], process.memory_info().rss)
            time.sleep(0.02)

    threading.Thread(target=sample, daemon=True).start()
    with memwatch.profile(path) as prof:
        session = prof._session
        while session is not None and session.started[0] < ops:
            train()
    most_bytes[0] = max(most_bytes[0], end_bytes := process.memory_info().rss)
    grown = {"most_mib": most_bytes[0] - before_bytes, "end_mib": end_bytes - before_bytes}
    return {name: nbytes / 2**20 for name, nbytes in grown.items()} | {"ops": len(prof.ops)}


def main() -> None:
    """Measure both ways in fresh processes and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", type=int, default=OPS)
    parser.add_argument("--one", metavar="PATH", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(options.ops, options.one or None)))
        return
    lines = [
        "| recording | ops | growth at most | growth at the end | limit |",
        "| --- | --- | --- | --- | --- |",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for name, path in (("in memory", ""), ("into a file", f"{folder}/a.memwatch")):
            words = [sys.executable, __file__, "--ops", str(options.ops), "--one", path]
            said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
            found = json.loads(said)
            figures = f"{found['ops']:,} | {found['most_mib']:.0f} MiB | {found['end_mib']:.0f} MiB"
            lines.append(f"| {name} | {figures} | {LIMITS_MIB[name]} MiB |")
    text = "\n".join(lines)
    says = f"Written by `python reports/recording_memory.py`: torch {torch.__version__}, the growth of"
    (HERE / "recording_memory.md").write_text(
        f"# What recording takes\n\n{says}\nthe resident set while small training steps are recorded, "
        f"everything on.\n\n{text}\n"
    )
    print(text)


if __name__ == "__main__":
    main()
