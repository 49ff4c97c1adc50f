"""Verbs that plan for a recorded program. Each is a class: its docstring is the help of the verb."""

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
    size,
)
from memwatch.progress import working
from memwatch.words.summary import NEXT_COMMAND

if TYPE_CHECKING:
    import argparse


class Plan:
    """Find how low the peak of a recorded program can be: reorder, recompute, offload.

    Record the program with `memwatch run --replay` first. Without a budget, the plan only changes the order of the ops
    and makes the peak as low as it can. If no plan reaches the budget, memwatch prints the lowest plan and the exit
    code is 1.

        memwatch plan train.4242.memwatch --budget 60% -o train.plan
        memwatch plan train.4242.memwatch --budget "512 MiB" --offload
    """

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this verb."""
        parser.add_argument("capture", type=Path, help="a file that `memwatch run --replay` wrote")
        parser.add_argument(
            "--budget",
            type=budget,
            metavar="SIZE",
            help="the most that the program may add to the memory alive at its start: a size such as `512 MiB`, or a "
            "share of the present figure, such as 60%%",
        )
        parser.add_argument("--no-recompute", action="store_true", help="compute nothing twice")
        parser.add_argument(
            "--offload", action="store_true", help="allow moving storages out of memory and back"
        )
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

    @staticmethod
    def execute(options: argparse.Namespace) -> int:
        """Print the plan, and write it to a file if asked to; return 1 if the budget cannot be reached."""
        from memwatch.planner import plan as plans
        from memwatch.planner.plan import BudgetError
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
            if not isinstance(error.best, plans.Plan):
                return 1
            found, code = error.best, 1
        if options.json:
            emit_json(plan_record(found))
        else:
            emit(plan_summary(found, reading=reading))
            if options.output is not None:
                command = command_line(
                    *memwatch_command(), "replay", options.capture, "--plan", options.output
                )
                emit(f"\n{NEXT_COMMAND.format(command=command)}\n")
        if options.output is not None:
            found.save(options.output, force=options.force)
        return code


class Replay:
    """Execute a plan on made-up inputs and measure its peak.

    A capture holds the shapes of a program's inputs, but not their values, so memwatch makes up values. If the measured
    peak is above the plan's, the exit code is 1.

        memwatch plan train.4242.memwatch --budget 60% -o train.plan
        memwatch replay train.4242.memwatch --plan train.plan
    """

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this verb."""
        parser.add_argument("capture", type=Path, help="a file that `memwatch run --replay` wrote")
        parser.add_argument(
            "--plan", type=Path, required=True, metavar="FILE", help="a plan that `memwatch plan -o` wrote"
        )
        add_json(parser)
        add_device(parser)

    @staticmethod
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


class Tune:
    """Find the setting of torch's CUDA allocator that reserves least for a recorded program.

    The allocations of the program run through torch's own allocator, without a GPU, under 41 settings. The source
    is a capture, recorded on a CPU, a GPU or fake tensors, or a memory snapshot that torch wrote. If torch is not a
    CUDA build, memwatch's model of the allocator runs instead, and the output says so. The last line is the variable to
    set. A retry means that the allocator had to empty its cache before an allocation succeeded.

        memwatch tune train.4242.memwatch
        memwatch tune dump_snapshot.pickle --device-memory 80GiB
    """

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this verb."""
        parser.add_argument(
            "source",
            type=Path,
            help="a file that `memwatch run` or `estimate -o` wrote, or torch's memory snapshot",
        )
        parser.add_argument(
            "--device-memory",
            type=size,
            metavar="SIZE",
            help="memory that torch can use, such as 80GiB; default: the device never fills up",
        )
        parser.add_argument(
            "--setting",
            action="append",
            metavar="SETTING",
            help="try this setting and the default alone, such as max_split_size_mb:128; may be given again",
        )
        parser.add_argument(
            "-n", "--rows", type=positive, default=10, help="settings to list (default %(default)s)"
        )
        add_json(parser)
        add_device(parser)

    @staticmethod
    def execute(options: argparse.Namespace) -> int:
        """Print the settings; return 1 if none fits the device."""
        from memwatch.tune import tune, tune_record, tune_text

        with working("memwatch tune"):
            tuning = tune(
                options.source,
                device_memory=options.device_memory,
                settings=options.setting,
                device=options.device,
            )
        if options.json:
            emit_json(tune_record(tuning))
        else:
            emit(tune_text(tuning, rows=options.rows))
        return 0 if tuning.best.fits else 1
