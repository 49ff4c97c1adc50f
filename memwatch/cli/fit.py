"""Find the fastest way to train within a memory limit.

memwatch runs the beginning of the script once for each way: unchanged, with checkpointed blocks, compiled, and others.
Each run ends after a few optimizer steps, and memwatch measures its memory. Then it prints the lines to add to your
script. If no way stays within the limit, the exit code is 1.

Your files stay as they are. Each run writes and deletes files in a private view of your folders. memwatch drops this
view when the run ends. Download folders (~/.cache, HF_HOME, TORCH_HOME) are shared, so that a model is downloaded once.

    memwatch fit --limit 8GiB train.py --epochs 1
    memwatch fit train.py --limit 8GiB
"""

from __future__ import annotations

import argparse

from memwatch.cli.numbers import positive, size
from memwatch.cli.output import emit
from memwatch.cli.private import add_in_place, failed, private_files
from memwatch.cli.program_arguments import PROGRAM_USAGE, add_program, chosen_program
from memwatch.errors import MemwatchError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.usage = f"memwatch fit [--limit SIZE] [--steps N] [--ways KIND,...] [--in-place] {PROGRAM_USAGE}"
    parser.add_argument(
        "--limit", type=size, metavar="SIZE", help="the most live bytes of the device, such as 8GiB"
    )
    parser.add_argument(
        "--steps", type=positive, default=3, metavar="N", help="end each run after N steps, default 3"
    )
    parser.add_argument(
        "--ways",
        metavar="KIND,...",
        help="kinds of ways to try, of foreach, fused, gradients, checkpoint, chain, policy, backend and offload; "
        "default all",
    )
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
    files = private_files(options, "fit", "the script several times")
    # imported before the program's folder comes first in sys.path, for it may hold modules of the same name; and after
    # the files are private, for torch starts threads
    from memwatch.fit.api import fit_program

    try:
        ways = None if options.ways is None else options.ways.split(",")
        found = fit_program(program.load, limit, steps=options.steps, ways=ways, files=files)
    except MemwatchError:
        raise
    except BaseException as error:
        return failed(error, files)
    emit(found.summary())
    return 0
