"""Run the programs that run out of memory and their twins, and measure the cost of a healthy program.

`python reports/out_of_memory.py [zoo|recordings|cost]` writes the results between the marks of
`reports/out_of_memory.md`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "monitor"))
RESULTS = ROOT / "reports" / "out_of_memory.md"

import failing_programs  # noqa: E402
from failing_programs import PROGRAMS, Program  # noqa: E402

PAIRS = 8
STEPS = 60
COST = f"""
import time, torch
from memwatch.monitor.guard import start_guard
torch.set_num_threads(1)
layer = torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 4)
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randn(8, 64, 128)
def steps():
    begin_s = time.process_time()
    for _ in range({STEPS}):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return time.process_time() - begin_s
steps()
ratios = []
for _ in range({PAIRS}):
    plain_s = steps()
    guard = start_guard()
    guarded_s = steps()
    guard.stop()
    ratios.append(guarded_s / plain_s)
print(ratios)
"""
LOOK = """
import time, torch
from memwatch.monitor.limits import MemoryLimits
import psutil
limits, process = MemoryLimits(), psutil.Process()
begin_s = time.thread_time()
for _ in range(1000):
    limits.read(), limits.stalled_percent(), process.memory_info()
print(time.thread_time() - begin_s)
"""


def run(code: str, folder: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder."""
    file = Path(folder) / "program.py"
    file.write_text(code)
    return subprocess.run(
        [sys.executable, str(file)], cwd=folder, capture_output=True, text=True, check=False
    )


def reported(program: Program) -> tuple[dict[str, Any], float]:
    """Return the record of a program that runs out of memory, empty without a report, and the seconds."""
    with tempfile.TemporaryDirectory() as folder:
        begin_s = time.monotonic()
        run(failing_programs.code_of(program), folder)
        took_s = time.monotonic() - begin_s
        files = list(Path(folder).glob("*.oom.json"))
        return (json.loads(files[0].read_text()) if len(files) == 1 else {}), took_s


def is_silent(program: Program) -> bool:
    """Return True if the twin of a program ends well and memwatch writes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        done = run(failing_programs.code_of(program, twin=True), folder)
        return done.returncode == 0 and not done.stderr and not list(Path(folder).glob("*.oom.*"))


def zoo() -> list[str]:
    """Return a table of the programs and the sentence on the whole."""
    lines = [
        "| program | first in the report | right | bytes | a report in the twin |",
        "| --- | --- | --- | --- | --- |",
    ]
    named = silent = reports = 0
    for name, program in PROGRAMS.items():
        record, took_s = reported(program)
        is_right = bool(record) and failing_programs.is_named(program, record)
        twin_is_silent = is_silent(program)
        named, silent, reports = named + is_right, silent + twin_is_silent, reports + bool(record)
        first: dict[str, Any] = {}
        if record:
            groups = record["containers"] if program.category == "Python objects" else record["live"]
            first = groups[0] if groups else {}
        holder = first.get("holder", "nothing")
        category = first.get("category", program.category if first else "")
        lines.append(
            f"| {name} | {category}: {holder} | {'yes' if is_right else 'no'} | "
            f"{first.get('nbytes', 0) / (1 << 20):.0f} MiB | {'none' if twin_is_silent else 'yes'} |"
        )
        print(f"{lines[-1]} {took_s:.1f} s", flush=True)
    result = (
        f"{reports} of {len(PROGRAMS)} programs have a report, and {named} reports name the category and the holder "
        f"first. {silent} of {len(PROGRAMS)} twins are silent."
    )
    return [result, "", *lines]


def cost() -> list[str]:
    """Return sentences on the cost of a healthy program."""
    with tempfile.TemporaryDirectory() as folder:
        ratios = json.loads(run(COST, folder).stdout)
        look_ms = float(run(LOOK, folder).stdout)
    step = (
        f"A GPT step with `MEMWATCH=oom` takes {statistics.median(ratios):.3f} times the processor time of a step "
        f"without it (median of {PAIRS} pairs of {STEPS} steps in one process; {min(ratios):.3f} to {max(ratios):.3f})."
    )
    look = (
        f"One look at the limits takes {look_ms:.2f} ms of processor time. The thread looks every 10 s where there is "
        f"room ({look_ms / 1e4:.4%} of a processor), and at most every 20 ms close to a limit ({look_ms / 20:.1%})."
    )
    return [step, look]


def recordings() -> list[str]:
    """Return the comparison with full recordings."""
    from out_of_memory_holders import table

    with tempfile.TemporaryDirectory() as folder:
        return table(Path(folder))


if __name__ == "__main__":
    parts = {"zoo": zoo, "recordings": recordings, "cost": cost}
    for part in sys.argv[1:] or parts:
        text = "\n".join(parts[part]()) + "\n"
        begin, end = f"<!-- {part} -->\n", f"<!-- end of {part} -->\n"
        head, _, rest = RESULTS.read_text(encoding="utf-8").partition(begin)
        RESULTS.write_text(f"{head}{begin}{text}{end}{rest.partition(end)[2]}", encoding="utf-8")
