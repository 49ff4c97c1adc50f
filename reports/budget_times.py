"""The time of a step under the torch.compile backend, beside torch's own `activation_memory_budget`.

Run `python reports/budget_times.py [programs]`; it writes `reports/budget_times.md`, whose other rows stay as they are.
One CPU thread. All ways of a program are compiled first. Then they take turns, and the least CPU time of each counts: a
machine that is shared with others only ever adds time. Peaks are of forward and backward, by the allocator's events.
"""

from __future__ import annotations

import logging
import pathlib
import random
import sys
import time
import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from budget import peak, results
from budget_programs import PROGRAMS
from torch._dynamo.backends.registry import lookup_backend
from torch._functorch import config as functorch_config

from memwatch.planner import BudgetError
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from budget_programs import Step
    from torch import nn

HERE = pathlib.Path(__file__).parent
ROUNDS = 100
LEARNING_STEPS = 4


class Extra(logging.Handler):
    """Keeps the extra cost that the backend claims of its newest plan (per cent)."""

    percent = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line of the log."""
        if isinstance(record.args, tuple):
            self.percent = float(record.args[-1])  # type: ignore[arg-type]


EXTRA = Extra()


@dataclass
class Way:
    """One way to run a program: its own copy of the model, its peak, and the least time of a step so far."""

    model: nn.Module
    step: Step
    call: Callable[..., Any]
    peak_bytes: int
    least_s: float = float("inf")
    extra: float = 0.0

    def time(self) -> None:
        """Run and time a step."""
        self.model.zero_grad()
        start_s = time.process_time()
        self.step(self.call).backward()
        self.least_s = min(self.least_s, time.process_time() - start_s)


def way(name: str, backend: Any = "", options: dict[str, Any] | None = None, share: float = 1.0) -> Way:
    """Return a way, compiled; its first steps are over.

    Raises:
        BudgetError: the backend refuses the budget.
    """
    torch.manual_seed(0)
    model, step = PROGRAMS[name]()
    call: Callable[..., Any] = torch.compile(model, backend=backend, options=options) if backend else model
    with functorch_config.patch(activation_memory_budget=share):
        for _ in range(LEARNING_STEPS):
            results(model, step, call)
    return Way(model, step, call, peak(model, step, call), extra=EXTRA.percent)


def aot_eager(module: Any, inputs: Any) -> Any:
    """Compile as the backend aot_eager does."""
    return lookup_backend("aot_eager")(module, inputs)


def planned(name: str, budget: int | str) -> Way | None:
    """Return a way under the backend; None where the budget is refused."""
    options = {"budget": budget, "strict": True, "time_limit_s": 2.0}
    try:
        return way(name, "memwatch", options)
    except BudgetError:
        return None


def row(name: str) -> str:
    """Return the row of a program; its last cells tell whether the three claims hold."""
    torch._dynamo.reset()
    eager = way(name)
    # dynamo takes the code of an equal backend for another model as well: each way gets one of its own
    whole, half = way(name, partial(aot_eager)), way(name, partial(aot_eager), share=0.5)
    ways = [planned(name, "100%"), planned(name, "50%"), planned(name, half.peak_bytes)]
    present = [each for each in (eager, whole, half, *ways) if each is not None]
    for number in range(ROUNDS):
        for each in random.Random(number).sample(present, len(present)):  # none always follows the same one
            each.time()
    ours, ours_half, ours_same = ways
    cells = [name, format_bytes(eager.peak_bytes)]
    cells += [cell(each, eager) for each in (whole, ours, ours_half)]
    extra = "" if ours_half is None else f"{ours_half.extra:.0f} %"
    cells += [extra, cell(half, eager), cell(ours_same, eager)]
    verdicts = [
        None if ours is None else ours.least_s <= 1.05 * whole.least_s,
        None if ours_half is None else ours_half.least_s <= 1.1 * (1 + ours_half.extra / 100) * whole.least_s,
        ours_same is not None
        and ours_same.peak_bytes <= half.peak_bytes
        and ours_same.least_s <= 1.05 * half.least_s,
    ]
    cells += [{True: "yes", False: "no", None: "refused"}[each] for each in verdicts]
    return f"| {' | '.join(cells)} |"


def cell(found: Way | None, eager: Way) -> str:
    """Return the peak in percent of eager PyTorch's, and the time of a step beside eager PyTorch's."""
    if found is None:
        return "refused"
    return f"{100 * found.peak_bytes / eager.peak_bytes:.1f} x{found.least_s / eager.least_s:.2f}"


def main() -> None:
    """Write the table."""
    torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = 64  # the ways of a program share its code
    warnings.simplefilter("ignore")
    log = logging.getLogger("memwatch.replay.budget_keeper")
    log.setLevel(logging.INFO)
    log.addHandler(EXTRA)
    log.propagate = False
    head = ["program", "eager", "aot_eager 1", "memwatch 100 %", "memwatch 50 %", "claimed extra"]
    head += ["aot_eager 0.5", "memwatch, the bytes of aot_eager 0.5"]
    head += [
        "100 %: at most 1.05x aot_eager 1",
        "50 %: at most (1 + extra) x 1.1 of aot_eager 1",
        "in the bytes of aot_eager 0.5: at most 1.05x its time",
    ]
    rows = rows_before()
    for name in sys.argv[1:] or PROGRAMS:
        rows[name] = row(name)
        sys.stderr.write(rows[name] + "\n")
        lines = [rows[each] for each in PROGRAMS if each in rows]
        page = [
            "# Step times under a budget\n",
            *(__doc__ or "").splitlines()[2:],
            f"\nPeaks are in percent of eager PyTorch's, times (x) beside its times. torch {torch.__version__}.\n",
            *(f"- {claim}: {held(lines, number - 3)}" for number, claim in enumerate(head[-3:])),
            f"\n| {' | '.join(head)} |",
            f"|{'---|' * len(head)}",
            *lines,
        ]
        (HERE / "budget_times.md").write_text("\n".join(page) + "\n")


def rows_before() -> dict[str, str]:
    """Return the rows of the file, by program."""
    page = HERE / "budget_times.md"
    lines = page.read_text().splitlines() if page.exists() else []
    found = {_cells(line)[0]: line for line in lines if line.startswith("| ")}
    return {name: line for name, line in found.items() if name in PROGRAMS}


def held(lines: list[str], number: int) -> str:
    """Return in how many programs a claim holds."""
    verdicts = [verdict for line in lines if (verdict := _cells(line)[number]) != "refused"]
    return f"{verdicts.count('yes')} of {len(verdicts)}"


def _cells(line: str) -> list[str]:
    return line.strip("| ").split(" | ")


if __name__ == "__main__":
    main()
