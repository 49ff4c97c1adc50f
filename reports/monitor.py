"""Run the zoo of growing programs and measure the monitor: `python reports/monitor.py [cost|zoo|history]`.

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

from memwatch.monitor.history import History, Sample  # noqa: E402

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


HISTORY = """
import json, sys, time
import torch, memwatch
torch.set_num_threads(1)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(4, 16)
watch = memwatch.monitor(sys.argv[1], interval_s={interval_s}, oom=False)
begin_s, most, rss_bytes = time.monotonic(), 0, []
for step in range({steps}):
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    watch.tick()
    if step % 1000 == 0:
        most = max(most, len(watch._history.samples))
    if step in ({steps} // 10, {steps} - 1):
        rss_bytes.append(watch._process.memory_info().rss)
print(json.dumps([time.monotonic() - begin_s, most, rss_bytes[1] - rss_bytes[0], [each.row for each in watch.growth]]))
"""
HISTORY_STEPS = 1_000_000
ADDED_SAMPLES = 1_000_000


def history_table() -> list[str]:
    """Return how the history and its file grew over many steps and over many samples, in rows of a table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory.jsonl"
        program = HISTORY.format(steps=HISTORY_STEPS, interval_s=1.0)
        done = subprocess.run(
            [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
        )
        seconds, most, grown, rows = json.loads(done.stdout)
        size = path.stat().st_size
    kept, most_added = History(), 0
    for number in range(ADDED_SAMPLES):
        kept.add(
            Sample(number, number, 1 << 30, 1 << 30, 1 << 30, 0.99, {"tensors": number}, {}, is_asked=False)
        )
        most_added = max(most_added, len(kept.samples))
    return [
        "| measured | value |",
        "| --- | --- |",
        f"| training steps with the monitor | {HISTORY_STEPS:,} in {seconds:,.0f} s |",
        f"| most samples in memory | {most} |",
        f"| file | {size:,} bytes ({size * 3600 / seconds:,.0f} per hour) |",
        f"| growth of RSS in the last nine tenths of the steps | {grown / (1 << 20):.2f} MiB |",
        f"| rows accused | {', '.join(rows) or 'none'} |",
        f"| most samples in memory while {ADDED_SAMPLES:,} samples are added | {most_added} |",
    ]


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
    wanted = sys.argv[1:] or ["cost", "zoo", "history"]
    parts = {"cost": cost_table, "zoo": zoo_table, "history": history_table}
    for part in wanted:
        text = "\n".join(parts[part]()) + "\n"
        old = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
        begin, end = f"<!-- {part} -->\n", f"<!-- end of {part} -->\n"
        head, found, rest = old.partition(begin)
        tail = rest.partition(end)[2] if found else ""
        RESULTS.write_text(f"{head}{begin}{text}{end}{tail}", encoding="utf-8")
