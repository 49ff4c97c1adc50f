"""Find how low the peak of a recorded program can be: reorder, recompute, offload.

Record the program with `memwatch run --replay` first. Without a budget, the plan only changes the order of the ops and
makes the peak as low as it can. If no plan reaches the budget, memwatch prints the lowest plan and the exit code is 1.

    memwatch plan train.4242.memwatch --budget 60% -o train.plan
    memwatch plan train.4242.memwatch --budget "512 MiB" --offload
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memwatch.cli.common import (
    add_device,
    add_json,
    budget,
    command_line,
    emit,
    emit_json,
    make_room,
    memwatch_command,
    positive,
    read,
    say,
)
from memwatch.words.summary import NEXT_COMMAND

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument("capture", type=Path, help="a file that `memwatch run --replay` wrote")
    parser.add_argument(
        "--budget",
        type=budget,
        metavar="SIZE",
        help="the most that the program may add to the memory alive at its start: a size such as `512 MiB`, or a share "
        "of the present figure, such as 60%%",
    )
    parser.add_argument("--no-recompute", action="store_true", help="compute nothing twice")
    parser.add_argument("--offload", action="store_true", help="allow moving storages out of memory and back")
    parser.add_argument(
        "--time-limit", type=positive, default=10, metavar="S", help="seconds to search, default 10"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the search, default 0")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write the plan, for `memwatch replay`"
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace the file if it exists")
    add_json(parser)
    add_device(parser)


def execute(options: argparse.Namespace) -> int:
    """Print the plan, and write it to a file if asked to; return 1 if the budget cannot be reached."""
    from memwatch.planner.errors import BudgetError
    from memwatch.planner.plan import Plan
    from memwatch.replay.api import plan
    from memwatch.report import plan_summary
    from memwatch.report.records import plan_record

    make_room(options.output, inputs=[options.capture], force=options.force)
    code, reading = 0, read(options.capture, options.device)
    try:
        found = plan(
            reading,
            budget=options.budget,
            recompute=not options.no_recompute,
            offload=options.offload,
            time_limit_s=options.time_limit,
            seed=options.seed,
        )
    except BudgetError as error:
        say(f"error: {error}")
        if not isinstance(error.best, Plan):
            return 1
        found, code = error.best, 1
    if options.json:
        emit_json(plan_record(found))
    else:
        emit(plan_summary(found, reading=reading))
        if options.output is not None:
            command = command_line(*memwatch_command(), "replay", options.capture, "--plan", options.output)
            emit(f"\n{NEXT_COMMAND.format(command=command)}\n")
    if options.output is not None:
        found.save(options.output, force=options.force)
    return code
