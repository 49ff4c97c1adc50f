"""Eight tiny models in four limits: the way that fit() keeps, and three further steps counted without memwatch.

Run `python reports/fit.py`; it writes `reports/fit.md`. One CPU thread, a few minutes. Peaks are all live bytes of
the process, by the memory events of torch's own profiler. The lines that fit() prints are run in a plain script, in a
process that does not import memwatch. Times depend on the machine and are not part of the table.
"""

from __future__ import annotations

import gc
import json
import pathlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import torch

import memwatch
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = pathlib.Path(__file__).parent
PROGRAMS = HERE.parent / "tests" / "fit"
sys.path.insert(0, str(PROGRAMS))
SHARES_PERCENT = (100, 80, 60, 45)
WAYS = ("foreach", "gradients", "checkpoint", "chain", "policy")
PLAIN = """
import gc, json, sys
sys.path.insert(0, sys.argv[1])
import torch
import fit_programs
torch.set_num_threads(1)
found = []
for name, code in json.load(sys.stdin):
    model, optimizer, step = fit_programs.made(name)
    exec(code, {"model": model, "optimizer": optimizer})
    found.append(fit_programs.peak_of(step))
    del model, optimizer, step
    gc.collect()
assert "memwatch" not in sys.modules
json.dump(found, sys.stdout)
"""


def fitted(name: str, limit_bytes: int) -> dict[str, Any]:
    """Return what fit() found for a model and a limit, checked by three further steps in this process."""
    import fit_programs

    model, _, step = fit_programs.made(name)
    try:
        fit = memwatch.fit(step, model, limit_bytes, ways=WAYS, quiet=True)
    except memwatch.BudgetError as error:
        return {"error": str(error).split("; ", 1)[1], "lowest_bytes": error.best.peak_bytes}
    torch.manual_seed(1)
    counted = fit_programs.peak_of(step)
    kept = fit.ways[fit.ways["kept"]].iloc[0]
    fit.undo()
    return {
        "way": kept["way"],
        "bitwise": kept["bitwise"],
        "tried": len(fit.ways),
        "fit_bytes": fit.peak_bytes,
        "counted_bytes": counted,
        "code": None if fit.plan is not None else fit.code,
    }


def rows() -> Iterator[dict[str, Any]]:
    """Yield a row for each model and limit."""
    import fit_programs

    for name in fit_programs.PROGRAMS:
        plain_bytes = fit_programs.peak_of(fit_programs.made(name)[2])
        for share in SHARES_PERCENT:
            gc.collect()
            limit_bytes = plain_bytes * share // 100
            row = {"name": name, "share": share, "limit_bytes": limit_bytes, **fitted(name, limit_bytes)}
            sys.stderr.write(f"{row}\n")
            yield row


def without_memwatch(found: list[dict[str, Any]]) -> None:
    """Run the lines of every row in a plain process, and note the peaks there."""
    wanted = [row for row in found if row.get("code") is not None]
    request = json.dumps([(row["name"], row["code"]) for row in wanted])
    command = [sys.executable, "-c", PLAIN, str(PROGRAMS)]
    done = subprocess.run(command, input=request, capture_output=True, text=True, check=True)
    for row, peak_bytes in zip(wanted, json.loads(done.stdout.splitlines()[-1]), strict=True):
        row["pasted_bytes"] = peak_bytes


def table(found: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Training within a limit: eight models, four limits"
    yield ""
    yield f"`python reports/fit.py`, torch {torch.__version__}. Limits are shares of the plain step's own peak: all"
    yield "live bytes of the process. *Counted*: three more steps, by torch's profiler. *Pasted*: the printed lines in"
    yield "a process that never imports memwatch."
    yield ""
    yield "| model | limit | way | tried | fit() | counted | pasted | bitwise |"
    yield "| --- | --- | --- | ---: | ---: | ---: | ---: | --- |"
    for row in found:
        limit = f"{row['share']} % ({format_bytes(row['limit_bytes'])})"
        if "error" in row:
            lowest = format_bytes(row["lowest_bytes"])
            yield f"| {row['name']} | {limit} | BudgetError: {row['error']} | | lowest {lowest} | | | |"
            continue
        sizes = [row.get(key) for key in ("fit_bytes", "counted_bytes", "pasted_bytes")]
        shown = " | ".join("needs memwatch" if size is None else format_bytes(size) for size in sizes)
        yield f"| {row['name']} | {limit} | {row['way']} | {row['tried']} | {shown} | {row['bitwise']} |"
    yield ""
    kept = [row for row in found if "error" not in row]
    under = sum(row["counted_bytes"] <= row["limit_bytes"] for row in kept)
    exact = sum(row["counted_bytes"] == row["fit_bytes"] for row in kept)
    pasted = [row for row in kept if "pasted_bytes" in row]
    same = sum(row["pasted_bytes"] == row["fit_bytes"] for row in pasted)
    bitwise = sum(row["bitwise"] == "yes" for row in kept)
    yield f"{len(kept)} of {len(found)} limits are kept; the others end in a BudgetError that names the lowest peak."
    yield f"{under} of these {len(kept)} stay below the limit in the count, {exact} match the figure of fit() to"
    yield f"the byte, and {bitwise} have bitwise equal results. {same} of {len(pasted)} pasted programs have the"
    yield "same peak to the byte. The mixture of experts routes by its weights, so its sizes change from step to"
    yield "step. fit() reports the highest of the steps that it ran."


def main() -> None:
    torch.set_num_threads(1)
    found = list(rows())
    without_memwatch(found)
    (HERE / "fit.md").write_text("\n".join(table(found)) + "\n")


if __name__ == "__main__":
    main()
