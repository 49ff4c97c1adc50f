"""The budget of the torch.compile backend beside torch's own ways to save memory, on small training programs.

Run `python reports/budget.py [programs]`; it writes `reports/budget.md`, whose rows are all of one commit: those of
another one are dropped. It needs a C++ compiler, for inductor. One CPU thread. Peaks are of forward and backward, by
the allocator's events, as shares of eager PyTorch's; results are compared bit by bit, the random generator included.
Times are the CPU time of a step, the least of some that take turns with eager PyTorch's.
"""

from __future__ import annotations

import functools
import pathlib
import subprocess
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

import torch
from budget_programs import PROGRAMS
from torch._functorch import config
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from memwatch.planner import BudgetError
from memwatch.replay.measure import measure_peak
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from budget_programs import Step
    from torch import nn

    Way: TypeAlias = tuple[nn.Module, Step, Callable[..., Any]]

HERE = pathlib.Path(__file__).parent
BUDGETS = (100, 80, 60, 40, 25)
ABSOLUTE = 70
"""The share of eager PyTorch's peak that is given as a number of bytes."""
TORCHS_BUDGETS = (1.0, 0.5)
SAVED_BY_HAND = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.convolution.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
]
"""What a hand-written selective checkpoint saves: products, convolutions and attention."""
BY_HAND = {"context_fn": functools.partial(create_selective_checkpoint_contexts, SAVED_BY_HAND)}
INDUCTOR = {"budget": "50%", "inner": "inductor", "strict": True, "time_limit_s": 2.0}
TIMED_STEPS = 15


def results(model: nn.Module, step: Step, call: Callable[..., Any]) -> list[torch.Tensor]:
    """Run a step; return loss, gradients and the state of the random generator."""
    torch.manual_seed(1)
    model.zero_grad()
    loss = step(call)
    loss.backward()
    found = [each.grad.clone() for each in model.parameters() if each.grad is not None]
    return [loss.detach(), *found, torch.get_rng_state()]


def peak(model: nn.Module, step: Step, call: Callable[..., Any]) -> int:
    """Return the peak increase of a step."""
    model.zero_grad()
    with measure_peak("cpu") as measured:
        step(call).backward()
    return measured.peak_increase_bytes


def times_as_long(ours: Way, other: Way) -> float:
    """Return the CPU time of a step, in units of another's; both take turns, and the least of each counts."""
    least = [float("inf"), float("inf")]
    for _ in range(TIMED_STEPS):
        for number, (model, step, call) in enumerate((ours, other)):
            model.zero_grad()
            start = time.process_time()
            step(call).backward()
            least[number] = min(least[number], time.process_time() - start)
    return least[0] / least[1]


def cell(name: str, way: Way, eager: int, remark: str = "") -> str:
    """Return the peak in percent of eager PyTorch's, and the time of a step beside eager PyTorch's."""
    taken = peak(*way)
    model, step = PROGRAMS[name]()
    return f"{100 * taken / eager:.1f}{remark} x{times_as_long(way, (model, step, model)):.2f}"


