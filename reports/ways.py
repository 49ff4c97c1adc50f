"""Write `ways.md`: each way that `prof.ways` names, applied to thirteen programs, and the peak that they then have.

Each program runs in a process of its own, once as it is and once for each way, with the lines of that way. The peak is
that of two steps after a first one. The duration is the shortest of five steps without memwatch, relative to the
program's own.

A user records the whole script. So each program is also recorded from its first line on, with three steps, and each way
of that recording is applied too. The last section has the errors of these ways.
"""

from __future__ import annotations

import gc
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from ways_programs import PROGRAMS, Program

import memwatch

_HERE = Path(__file__).parent
_STEPS = 5
_ON_CUDA = "--on-cuda"


def make_program(name: str, lines: str = "") -> Program:
    """Return a program, changed by some lines, after its first step."""
    torch.manual_seed(0)
    gc.collect()
    program = PROGRAMS[name]()
    program.backward = run_lines(lines, program=program).get("backward_in_parts", program.backward)
    program.step()
    return program


def run_lines(lines: str, **variables: object) -> dict[str, Any]:
    """Run the lines of a way in a function that has some variables, as in a `main()`. Return all its variables."""
    space: dict[str, Any] = {}
    ending = "return dict(locals())"
    exec("\n    ".join([f"def apply({', '.join(variables)}):", *lines.splitlines(), ending]), space)
    made_by_lines: dict[str, Any] = space["apply"](**variables)
    return made_by_lines


def profile_two_steps(program: Program, *, holders: bool = False) -> memwatch.Profile:
    """Return the profile of two steps."""
    with memwatch.profile(holders=holders) as prof:
        program.step()
        program.step()
    return prof


def shortest_step_s(program: Program) -> float:
    """Return the duration of the shortest of some steps, in seconds."""
    times = []
    for _ in range(_STEPS):
        start = time.perf_counter()
        program.step()
        times.append(time.perf_counter() - start)
    return min(times)


def measured(name: str) -> list[dict[str, Any]]:
    """Return a row for each way of a program."""
    torch.set_num_threads(1)
    prof, plain_s = profile_two_steps(make_program(name)), shortest_step_s(make_program(name))
    rows = []
    for way in prof.ways.itertuples():
        changed = profile_two_steps(make_program(name, way.lines)).peak_bytes
        rows.append({
            "program": name,
            "way": way.way,
            "basis": way.basis,
            "plain_bytes": prof.peak_bytes,
            "predicted_bytes": way.peak_bytes,
            "measured_bytes": changed,
            "predicted_time_ratio": way.time_ratio,
            "measured_time_ratio": shortest_step_s(make_program(name, way.lines)) / plain_s,
        })  # fmt: skip
    return rows


def whole(name: str, lines: str = "") -> memwatch.Profile:
    """Return the profile of a whole program: its model is made, changed by some lines, and trained for three steps."""
    gc.collect()
    with memwatch.profile(holders=False) as prof:
        program = make_program(name, lines)
        program.step()
        program.step()
    del program
    return prof


def measured_whole(name: str) -> list[dict[str, Any]]:
    """Return a row for each way of the recording of a whole program."""
    torch.set_num_threads(1)
    return [
        {
            "way": way.way,
            "basis": way.basis,
            "predicted_bytes": way.peak_bytes,
            "measured_bytes": whole(name, way.lines).peak_bytes,
        }
        for way in whole(name).ways.itertuples()
    ]


def autocast_on_cuda(name: str) -> str | None:
    """Return a row of Markdown: the estimate for autocast on CUDA, and the peak of the changed program.

    No GPU is needed: both programs run on fake tensors, under `memwatch estimate`. None without such a change.
    """
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder, "lines.py")
        plain, changed = (Path(folder, f"{each}.memwatch") for each in ("plain", "changed"))
        _estimated(name, plain)
        reading = memwatch.load(plain)
        found = [way for way in reading.ways.itertuples() if way.kind == "autocast"]
        if not found:
            return None
        lines.write_text(found[0].lines)
        _estimated(name, changed, lines)
        sizes = (reading.peak_bytes, found[0].peak_bytes, memwatch.load(changed).peak_bytes)
    error = sizes[1] / sizes[2] - 1
    cells = [name, *(f"{size / 2**20:.2f} MiB" for size in sizes), f"{error * 100:+.2f} %"]
    return f"| {' | '.join(cells)} |"


