"""Measure checkpoint policies: peak and CPU time of a training step on eight types of blocks.

This report compares five ways: the eager model, plain checkpoints of its blocks, hand-written selective checkpoints,
`plan.checkpoint_contexts` in the same regions, and `memwatch.apply_plan`. The selective checkpoints use torch's own
policy and save products, convolutions and attention. Peaks come from the allocator's own events. Times are the lowest
CPU time of some steps, because other programs on the machine can only add time. The ways take turns.
Writes reports/policy.md: `python reports/policy.py [--steps N]`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import pathlib
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import memwatch
from memwatch.replay.measure import measure_peak

HERE: Final = pathlib.Path(__file__)
sys.path.insert(0, str(HERE.parents[1] / "tests" / "replay"))

from checkpoint_blocks import BLOCKS, build  # noqa: E402  # the blocks of the tests, larger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from memwatch.replay.checkpoints.apply import AppliedPlan

COUNT, SCALE = 6, 12
RATIOS: Final = (0.8, 0.6, 0.4, 0.2)
SAVED_BY_HAND: Final = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.convolution.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
]
PLAIN: Final[dict[str, Any]] = {}
BY_HAND: Final = {"context_fn": functools.partial(create_selective_checkpoint_contexts, SAVED_BY_HAND)}


@dataclasses.dataclass
class Row:
    """A way to run the step: its peak, its CPU time, what was claimed, and the peak of plain checkpoints there."""

    way: str
    peak_bytes: int
    step_ms: float
    claim_bytes: int | None = None
    plain_bytes: int | None = None


class Training:
    """A model of equal blocks and its training step."""

    def __init__(self, name: str) -> None:
        self.model, self.batch = build(name, COUNT, SCALE)

    def step(self, options: dict[str, Any] | None = None) -> None:
        """Run forward and backward; with options each block is a checkpointed region."""
        x = self.batch
        for block in self.model:
            x = block(x) if options is None else checkpoint(block, x, use_reentrant=False, **options)
        x.square().mean().backward()

    def peak_bytes(self, options: dict[str, Any] | None = None) -> int:
        """Return the peak increase of a step, after two that are not measured."""
        for _ in range(2):
            self.model.zero_grad()
            self.step(options)
        self.model.zero_grad()
        with measure_peak("cpu") as measured:
            self.step(options)
        return measured.peak_increase_bytes

    def plain_bytes(self, names: Sequence[str]) -> int:
        """Return the peak increase of a step with plain checkpoints around some modules."""
        modules = [self.model.get_submodule(name) for name in names]
        for module in modules:
            module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)
        found = self.peak_bytes()
        for module in modules:
            del module.forward
        return found

    def time_ms(self, options: dict[str, Any] | None = None) -> float:
        """Return the CPU time of a step."""
        self.model.zero_grad()
        start_ns = time.process_time_ns()
        self.step(options)
        return (time.process_time_ns() - start_ns) / 1e6

    def plan(self) -> memwatch.Plan:
        """Return a plan of the step in its own order, to be given budgets."""
        self.step()
        self.model.zero_grad()
        with memwatch.profile(replay=True, holders=False) as prof:
            self.step()
        return memwatch.plan(prof, budget="100%", order="program", recompute=False)


def rows_of(name: str, steps: int) -> list[Row]:
    """Return the rows of one type of block."""
    training = Training(name)
    planned = training.plan()
    plans = [
        dataclasses.replace(planned, budget_bytes=int(ratio * planned.program_peak_increase_bytes))
        for ratio in RATIOS
    ]
    ways: list[tuple[str, dict[str, Any] | None, memwatch.Plan | None]] = [
        ("eager", None, None), ("plain checkpoints", PLAIN, None), ("selective, by hand", BY_HAND, None),
    ]  # fmt: skip
    for ratio, plan in zip(RATIOS, plans, strict=True):
        ways.append((f"checkpoint_contexts, {ratio:.0%}", {"context_fn": plan.checkpoint_contexts}, None))
    ways += [(f"apply_plan, {ratio:.0%}", None, plan) for ratio, plan in zip(RATIOS, plans, strict=True)]
    rows = []
    for way, options, plan in ways:
        with applied(training, plan) as handle:
            rows.append(Row(way, training.peak_bytes(options), float("inf")))
        if handle is not None:
            rows[-1].claim_bytes = handle.peak_increase_bytes
            rows[-1].plain_bytes = training.plain_bytes(handle.modules)
    for row, plan in zip(rows[3:], plans, strict=False):
        row.claim_bytes, row.plain_bytes = plan.checkpoint_peak_bytes, rows[1].peak_bytes
    for _ in range(steps):
        for row, (_, options, plan) in zip(rows, ways, strict=True):
            with applied(training, plan):
                training.time_ms(options)  # the first step with a plan is measured, which takes longer
                row.step_ms = min(row.step_ms, training.time_ms(options))
    return rows


@contextlib.contextmanager
def applied(training: Training, plan: memwatch.Plan | None) -> Iterator[AppliedPlan | None]:
    """Apply a plan, if there is one, in the block; yield what it is applied to."""
    if plan is None:
        yield None
    else:
        with memwatch.apply_plan(training.model, plan) as handle:
            yield handle


def table(found: dict[str, list[Row]]) -> str:
    """Return the page: one table for each type of block, and what holds of all of them."""
    lines = ["# Checkpoint policies", "", *(__doc__ or "").splitlines()[2:], ""]
    lines += [
        f"torch {torch.__version__}, {COUNT} blocks of each type, one thread. Budgets are shares of the eager peak.",
        "",
    ]
    checks: dict[str, Callable[[Row, list[Row]], bool]] = {
        "at or under the claim": lambda row, _: row.claim_bytes is None or row.peak_bytes <= row.claim_bytes,
        "at or under plain checkpoints of the same regions": lambda row, _: (
            row.plain_bytes is None or row.peak_bytes <= row.plain_bytes
        ),
    }
    for text, holds in checks.items():
        cases = [holds(row, rows) for rows in found.values() for row in rows if "%" in row.way]
        lines.append(f"- {text}: {sum(cases)} of {len(cases)}")
    for name, rows in found.items():
        lines += ["", f"## {name}", ""]
        lines.append(
            "| way | peak, MiB | claimed | plain, same regions | budget | CPU ms per step | of eager |"
        )
        lines.append("| --- | --- | --- | --- | --- | --- | --- |")
        for row in rows:
            claim, plain = (
                "" if nbytes is None else f"{nbytes / 2**20:.3f}"
                for nbytes in (row.claim_bytes, row.plain_bytes)
            )
            budget = f"{_budget(row, rows) / 2**20:.3f}" if "%" in row.way else ""
            ratio = row.step_ms / rows[0].step_ms
            cells = (row.way, f"{row.peak_bytes / 2**20:.3f}", claim, plain, budget, f"{row.step_ms:.1f}")
            lines.append(f"| {' | '.join(cells)} | {ratio:.2f} |")
    return "\n".join(lines) + "\n"


def _budget(row: Row, rows: list[Row]) -> int:
    return int(float(row.way.rpartition(" ")[2].rstrip("%")) / 100 * rows[0].peak_bytes)


def main() -> None:
    """Measure all types of blocks and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5, help="steps to time for each way")
    parser.add_argument("blocks", nargs="*", help="types of blocks, all if none is named")
    options = parser.parse_args()
    torch.set_num_threads(1)
    # budgets that no checkpoint keeps are in the table
    warnings.filterwarnings("ignore", message=".*the budget is")
    found = {}
    for name in options.blocks or BLOCKS:
        found[name] = rows_of(name, options.steps)
        print(f"{name}: measured", file=sys.stderr)
    page = table(found)
    print(page)
    if not options.blocks:
        HERE.with_suffix(".md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
