"""Execute a plan on made-up inputs of the recorded shapes and measure its peak.

The numbers of the inputs are made up, their shapes are the recorded ones.

    memwatch plan train.4242.memwatch --budget 60% -o train.plan
    memwatch replay train.4242.memwatch --plan train.plan
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memwatch.cli.output import emit

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("capture", type=Path, help="a file that `memwatch run --replay` wrote")
    parser.add_argument(
        "--plan", type=Path, required=True, metavar="FILE", help="what `memwatch plan -o` wrote"
    )


def execute(options: argparse.Namespace) -> int:
    """Print what the replay found; 1 if the peak is not what the plan says."""
    from memwatch.planner.plan import load_plan
    from memwatch.reading import load
    from memwatch.replay.api import replay
    from memwatch.report import plan_summary

    plan = load_plan(options.plan)
    result = replay(plan, options.capture)
    emit(plan_summary(plan, result, reading=load(options.capture)))
    return int(result.peak_increase_bytes > result.planned_bytes)
