"""The budget of the torch.compile backend beside torch's own ways to save memory, on small training programs.

Run `python reports/budget.py`; it writes `reports/budget.md`. One CPU thread. Peaks are of forward and backward, by
the allocator's events, as shares of eager PyTorch's; results are compared bit by bit, the random generator included.
Times are the CPU time of a step, the least of some, beside eager PyTorch's in the same process.
"""

from __future__ import annotations

import functools
import pathlib
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

import torch
from budget_programs import PROGRAMS
from torch._dynamo.exc import BackendCompilerFailed
from torch._functorch import config
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from memwatch.planner import BudgetError
from memwatch.replay.measure import measure_peak
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from budget_programs import Step
    from torch import nn

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
TIMED_STEPS = 7


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


def seconds(model: nn.Module, step: Step, call: Callable[..., Any]) -> float:
    """Return the CPU time of a step, the least of some."""
    found = []
    for _ in range(TIMED_STEPS):
        model.zero_grad()
        start = time.process_time()
        step(call).backward()
        found.append(time.process_time() - start)
    return min(found)


def cell(model: nn.Module, step: Step, call: Callable[..., Any], eager: int, remark: str = "") -> str:
    """Return the peak in percent of eager PyTorch's, and the time of a step beside eager PyTorch's."""
    ratio = seconds(model, step, call) / seconds(model, step, model)
    return f"{100 * peak(model, step, call) / eager:.1f}{remark} x{ratio:.2f}"


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
        taken = peak(model, step, call)
    except BackendCompilerFailed as error:  # a number of bytes is refused by the compilation
        if not isinstance(error.inner_exception, BudgetError):
            raise
        return "refused"
    except BudgetError:
        return "refused"
    remark = "" if taken <= eager * share / 100 else " **over**"
    remark += "" if all(verdicts) else " **differs**"
    return cell(model, step, call, eager, remark)


def with_torch(name: str, share: float, eager: int) -> str:
    """Return a cell: the peak of aot_eager with `activation_memory_budget`."""
    model, step = fresh(name)
    with config.patch(activation_memory_budget=share):
        call = torch.compile(model, backend="aot_eager")
        results(model, step, call)
        return cell(model, step, call, eager)


def with_checkpoints(name: str, eager: int, options: dict[str, Any]) -> str:
    """Return a cell: the peak with a checkpoint around each block, where the model has a list of them."""
    (model, step), (plain, plain_step) = fresh(name), fresh(name)
    blocks = getattr(model, "blocks", model if isinstance(model, torch.nn.Sequential) else ())
    if not len(blocks):
        return ""
    for block in blocks:
        forward = block.forward
        block.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=False, **options)
    ratio = seconds(model, step, model) / seconds(plain, plain_step, plain)
    return f"{100 * peak(model, step, model) / eager:.1f} x{ratio:.2f}"


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
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Write the table."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    head = ["program", "eager", *(f"memwatch {share} %" for share in BUDGETS)]
    head.append(f"memwatch, {ABSOLUTE} % as bytes")
    head += [
        *(f"aot_eager {share:g}" for share in TORCHS_BUDGETS),
        "checkpoint per block",
        "selective, by hand",
    ]
    lines = [
        "# Budgets kept in training\n",
        "Peaks of forward and backward in percent of eager PyTorch's, by the allocator's events. Losses, gradients and",
        "random states are bitwise eager PyTorch's, or the cell says that they differ. `strict` is on: a budget that",
        "cannot be kept is refused with `BudgetError`. After x: the CPU time of a step beside eager PyTorch's.\n",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
    ]
    for name in sys.argv[1:] or PROGRAMS:
        lines.append(row(name))
        sys.stderr.write(lines[-1] + "\n")
        (HERE / "budget.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
