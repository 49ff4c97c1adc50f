"""Execute a plan on made-up inputs and measure its peak.

A capture holds the shapes of a program's inputs, but not their values, so memwatch makes up values. If the measured
peak is above the plan's, the exit code is 1.

    memwatch plan train.4242.memwatch --budget 60% -o train.plan
    memwatch replay train.4242.memwatch --plan train.plan
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memwatch.cli.common import add_device, add_json, emit, emit_json, read

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("capture", type=Path, help="a file that `memwatch run --replay` wrote")
    parser.add_argument(
        "--plan", type=Path, required=True, metavar="FILE", help="a plan that `memwatch plan -o` wrote"
    )
    add_json(parser)
    add_device(parser)


def execute(options: argparse.Namespace) -> int:
    """Print the result of the replay; return 1 if the peak is above the plan's."""
    from memwatch.planner.plan import load_plan
    from memwatch.replay.api import replay
    from memwatch.report import plan_summary
    from memwatch.report.records import plan_record

    plan = load_plan(options.plan)
    reading = read(options.capture, options.device)
    result = replay(plan, reading)
    if options.json:
        emit_json(plan_record(plan, result))
    else:
        emit(plan_summary(plan, result, reading=reading))
    return int(result.peak_increase_bytes > result.planned_bytes)
