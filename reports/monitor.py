"""Run the zoo of growing programs and measure what the monitor costs: `python reports/monitor.py [cost|zoo]`.

It writes `reports/monitor.md` from what it measured.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "monitor"))
RESULTS = ROOT / "reports" / "monitor.md"

import growing_programs  # noqa: E402

SECONDS = 30
WORKLOADS = {
    "GPT": """
layer = torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 4)
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randn(8, 64, 128)
def step():
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "MLP": """
model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(20)))
batch = torch.randn(4, 16)
def step():
    model(batch).sum().backward()
""",
    "idle server": """
import time
def step():
    time.sleep(0.05)
""",
}
TOOLS = {
    "nothing": "",
    "the monitor": "import memwatch; watch = memwatch.monitor(sys.argv[1])",
    "tracemalloc": "import tracemalloc; tracemalloc.start()",
    "memray": "import memray; tracker = memray.Tracker(sys.argv[1] + '.bin'); tracker.__enter__()",
}
COST = """
import json, sys, time
import torch
torch.set_num_threads(1)
{workload}
for _ in range(5):
    step()
{tool}
steps, cpu_s, end_s = 0, time.process_time(), time.monotonic() + {seconds}
while time.monotonic() < end_s:
    step()
    steps += 1
cpu_s = time.process_time() - cpu_s
own_s = watch.metrics()["memwatch_monitor_cpu_seconds_total"] if "watch" in globals() else 0.0
print(json.dumps([steps, cpu_s, own_s]))
"""


def cost_table() -> list[str]:
    """Return the processor time of each step as a ratio, in rows of a table."""
    tools = [name for name in TOOLS if name != "memray" or importlib.util.find_spec("memray")]
    lines = [
        "| workload | tool | steps | CPU per step, ms | ratio to nothing | own CPU per time | file, bytes per hour |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for workload, code in WORKLOADS.items():
        base_ms = 0.0
        for tool in tools:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "memory.jsonl"
                program = COST.format(workload=code, tool=TOOLS[tool], seconds=SECONDS)
                done = subprocess.run(
                    [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
                )
                steps, cpu_s, own_s = json.loads(done.stdout)
                size = path.stat().st_size * 3600 / SECONDS if path.exists() else 0
            each_ms = cpu_s * 1000 / steps
            base_ms = base_ms or each_ms
            own = f"{own_s / SECONDS:.2%}" if own_s else ""
            lines.append(
                f"| {workload} | {tool} | {steps} | {each_ms:.3f} | {each_ms / base_ms:.2f} | {own} | "
                f"{f'{size:,.0f}' if size else ''} |"
            )
            print(lines[-1], flush=True)
    return lines


def zoo_table() -> list[str]:
    """Return what the monitor said of each program and of its twin, in rows of a table."""
    lines = [
        "| program | row that grows | the monitor's first row | holder named | coverage | accused in the twin |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    right = accused = covered = 0
    for name, program in growing_programs.PROGRAMS.items():
        with tempfile.TemporaryDirectory() as folder:
            rows, coverage, report = growing_programs.run(name, twin=False, folder=folder, sampled=True)
            of_twin, _, _ = growing_programs.run(name, twin=True, folder=folder, sampled=True)
        right += rows[:1] == [program.row]
        accused += bool(of_twin)
        covered += coverage >= 0.95
        named = all(word in report for word in (program.holder, program.library))
        holder = "" if not program.holder else "yes" if named else "no"
        lines.append(
            f"| {name} | {program.row} | {rows[0] if rows else 'none'} | {holder} | {coverage:.1%} | "
            f"{', '.join(of_twin) or 'none'} |"
        )
        print(lines[-1], flush=True)
    number = len(growing_programs.PROGRAMS)
    result = (
        f"The first row is right in {right} of {number} programs, coverage is at least 95 % in {covered}, and rows "
        f"of twins that are accused: {accused}."
    )
    return [*lines, "", result]


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["cost", "zoo"]
    parts = {"cost": cost_table, "zoo": zoo_table}
    for part in wanted:
        text = "\n".join(parts[part]()) + "\n"
        old = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
        begin, end = f"<!-- {part} -->\n", f"<!-- end of {part} -->\n"
        head, found, rest = old.partition(begin)
        tail = rest.partition(end)[2] if found else ""
        RESULTS.write_text(f"{head}{begin}{text}{end}{tail}", encoding="utf-8")