def _estimated(name: str, capture: Path, *lines: Path) -> None:
    """Estimate some steps of a program on CUDA, changed by the lines in a file."""
    program = [__file__, _ON_CUDA, name, *map(str, lines)]
    command = ["memwatch", "estimate", "--device", "A100", "-o", str(capture), *program]
    subprocess.run([sys.executable, "-m", *command], stdout=subprocess.DEVNULL, check=True, cwd=_HERE)


def run_on_cuda(name: str, *lines: str) -> None:
    """Run three steps of a program on CUDA."""
    torch.set_default_device("cuda")
    program = make_program(name, *(Path(each).read_text() for each in lines))
    program.step()
    program.step()


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    head = "| Program | Way | Basis | Peak before | Predicted | Measured | Error | Time, predicted | Time, measured |"
    lines = [head, "|---|---|---|---:|---:|---:|---:|---:|---:|"]
    for row in rows:
        error = row["predicted_bytes"] / row["measured_bytes"] - 1
        sizes = (
            f"{row[key] / 2**20:.2f} MiB" for key in ("plain_bytes", "predicted_bytes", "measured_bytes")
        )
        ratio = row["predicted_time_ratio"]
        told = "not known" if math.isnan(ratio) else f"{ratio:.2f} x"
        cells = [row["program"], row["way"], row["basis"], *sizes, f"{error * 100:+.2f} %", told]
        lines.append(f"| {' | '.join(cells)} | {row['measured_time_ratio']:.2f} x |")
    return "\n".join(lines)


_TEXT = """# Ways: predicted and measured peaks

`prof.ways` simulates changes of a program on one recording. `reports/ways.py` applies each of them to the program, by
the lines that it prints, and measures the peak again. torch {torch}, one thread, on the host.

{table}

In {exact} of {count} rows the basis is `simulated`; there the largest error is {worst:.2f} %. A row with the basis
`estimated` replaces memory whose sizes were not recorded: the temporaries of another kind of optimizer step, a
kernel's workspace for fewer samples, or tensors in half precision.

## Autocast on CUDA

`memwatch estimate --device A100` runs each program on fake tensors, as it is and with the lines for autocast. On CUDA,
autocast computes other ops in float32 than on the host. The Llama has grouped-query attention: torch computes it step
by step in float32, and in one kernel in half precision, so it needs less than predicted.

| Program | Peak before | Predicted | Estimated | Error |
|---|---:|---:|---:|---:|
{cuda}

## Recordings of whole programs

`memwatch run` records a program from its first line on. Its first step makes the optimizer's state, and the lines of a
way come after the model is made. All {whole_count} ways of such recordings were applied too. In the {whole_exact} with
the basis `simulated` the largest error is {whole_worst:.2f} %. In the others it is {whole_worst_estimate:.2f} %.
"""


def _largest_error(rows: list[dict[str, Any]]) -> float:
    """Return the largest difference between the predicted and the measured peak, in percent."""
    return max(abs(row["predicted_bytes"] / row["measured_bytes"] - 1) for row in rows) * 100


def main() -> None:
    """Measure all programs, or print the rows of the one that is named."""
    if sys.argv[1:2] == [_ON_CUDA]:
        run_on_cuda(*sys.argv[2:])
        return
    if len(sys.argv) > 1:
        print(json.dumps([measured(sys.argv[1]), measured_whole(sys.argv[1])]))
        return
    rows, of_whole = [], []
    for name in PROGRAMS:
        command = [sys.executable, __file__, name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=_HERE)
        found, found_in_whole = json.loads(done.stdout.splitlines()[-1])
        rows, of_whole = rows + found, of_whole + found_in_whole
        print(name, flush=True)
    cuda = [row for name in PROGRAMS if (row := autocast_on_cuda(name)) is not None]
    simulated = [row for row in rows if row["basis"] == "simulated"]
    whole_simulated = [row for row in of_whole if row["basis"] == "simulated"]
    text = _TEXT.format(
        torch=torch.__version__,
        table=table(rows),
        exact=len(simulated),
        count=len(rows),
        worst=_largest_error(simulated),
        whole_count=len(of_whole),
        whole_exact=len(whole_simulated),
        whole_worst=_largest_error(whole_simulated),
        whole_worst_estimate=_largest_error([row for row in of_whole if row["basis"] != "simulated"]),
        cuda="\n".join(cuda),
    )
    (_HERE / "ways.md").write_text(text)


if __name__ == "__main__":
    main()
