"""Find the fastest way to train within a memory limit.

memwatch runs the beginning of the script once for each way: unchanged, with checkpointed blocks, compiled, and others.
Each run ends after a few optimizer steps, and memwatch measures its memory. Then it prints the lines to add to your
script. If no way stays within the limit, the exit code is 1.

The lines of a `policy` load a plan. memwatch writes it to SCRIPT.plan, or to the file of --save-plan.

Your files stay as they are. Each run writes and deletes files in a private view of your folders. memwatch drops this
view when the run ends. Download folders (~/.cache, HF_HOME, TORCH_HOME) are shared, so that a model is downloaded once.

    memwatch fit --limit 8GiB train.py --epochs 1
    memwatch fit train.py --limit 8GiB
"""

from __future__ import annotations

import argparse
import os
import tempfile
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Final

from memwatch.cli.files import make_room
from memwatch.cli.numbers import positive, size
from memwatch.cli.output import emit, say
from memwatch.cli.program import hide_own_frames
from memwatch.cli.program_arguments import PROGRAM_USAGE, add_program, chosen_program
from memwatch.errors import MemwatchError
from memwatch.private_files import OutsideWriter, PrivateFiles, PrivateFilesError

if TYPE_CHECKING:
    from memwatch.planner.plan import Plan

_REFUSED: Final = (
    "here memwatch can protect your files only by refusing changes of files. If the script failed for that reason, "
    "run it in a copy of its folder, and add --in-place"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    own = "[--limit SIZE] [--steps N] [--ways KIND,...] [--save-plan FILE [-f]] [--in-place]"
    parser.usage = f"memwatch fit {own} {PROGRAM_USAGE}"
    parser.add_argument(
        "--limit", type=size, metavar="SIZE", help="the most live bytes of the device, such as 8GiB"
    )
    parser.add_argument(
        "--steps", type=positive, default=3, metavar="N", help="end each run after N steps, default 3"
    )
    parser.add_argument(
        "--ways",
        metavar="KIND,...",
        help="kinds of ways to try, of foreach, fused, gradients, step_in_backward, checkpoint, chain, policy, "
        "backend, offload and loss_in_parts; default all",
    )
    parser.add_argument(
        "--save-plan",
        type=Path,
        metavar="FILE",
        help="the file for the plan that the lines of a `policy` load; default SCRIPT.plan, or a name that is free",
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace the plan's file if it exists")
    parser.add_argument(
        "--in-place",
        action="store_true",
        help="let each run of the script write and delete your files, as the script does without memwatch",
    )
    add_program(parser)


def execute(options: argparse.Namespace) -> int | BaseException:
    """Print the ways and the lines of the best; raise BudgetError if none keeps the limit."""
    limit, words = options.limit, options.program
    if limit is None and "--limit" in words:  # it may stand behind the script, where it reads best
        at = words.index("--limit")
        limit, options.program = "".join(words[at + 1 : at + 2]), [*words[:at], *words[at + 2 :]]
    if not limit:
        options.usage_error("give --limit SIZE, such as --limit 8GiB")
    try:
        size(limit)
    except argparse.ArgumentTypeError as error:
        options.usage_error(f"argument --limit: {error}")
    program = chosen_program(options)
    plan_file = options.save_plan or _free_plan_file(options.program)
    if options.save_plan is not None:
        make_room(plan_file, force=options.force)
    writer = None if options.in_place else OutsideWriter(plan_file.absolute(), force=options.force)
    files = None if options.in_place else _private_files()
    # imported before the program's folder comes first in sys.path, for it may hold modules of the same name; and after
    # the files are private, for torch starts threads
    from memwatch.fit.api import fit_program

    try:
        ways = None if options.ways is None else options.ways.split(",")
        found = fit_program(
            program.load, limit, steps=options.steps, ways=ways, files=files, plan_path=str(plan_file)
        )
    except MemwatchError:
        raise
    except BaseException as error:
        if files is not None and files.refuses:
            say(_REFUSED)
        return hide_own_frames(error)
    emit(found.summary())
    if found.plan is not None:
        _save(found.plan, plan_file, writer, force=options.force)
        say(f"wrote {plan_file}, the plan that the lines load")
    return 0


def _save(plan: Plan, path: Path, writer: OutsideWriter | None, *, force: bool) -> None:
    if writer is None:
        plan.save(path, force=force)
        return
    with tempfile.TemporaryDirectory() as folder:
        plan.save(private := Path(folder, "step.plan"))
        writer.write(private.read_bytes())


def _free_plan_file(program: list[str]) -> Path:
    """Return a name for the plan, in the current folder, that no file has."""
    script = next((Path(word).stem for word in program[:1] if word.endswith(".py")), "step")
    numbered = (Path(f"{script}-{number}.plan") for number in count(2))
    return next(name for name in chain([Path(f"{script}.plan")], numbered) if not os.path.lexists(name))


def _private_files() -> PrivateFiles:
    try:
        return PrivateFiles()
    except PrivateFilesError as error:
        raise MemwatchError(
            f"memwatch fit runs the script several times and cannot keep it from changing your files: {error}. "
            "Run it in a copy of its folder, and add --in-place"
        ) from error
