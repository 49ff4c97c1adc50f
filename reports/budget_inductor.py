"""Planned graphs compiled by inductor (`inner="inductor"`), beside inductor itself.

Run `python reports/budget_inductor.py [programs]`; it writes `reports/budget_inductor.md` and needs a C++ compiler. One
CPU thread. Peaks are of forward and backward, by the allocator's events, in percent of eager PyTorch's; times are CPU
time, the least of steps that take turns, beside eager PyTorch's. The difference is the largest of losses and gradients.
"""

from __future__ import annotations

import pathlib
import sys
import warnings
from functools import partial
from typing import Any

import torch
from budget import results
from budget_programs import PROGRAMS
from budget_times import ROUNDS, Way, cell, way

from memwatch.sizes import format_bytes

HERE = pathlib.Path(__file__).parent
SHARES = (100, 50)


def difference(found: Way, wanted: list[torch.Tensor]) -> float:
    """Return the largest difference of a loss or gradient from eager PyTorch's."""
    pairs = zip(results(found.model, found.step, found.call)[:-1], wanted[:-1], strict=True)
    return max(float((one.double() - other.double()).abs().max()) for one, other in pairs)


def row(name: str) -> str:
    """Return the row of a program."""
    torch._dynamo.reset()
    eager = way(name)
    wanted = results(eager.model, eager.step, eager.call)
    options: dict[str, Any] = {"inner": "inductor", "time_limit_s": 2.0}
    ways = [way(name, "inductor")]
    ways += [way(name, "memwatch", {**options, "budget": f"{share}%"}) for share in SHARES]
    for _ in range(ROUNDS):
        for each in (eager, *ways):
            each.time()
    cells = [name, format_bytes(eager.peak_bytes), *(cell(each, eager) for each in ways)]
    return f"| {' | '.join(cells)} | {max(map(partial(difference, wanted=wanted), ways[1:])):.1e} |"


def main() -> None:
    """Write the table."""
    torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = 64
    warnings.simplefilter("ignore")
    head = [
        "program",
        "eager",
        "inductor",
        *(f"memwatch {share} %, inductor" for share in SHARES),
        "difference",
    ]
    lines = [
        "# A budget with inductor\n",
        *(__doc__ or "").splitlines()[2:],
        f"\n| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
    ]
    for name in sys.argv[1:] or PROGRAMS:
        lines.append(row(name))
        sys.stderr.write(lines[-1] + "\n")
        (HERE / "budget_inductor.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
