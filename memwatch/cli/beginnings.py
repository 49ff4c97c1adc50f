"""Verbs that run the beginning of a program. Each is a class: its docstring is the help of the verb.

They keep the user's files as they are. A process that asks the kernel for private files must have one thread only, so
this module imports neither torch nor numpy.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from itertools import chain, count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from memwatch.cli.common import (
    add_json,
    command_line,
    emit,
    emit_json,
    make_room,
    memwatch_command,
    not_negative,
    positive,
    say,
    size,
)
from memwatch.cli.program import PROGRAM_USAGE, add_program, chosen_program, hide_own_frames
from memwatch.errors import MemwatchError, OptionError, linked_errors
from memwatch.kinds.fit import DEFAULT_STEPS, Kind
from memwatch.private_files import FilesOutside, PrivateFiles, PrivateFilesError
from memwatch.words.fit import BEGINS
from memwatch.words.summary import NEXT_COMMAND, NEXT_TO_KEEP

if TYPE_CHECKING:
    from collections.abc import Callable

    from memwatch.cli.program import Program
    from memwatch.estimate import result
    from memwatch.estimate.api import LargestBatch
    from memwatch.estimate.job import Job

BATCH: Final = "{batch}"
"""The text that the search for a batch size replaces in the arguments of the program."""
_THE_PROGRAM: Final = "the program"
_REFUSED: Final = (
    "here memwatch can protect your files only by refusing changes of files. If the script failed for that reason, "
    "run it in a copy of its folder, and add --in-place"
)
_NOT_PRIVATE: Final = (
    "memwatch {verb} runs {what} and cannot keep it from changing your files: {error}. "
    "Run it in a copy of its folder, and add --in-place"
)
_NO_REFUSALS: Final = (
    ArithmeticError, AttributeError, KeyboardInterrupt, LookupError, NameError, SyntaxError, SystemExit, TypeError,
)  # fmt: skip
"""Errors that a refused change of a file does not raise."""


_KINDS: Final = ", ".join(kind.value for kind in Kind)
"""The names that `--ways` takes."""


class Fit:
    """Find the fastest way to train within a memory limit.

    memwatch runs the beginning of the script once for each way: unchanged, with checkpointed blocks, compiled, and
    others. Each run ends after a few optimizer steps, and memwatch measures its memory. Then it prints the lines to add
    to your script. If no way stays within the limit, the exit code is 1.

    One way, `policy`, chooses the tensors to save by a plan. Its lines load the plan from SCRIPT.plan, or from the file
    of --save-plan, which memwatch writes.

    Your files stay as they are. Each run writes and deletes files in a private view of your folders. memwatch drops
    this view when the run ends. Download folders (~/.cache, HF_HOME, TORCH_HOME) are shared, so that a model is
    downloaded once.

        memwatch fit --limit 8GiB train.py --epochs 1
        memwatch fit train.py --limit 8GiB
    """

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this verb."""
        own = "[--limit SIZE] [--steps N] [--ways KIND,...] [--save-plan FILE] [-f] [--in-place]"
        parser.usage = f"memwatch fit {own} {PROGRAM_USAGE}"
        parser.add_argument(
            "--limit",
            type=size,
            metavar="SIZE",
            help="the most live bytes of the device, such as 8GiB; you may write it behind the script, too, unless the "
            "script has an option of this name",
        )
        parser.add_argument(
            "--steps",
            type=positive,
            metavar="N",
            help="end each run after N steps, default 3, or 2 if the program makes no more",
        )
        parser.add_argument(
            "--ways",
            type=_kinds,
            metavar="KIND,...",
            help=f"kinds of ways to try, of {_KINDS}; default all",
        )
        parser.add_argument(
            "--save-plan",
            type=Path,
            metavar="FILE",
            help="the file for the plan that the lines of a `policy` load; default SCRIPT.plan, or a name that is free",
        )
        parser.add_argument("-f", "--force", action="store_true", help="replace the plan's file if it exists")
        _add_in_place(parser)
        add_program(parser)

    @staticmethod
    def execute(options: argparse.Namespace) -> int | BaseException:
        """Print the ways and the lines of the best; raise BudgetError if none keeps the limit."""
        limit, words = options.limit, options.program
        at = next((at for at, word in enumerate(words) if word.partition("=")[0] == "--limit"), None)
        if limit is None and at is not None:  # the user wrote it after the script
            _, is_in_one_word, limit = words[at].partition("=")
            after = at + 1 if is_in_one_word else at + 2
            limit = limit or "".join(words[at + 1 : after])
            options.program = [*words[:at], *words[after:]]
        if not limit:
            options.usage_error("give --limit SIZE, such as --limit 8GiB")
        try:
            size(limit)
        except argparse.ArgumentTypeError as error:
            options.usage_error(f"argument --limit: {error}")
        program = chosen_program(options)
        program.check()
        plan_file = options.save_plan or _free_plan_file(options.program)
        plan_target = plan_file.absolute()  # the script may change the folder
        if options.save_plan is not None:
            make_room(plan_target, force=options.force)
        outside = None if options.in_place else FilesOutside()
        files = _private_files(options, "fit", "the script several times")
        # The order of the next lines matters. The files are private before the import, because torch starts threads.
        # The first line is printed before the import, because torch takes seconds to import. The import comes before
        # the program's folder is first in sys.path, because that folder may have modules of the same name.
        steps = DEFAULT_STEPS if options.steps is None else options.steps
        say(BEGINS.format(steps=steps, program=_THE_PROGRAM if options.command else program.target))
        from memwatch.fit.api import fit_program
        from memwatch.words.fit import files_dropped

        try:
            found = fit_program(
                program.load,
                limit,
                steps=options.steps,
                ways=options.ways,
                files=files,
                plan_path=str(plan_file),
                print_line=say,
            )
        except MemwatchError:
            # without an error, the summary has these sentences
            for remark in [] if files is None else files_dropped(files.drop_changes()):
                say(remark)
            raise
        except BaseException as error:
            return _failed(error, files)
        emit(found.summary())
        if found.plan is not None:
            written = plan_target if files is None else files.folder / plan_target.name
            found.plan.save(written, force=options.force)
            if outside is not None:
                outside.copy(written, plan_target, force=options.force)
            say(f"wrote {plan_file}, the plan that the lines load")
        return 0


