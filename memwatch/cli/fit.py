"""Find the fastest way to train within a memory limit.

memwatch runs the beginning of the script once for each way: unchanged, with checkpointed blocks, compiled, and others.
Each run ends after a few optimizer steps, and memwatch measures its memory. Then it prints the lines to add to your
script. If no way stays within the limit, the exit code is 1.

One way, `policy`, chooses the tensors to save by a plan. Its lines load the plan from SCRIPT.plan, or from the file of
--save-plan, which memwatch writes.

Your files stay as they are. Each run writes and deletes files in a private view of your folders. memwatch drops this
view when the run ends. Download folders (~/.cache, HF_HOME, TORCH_HOME) are shared, so that a model is downloaded once.

    memwatch fit --limit 8GiB train.py --epochs 1
    memwatch fit train.py --limit 8GiB
"""

from __future__ import annotations

import argparse
import os
from itertools import chain, count
from pathlib import Path

from memwatch.cli.common import emit, make_room, positive, say, size
from memwatch.cli.private import add_in_place, failed, private_files
from memwatch.cli.program import PROGRAM_USAGE, add_program, chosen_program
from memwatch.errors import MemwatchError
from memwatch.private_files import FilesOutside


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    own = "[--limit SIZE] [--steps N] [--ways KIND,...] [--save-plan FILE] [-f] [--in-place]"
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
        "backend, offload, loss_in_parts and autocast; default all",
    )
    parser.add_argument(
        "--save-plan",
        type=Path,
        metavar="FILE",
        help="the file for the plan that the lines of a `policy` load; default SCRIPT.plan, or a name that is free",
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace the plan's file if it exists")
    add_in_place(parser)
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
    plan_target = plan_file.absolute()  # the script may change the folder
    if options.save_plan is not None:
        make_room(plan_target, force=options.force)
    outside = None if options.in_place else FilesOutside()
    files = private_files(options, "fit", "the script several times")
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
        return failed(error, files)
    emit(found.summary())
    if found.plan is not None:
        written = plan_target if files is None else files.folder / plan_target.name
        found.plan.save(written, force=options.force)
        if outside is not None:
            outside.copy(written, plan_target, force=options.force)
        say(f"wrote {plan_file}, the plan that the lines load")
    return 0


def _free_plan_file(program: list[str]) -> Path:
    """Return a name for the plan, in the current folder, that no file has."""
    script = next((Path(word).stem for word in program[:1] if word.endswith(".py")), "step")
    numbered = (Path(f"{script}-{number}.plan") for number in count(2))
    return next(name for name in chain([Path(f"{script}.plan")], numbered) if not os.path.lexists(name))
