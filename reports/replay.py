"""Plans that were executed: recorded training steps, replayed bit for bit at the planned peak.

Run `python reports/replay.py`; it writes `reports/replay.md`. One CPU thread, a few minutes. Peaks are measured
by the allocator's events, extra compute in FLOPs by torch's formulas. Nothing here is a time.
"""

from __future__ import annotations

import pathlib
import sys
from typing import TYPE_CHECKING, Any

import torch
from replay_transformer import training_step, under_torch_budget
from torch import nn

import memwatch
from memwatch.planner import BudgetError
from memwatch.replay import plan, replay
from memwatch.replay.cost import call_flops
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memwatch.planner.plan import Plan
    from memwatch.profile import Profile

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "replay"))
BUDGETS_MIB = (140, 105.5, 97.5, 85.5, 79.5, 77.5, 69.5, 65.5, 60.57, 51.5, 43.8, 39.4)
WORKING_SET_MIB = 24.0  # the largest: a softmax or GELU and its gradients
TORCH_BUDGETS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.0)


def record(step: Callable[[], object]) -> Profile:
    with memwatch.profile(replay=True, holders=False) as prof:
        step()
    return prof


def extra_flops_ratio(planned: Plan, flops: dict[object, int]) -> float:
    once = sum(flops.values())
    return sum(flops[op] for op in planned.order) / once - 1 if once else 0.0


def checked(planned: Plan) -> str:
    result = replay(planned)
    assert result.peak_increase_bytes == planned.peak_increase_bytes, result
    return "bitwise" if result.identical else f"differs by {result.max_abs_diff:g}"


def parallel_paths() -> Iterator[str]:
    from replay_programs import paths_efficient, paths_inefficient

    yield "## Ten parallel paths (lightning-thunder #1337), 256x256 float32\n"
    yield "| written as | as written | planned and replayed | results |\n|---|---|---|---|"
    for name, build in (("one path after the other", paths_efficient), ("stage by stage", paths_inefficient)):
        planned = plan(record(build()))
        program, peak = planned.program_peak_increase_bytes, planned.peak_increase_bytes
        yield f"| {name} | {format_bytes(program)} | {format_bytes(peak)} | {checked(planned)} |"


def training_steps() -> Iterator[str]:
    from replay_programs import PROGRAMS

    yield "\n## Whole training steps, optimizer included\n"
    yield "| step | ops | program | plan at 60 % (or lowest) | extra FLOPs | results |\n|---|---|---|---|---|---|"
    for name, build in PROGRAMS.items():
        step = build()
        step()
        planned, extra = at_budget(record(step), "60%")
        program, peak = planned.program_peak_increase_bytes, planned.peak_increase_bytes
        ops = len(set(planned.order))
        yield (
            f"| {name} | {ops} | {format_bytes(program)} | {format_bytes(peak)} | {extra:.1%} | {checked(planned)} |"
        )


def at_budget(prof: Profile, budget: str, **options: Any) -> tuple[Plan, float]:
    try:
        planned = plan(prof, budget=budget, **options)
    except BudgetError as error:
        planned = error.best
    calls = planned.program.recorded.program.calls
    return planned, extra_flops_ratio(planned, {call.op: call_flops(call) for call in calls})


def gradients_share() -> Iterator[str]:
    yield "\n## Order alone, with the optimizer in the trace\n"
    yield "Eight linear layers of 512, batch 8, gradients dropped after the step; nothing is computed twice.\n"
    yield "| optimizer | gradients | program | plan | removed | results |\n|---|---|---|---|---|---|"
    for name, build in {
        "SGD, one tensor at a time": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
        "AdamW, one tensor at a time": lambda p: torch.optim.AdamW(p, foreach=False),
        "AdamW foreach": lambda p: torch.optim.AdamW(p, foreach=True),
        "AdamW fused": lambda p: torch.optim.AdamW(p, fused=True),
    }.items():
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
        optimizer, batch = build(model.parameters()), torch.randn(8, 512)

        def step(
            model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer, x: torch.Tensor = batch
        ) -> None:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        step()
        planned = plan(record(step))
        grads = sum(p.numel() * 4 for p in model.parameters())
        program, peak = planned.program_peak_increase_bytes, planned.peak_increase_bytes
        removed = f"{format_bytes(program - peak)}, {(program - peak) / grads:.0%}"
        yield (
            f"| {name} | {format_bytes(grads)} | {format_bytes(program)} | {format_bytes(peak)} | {removed}"
            f" | {checked(planned)} |"
        )
    yield "\nOne kernel for all parameters (foreach, fused) reads every gradient at once: they must all be there."


def transformer() -> Iterator[str]:
    yield "\n## A transformer (4 layers, width 256, 4 heads, batch 8, length 256): forward and backward\n"
    yield "| system | setting | peak | extra FLOPs | gradients |\n|---|---|---|---|---|"
    model, step = training_step()
    step()
    model.zero_grad()
    prof = record(step)
    program = plan(prof, order="program", recompute=False)
    peak = format_bytes(program.program_peak_increase_bytes)
    yield f"| eager | - | {peak} | 0.0% | {checked(program)} |"
    for mib in BUDGETS_MIB:
        planned, extra = at_budget(prof, f"{mib} MiB")
        yield (
            f"| memwatch | {mib} MiB | {format_bytes(planned.peak_increase_bytes)} | {extra:.1%} | {checked(planned)} |"
        )
    tight = f"{1.15 * WORKING_SET_MIB:.1f} MiB"
    for options in ({}, {"offload": True}):
        planned, extra = at_budget(prof, tight, time_limit_s=30, **options)
        missed = "" if planned.budget_bytes is not None else " (missed)"
        peak, moved = format_bytes(planned.peak_increase_bytes), format_bytes(planned.moved_bytes)
        bound = format_bytes(planned.lower_bound_bytes)
        how = "with offload" if options else "recompute alone"
        yield (
            f"| memwatch, {how}, bound {bound} | {tight}, 1.15 x the largest working set | {peak}{missed}"
            f" | {extra:.1%}, {moved} moved | {checked(planned)} |"
        )
    base = None
    for budget in TORCH_BUDGETS:
        found = under_torch_budget(budget)
        base = base or found.flops
        equal, peak = "bitwise" if found.equal else "differ", format_bytes(found.peak_increase_bytes)
        yield (
            f"| torch.compile, aot_eager | activation_memory_budget={budget} | {peak}"
            f" | {found.flops / base - 1:.1%} | {equal} |"
        )


def main() -> None:
    torch.set_num_threads(1)
    lines = [
        "# Replayed plans\n",
        f"torch {torch.__version__}, one CPU thread; written by `reports/replay.py`.\n",
    ]
    for section in (parallel_paths, training_steps, gradients_share, transformer):
        for line in section():
            print(line, flush=True)
            lines.append(line)
    (HERE / "replay.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