def _kinds(text: str) -> list[str]:
    """Return the names of kinds of ways, such as `checkpoint,policy`."""
    names = text.split(",")
    try:
        Kind.chosen(names)
    except OptionError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return names


def _free_plan_file(program: list[str]) -> Path:
    """Return a name for the plan, in the current folder, that no file has."""
    script = next((Path(word).stem for word in program[:1] if word.endswith(".py")), "step")
    numbered = (Path(f"{script}-{number}.plan") for number in count(2))
    return next(name for name in chain([Path(f"{script}.plan")], numbered) if not os.path.lexists(name))


class Estimate:
    """Estimate the peak of a training program without running it on real memory.

    The beginning of the program runs on fake tensors, which have sizes and no memory. It works without a GPU and
    without other processes: memwatch estimates one rank of a job of any size. `init_process_group` returns at once with
    --world-size ranks, and collectives do nothing. The run ends after a few optimizer steps. The bytes of tensors are
    counted exactly. Figures that come from a model are listed separately.

    Your files stay as they are. The run writes and deletes files in a private view of your folders. memwatch drops this
    view when the run ends. Download folders (~/.cache, HF_HOME, TORCH_HOME) are shared.

        memwatch estimate --world-size 256 train.py --epochs 1
        memwatch estimate --device cuda -o train.memwatch --html train.py
        memwatch estimate --device H100 train.py
        memwatch estimate --device cuda --device-memory 80GiB train.py
        memwatch estimate --device H100 --largest-batch train.py --batch-size {batch}
    """

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this verb."""
        own = "[--world-size N] [--rank R] [--steps N] [--device DEVICE] [--device-memory SIZE] [--largest-batch]"
        files = "[--json] [-o FILE] [-f] [--html[=PATH]] [--in-place]"
        parser.usage = f"memwatch estimate {own} {files} {PROGRAM_USAGE}"
        parser.add_argument(
            "--world-size",
            type=positive,
            metavar="N",
            help="number of ranks in the job; default: the number that the program sets",
        )
        parser.add_argument(
            "--rank", type=not_negative, default=0, metavar="R", help="the rank that is estimated, default 0"
        )
        parser.add_argument(
            "--steps", type=positive, default=3, metavar="N", help="end the run after N steps, default 3"
        )
        parser.add_argument(
            "--device",
            metavar="DEVICE",
            help="cuda: pretend that there is a GPU; a card such as H100: also print whether it fits there",
        )
        parser.add_argument(
            "--device-memory",
            type=size,
            metavar="SIZE",
            help="print whether it fits a device with so much memory for torch, such as 80GiB",
        )
        parser.add_argument(
            "--largest-batch",
            action="store_true",
            help="find the largest batch size that fits: memwatch runs the program with several sizes in place of "
            "{batch}",
        )
        parser.add_argument(
            "-o", "--output", metavar="FILE", help="write the capture, which all other verbs read"
        )
        parser.add_argument("-f", "--force", action="store_true", help="replace files that exist")
        parser.add_argument(
            "--html",
            action="store_true",
            help="write the page too, to PATH with --html=PATH; default: the name of the capture, or of the program, "
            "with .html",
        )
        _add_in_place(parser)
        add_json(parser)
        add_program(parser)

    @staticmethod
    def execute(options: argparse.Namespace) -> int | BaseException:
        """Print the estimate; return 0, 1 if it does not fit the device, or the exception of the program."""
        if options.world_size is not None and options.rank >= options.world_size:
            options.usage_error(
                f"rank {options.rank} is not in a job of {options.world_size}; the last is {options.world_size - 1}"
            )
        if options.world_size is None and options.rank:
            options.usage_error(f"--rank {options.rank} needs --world-size, the number of ranks")
        program = chosen_program(options)
        if options.largest_batch:
            if options.output is not None or options.html:
                options.usage_error(
                    "--largest-batch writes no file; then estimate the batch size that it found"
                )
            if not any(BATCH in each for each in program.arguments):
                options.usage_error(f"--largest-batch: write {BATCH} where the program gets its batch size")
        from memwatch.cards import card_named  # it imports no torch

        given = [word for option, word in pairwise(program.arguments) if option == "--device"]
        given += [
            word.removeprefix("--device=") for word in program.arguments if word.startswith("--device=")
        ]
        for word in given:  # a script's own `--device` takes no card
            if options.device is None and card_named(word) is not None:
                options.usage_error(
                    f"--device {word} is an argument of the script here: write it before the script"
                )
        is_card = options.device is not None and card_named(options.device) is not None
        if options.largest_batch and not is_card and options.device not in {None, "cuda"}:
            options.usage_error(
                "--largest-batch is for a CUDA device: name a card with --device, or leave --device out"
            )
        device = "cuda" if is_card or options.largest_batch else options.device
        device_memory: str | None = options.device_memory or (options.device if is_card else None)
        if options.largest_batch and device_memory is None:
            options.usage_error("--largest-batch: name a card with --device, or give --device-memory")
        capture = None if options.output is None else Path(options.output).absolute()
        page = Path(
            options.page or (capture or Path(f"{program.name}.estimate")).with_suffix(".html")
        ).absolute()
        make_room(
            capture=capture, page=page if options.html else None, inputs=program.files(), force=options.force
        )
        outside = None if options.in_place or not (capture or options.html) else FilesOutside()
        files = _private_files(options, "estimate", "the script")
        # The files are private before these imports, because torch starts threads. The imports come before the
        # program's folder is first in sys.path, because that folder may have modules of the same name.
        from memwatch.cards import Room
        from memwatch.estimate.api import find_largest
        from memwatch.estimate.job import Job
        from memwatch.estimate.program import estimate_program
        from memwatch.estimate.words import estimate_record, text_of
        from memwatch.words.fit import files_dropped

        def written(target: Path) -> Path:
            """Return where a file is written first."""
            return target if files is None else files.folder / target.name

        job, next_step = Job(options.rank, options.world_size), _next(options.output)
        largest: LargestBatch | None = None
        try:
            if options.largest_batch and device_memory is not None:
                largest = find_largest(_of_batch(program, job, options.steps, files), device_memory)
                found = largest.estimate
            else:
                found = estimate_program(
                    program.load,
                    job=job,
                    steps=options.steps,
                    device=device,
                    path=None if capture is None else written(capture),
                    force=options.force,
                )
        except MemwatchError:
            raise
        except BaseException as error:
            return _failed(error, files)
        if options.html:
            found.reading.report(written(page), force=options.force)
        if outside is not None:
            for target in [capture, page if options.html else None]:
                if target is not None:
                    outside.copy(written(target), target, force=options.force)
        room = None if device_memory is None else Room.of(device_memory)
        outcome = None if device_memory is None else found.on_device(device_memory)
        if options.json:
            emit_json(estimate_record(found, room, outcome, largest))
        else:
            head = "" if largest is None else f"{_sentence(str(largest))}\n\n"
            emit(head + text_of(found, next_step, room=room, outcome=outcome))
        for remark in [] if files is None else files_dropped(files.drop_changes()):
            say(remark)
        return int(outcome is not None and not outcome.fits)


def _of_batch(
    program: Program, job: Job, steps: int, files: PrivateFiles | None
) -> Callable[[int], result.Estimate]:
    """Return a function that estimates the program with a batch size in place of `{batch}`."""
    from memwatch.estimate.program import estimate_program
    from memwatch.fit.program_trial import drop_modules

    modules, folder = frozenset(sys.modules), os.getcwd()

    def estimated(batch_size: int) -> result.Estimate:
        os.chdir(folder)
        if files is not None:
            files.renew()
        drop_modules(besides=modules)
        arguments = tuple(each.replace(BATCH, str(batch_size)) for each in program.arguments)
        return estimate_program(
            dataclasses.replace(program, arguments=arguments).load, job=job, steps=steps, device="cuda"
        )

    return estimated


def _next(capture: str | None) -> str:
    if capture is None:
        return NEXT_TO_KEEP
    return NEXT_COMMAND.format(command=command_line(*memwatch_command(), "report", capture))


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _add_in_place(parser: argparse.ArgumentParser) -> None:
    """Add the option `--in-place`."""
    parser.add_argument(
        "--in-place",
        action="store_true",
        help="let each run of the script write and delete your files, as the script does without memwatch",
    )


def _private_files(options: argparse.Namespace, verb: str, what: str) -> PrivateFiles | None:
    """Give this process a private view of the user's files; return None with `--in-place`.

    Call it before torch is imported, which starts threads.

    Args:
        options: the options of the verb.
        verb: its name.
        what: what it runs, in words.

    Raises:
        MemwatchError: the files cannot be protected here.
    """
    if options.in_place:
        return None
    try:
        return PrivateFiles()
    except PrivateFilesError as error:
        raise MemwatchError(_NOT_PRIVATE.format(verb=verb, what=what, error=error)) from error


def _failed(error: BaseException, files: PrivateFiles | None) -> BaseException:
    """Return the error of a program. If a refused change of a file may be the cause, print what to do."""
    may_be_refused = not any(isinstance(each, _NO_REFUSALS) for each in linked_errors(error))
    if files is not None and files.refuses and may_be_refused:
        say(_REFUSED)
    return hide_own_frames(error)