def equal(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    """Return whether all tensors are the same, bit by bit."""
    return len(found) == len(wanted) and all(map(torch.equal, found, wanted))


def fresh(name: str) -> tuple[nn.Module, Step]:
    """Return a program as it starts."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    return PROGRAMS[name]()


def with_budget(
    name: str, share: int, eager: int, wanted: list[torch.Tensor], *, as_bytes: bool = False
) -> str:
    """Return a cell of the table: the peak under the backend, or that the budget was refused."""
    model, step = fresh(name)
    budget = eager * share // 100 if as_bytes else f"{share}%"
    options = {"budget": budget, "strict": True, "time_limit_s": 2.0}
    call = torch.compile(model, backend="memwatch", options=options)
    try:
        verdicts = [equal(results(model, step, call), wanted) for _ in range(3)]
        made = cell(name, (model, step, call), eager, "" if all(verdicts) else " **differs**")
        taken = peak(model, step, call)
    except BudgetError:
        return "refused"
    return made if taken <= eager * share / 100 else f"{made} **over**"


def with_torch(name: str, share: float, eager: int) -> str:
    """Return a cell: the peak of aot_eager with `activation_memory_budget`."""
    model, step = fresh(name)
    with config.patch(activation_memory_budget=share):
        call = torch.compile(model, backend="aot_eager")
        results(model, step, call)
        return cell(name, (model, step, call), eager)


def with_inductor(name: str, eager: int, wanted: list[torch.Tensor], options: dict[str, Any] | None) -> str:
    """Return a cell: the peak of inductor, or of a budget with inductor's kernels, and how far its results are off."""
    model, step = fresh(name)
    call = torch.compile(model, backend="memwatch" if options else "inductor", options=options)
    try:
        found = [results(model, step, call) for _ in range(3)][-1]
        made = cell(name, (model, step, call), eager)
    except BudgetError:
        return "refused"
    pairs = zip(found[:-1], wanted[:-1], strict=True)  # random numbers are inductor's own
    off = max(float((one.double() - other.double()).abs().max()) for one, other in pairs)
    return f"{made} ±{off:.0e}"


def with_checkpoints(name: str, eager: int, options: dict[str, Any]) -> str:
    """Return a cell: the peak with a checkpoint around each block, where the model has a list of them."""
    model, step = fresh(name)
    blocks = getattr(model, "blocks", model if isinstance(model, torch.nn.Sequential) else ())
    if not len(blocks):
        return "no blocks"
    for block in blocks:
        forward = block.forward
        block.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=False, **options)
    return cell(name, (model, step, model), eager)


def row(name: str) -> str:
    """Return the row of a program."""
    model, step = fresh(name)
    wanted = results(model, step, model)
    eager = peak(model, step, model)
    cells = [name, format_bytes(eager)]
    cells += [with_budget(name, share, eager, wanted) for share in BUDGETS]
    cells.append(with_budget(name, ABSOLUTE, eager, wanted, as_bytes=True))
    cells += [with_torch(name, share, eager) for share in TORCHS_BUDGETS]
    cells += [with_checkpoints(name, eager, options) for options in ({}, BY_HAND)]
    cells += [with_inductor(name, eager, wanted, options) for options in (None, INDUCTOR)]
    return f"| {' | '.join(cells)} |"


def commit() -> str:
    """Return the commit that is measured; files under `reports/` do not count as changes."""
    git = functools.partial(subprocess.run, cwd=HERE.parent, capture_output=True, text=True, check=True)
    changed = git(["git", "status", "--porcelain", "--untracked-files=no", "memwatch"]).stdout
    found = git(["git", "log", "-1", "--format=%h", "--", "memwatch"]).stdout.strip()
    return f"{found}, with changes" if changed else found


def rows_before(measured: str) -> dict[str, str]:
    """Return the rows of the file that were measured at this commit, by program."""
    try:
        lines = (HERE / "budget.md").read_text().splitlines()
    except FileNotFoundError:
        return {}
    found = {line.split(" | ")[0].removeprefix("| "): line for line in lines if line.startswith("| ")}
    return {name: line for name, line in found.items() if name in PROGRAMS} if measured in lines else {}


def main() -> None:
    """Write the table."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    head = ["program", "eager", *(f"memwatch {share} %" for share in BUDGETS)]
    head += [
        f"memwatch, {ABSOLUTE} % as bytes",
        *(f"aot_eager {share:g}" for share in TORCHS_BUDGETS),
        "checkpoint per block",
        "selective, by hand",
        "inductor",
        "memwatch 50 %, inductor",
    ]
    measured = f"Measured at commit {commit()}, torch {torch.__version__}."
    rows = rows_before(measured)
    for name in sys.argv[1:] or PROGRAMS:
        rows[name] = row(name)
        sys.stderr.write(rows[name] + "\n")
        lines = [
            "# Budgets kept in training\n",
            "Peaks of forward and backward in percent of eager PyTorch's, by the allocator's events. Losses,",
            "gradients and random states are bitwise eager PyTorch's, or the cell says that they differ. `strict` is",
            "on: a budget that cannot be kept is refused with `BudgetError`. After x: the CPU time of a step beside",
            "eager PyTorch's. After ±: how far inductor's losses and gradients are off; it draws random numbers of",
            "its own.\n",
            f"{measured}\n",
            f"| {' | '.join(head)} |",
            f"|{'---|' * len(head)}",
            *(rows[each] for each in PROGRAMS if each in rows),
        ]
        (HERE / "budget.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
