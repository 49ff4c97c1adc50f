"""Run a program and report the tensors that it leaves behind.

memwatch searches at the end of the program, and while it trains. At the end, a tensor is a leak if only a reference
cycle or C++ code keeps it, so that the program cannot reach it. A tensor that global variables, models or optimizers
hold, or that the last optimizer step used, is not a leak. Class attributes and caches of functions count as global
variables, those of imported modules included. But a container of an imported module is a leak if each optimizer step,
or each iteration of a loop, added a tensor to it. A tensor that anything else holds is a leak.

While the program trains, a leak is a graph or a hook that each optimizer step, or each iteration of a loop, leaves
behind. These searches run after steps 4, 8, 16 and so on. They also run after iterations 6, 11, 21 and so on, unless
each iteration has one step. They cover threads, the tasks of thread pools, and coroutines too.

If there are leaks, the exit code is 1. Otherwise memwatch prints where it searched. Findings go to standard output, and
remarks about the run to standard error. A program that fails ends as it would without memwatch. memwatch then ignores
the tensors that are alive at the end, and prints the leaks of each optimizer step until then.

    memwatch leaks train.py --epochs 1
    memwatch leaks -m package.train
"""

from __future__ import annotations

import contextlib
import sys
import textwrap
from typing import TYPE_CHECKING

from memwatch.cli.common import emit, say
from memwatch.cli.program import PROGRAM_USAGE, add_program, chosen_program, hide_own_frames
from memwatch.kinds.edges import VertexKind
from memwatch.kinds.leaks import LeakKind
from memwatch.settings import FILE, project_settings
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    import argparse
    import weakref
    from collections.abc import Hashable

    import torch

    from memwatch.leaks import Leak
    from memwatch.leaks.program_growth import ProgramGrowth, Rounds
    from memwatch.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.usage = f"memwatch leaks {PROGRAM_USAGE}"
    add_program(parser)


def execute(options: argparse.Namespace) -> int | BaseException:
    """Run the program and print its leaks; return 1 if there are any, or the exception of the program."""
    # imported first: the program's folder comes first in sys.path later, and may hold modules of the same name
    from memwatch.leaks import TensorLeakError, check_leaks
    from memwatch.leaks.torchs_cycles import is_closed_by_torch
    from memwatch.report.console import line_width
    from memwatch.words.leaks import FILLING_NOTE, NOT_SAID, cycles_of_torch_line, grow_line

    found: list[Leak] = []
    at_end: list[Leak] = []
    program, settings = chosen_program(options), project_settings()  # the program may change the folder
    has_failed = False
    try:
        run = program.load()
    except SyntaxError as error:
        return hide_own_frames(error)
    try:
        with check_leaks() as check:
            growth = check.follow_rounds()
            try:
                run()
            except BaseException as error:
                if not isinstance(error, SystemExit) or error.code not in {None, 0}:
                    has_failed = True
                    check.give_up()  # the program was stopped amid its work, and may have needed all that it holds
                    raise
            finally:
                growth.stop()
            at_end = growth.held_at_end()
            growth.forget_drained()
            check.set_aside(growth.storages_in_use())
            check.set_aside_names(vars(sys.modules["__main__"]))
    except BaseException as error:
        # a check in the program itself may have raised a TensorLeakError, which is then the program's failure
        if has_failed or not isinstance(error, TensorLeakError):
            try:
                _say_what_was_seen(growth, error, settings)
            except Exception as failure:  # such as a full disk; the process ends with the program's own error
                with contextlib.suppress(Exception):
                    say(NOT_SAID.format(error=failure))
            return hide_own_frames(error)
        found = error.leaks
    # the memory that each round adds is more precise than the sum at the end
    found = [leak for leak in found if not growth.has_leak_of(leak, check.leaked_storages(leak.cause))]
    # torch's own cycles are no leaks: the program can neither avoid nor break them, and rounds do not add to them
    cycles_of_torch = [leak for leak in found if is_closed_by_torch(leak)]
    found = [leak for leak in found if leak not in cycles_of_torch]
    grown_at = {leak.cause: growth.kept_by(leak, check.leaked_storages(leak.cause)) for leak in found}
    found = [leak for leak in found if grown_at[leak.cause] or not _is_of_module(leak)]
    # do not list a holder that grew as a possible result, too
    told = {cause for leak in found for cause in (leak.cause, *grown_at[leak.cause])}
    seen = check.told_storages(told)
    found = _counted(found, settings)
    parts = []
    for rounds in growth.rounds:
        leaks = _counted(rounds.new_leaks(told, seen), settings)
        if leaks:
            parts.append("\n".join([grow_line(rounds.place, leaks), *map(str, leaks)]))
    if found:  # last, because what each round leaves may be the cause of it
        text = str(TensorLeakError(found))
        parts.append(text.removesuffix(FILLING_NOTE).rstrip() if growth.rounds else text)
    is_leak, is_clean = bool(parts), not told
    grown = _lines_of_growth(growth, told)
    parts += grown
    if not is_leak:
        parts += _undecided_lines(growth)
    if parts:  # on standard output, so that it has all findings
        emit(_wrapped(_with_advice_once("\n".join(parts)), line_width(None)))
    if not is_leak:
        _say_what_was_searched(growth, at_end, is_clean=is_clean, has_grown=bool(grown))
        _say_what_is_held(growth, at_end, told)
    if cycles_of_torch:
        say(cycles_of_torch_line(cycles_of_torch))
    return int(is_leak)


def _say_what_was_seen(growth: ProgramGrowth, error: BaseException, settings: Settings) -> None:
    """Print that the program failed, and the leaks of each round until then."""
    from memwatch.report.console import line_width
    from memwatch.words import leaks as words

    cause = type(error).__name__
    if isinstance(error, SystemExit):
        code = error.code if type(error.code) is int else 1  # Python prints any other object
        cause = words.EXIT_CODE.format(code=code)
    judged = growth.judged_amid()
    told: set[str] = set()
    seen: list[weakref.ref[torch.UntypedStorage]] = []
    parts = []
    for rounds in judged:
        leaks = _counted(rounds.new_leaks(told, seen), settings)
        if leaks:
            line = words.grow_line(rounds.place, leaks, has_failed=True)
            parts.append("\n".join([line, *map(str, leaks)]))
    if parts:
        emit(_wrapped(_with_advice_once("\n".join(parts)), line_width(None)))
    clean = [rounds.place for rounds in judged if _is_clean(rounds) and not (rounds.leaks or rounds.kept)]
    say(words.not_judged_line(cause, growth.all_steps, clean, are_clean=not parts))


def _is_clean(rounds: Rounds) -> bool:
    """Return True if rounds kept nothing for a while, and memwatch could decide about all that they left."""
    return not (rounds.kept_a_while or rounds.has_unseen or rounds.seldom)


def _with_advice_once(text: str) -> str:
    """Return the text of leaks. An advice that equals the one before it is not repeated."""
    from memwatch.words import leaks as words

    lines, latest, start = [], "", words.ADVICE.format(advice="")
    for line in text.splitlines():
        is_again = line.startswith(start) and line == latest
        latest = line if line.startswith(start) else latest
        lines.append(words.ADVICE.format(advice=words.AS_ABOVE) if is_again else line)
    return "\n".join(lines)


def _is_of_module(leak: Leak) -> bool:
    """Return True if a global variable of a module leads to the tensors, through a class or a cache too."""
    owner = leak.edges[0].owner if leak.kind is LeakKind.RETAINED and leak.edges else None
    return owner is not None and owner.kind is VertexKind.MODULE


def _lines_of_growth(growth: ProgramGrowth, told: set[str]) -> list[str]:
    """Return a line for the holders to which each round of a loop added tensors that may be a result."""
    from memwatch.words import leaks as words

    lines = []
    kept_by_place = {rounds.place: rounds.kept for rounds in growth.rounds if rounds.kept}
    for place, leaks in kept_by_place.items():
        by_sort: dict[tuple[int, bool, bool, str], list[Leak]] = {}
        for leak in leaks:
            has_own_line = leak.grows or _fills_places(leak) or (leak.known is not None and leak.known.remedy)
            advice = "" if has_own_line else leak.advice
            by_sort.setdefault((leak.every, leak.grows, _fills_places(leak), advice), []).append(leak)
        for (every, grows, has_graphs, advice), several in sorted(
            by_sort.items(), key=lambda item: item[0][:3]
        ):
            first = {leak.cause: leak for leak in reversed(several) if leak.cause not in told}
            rows = _rows(several, told)
            if rows:
                lines.append(words.kept_line(place, every, rows, grows=grows, has_graphs=has_graphs))
                places = dict.fromkeys(leak.place_line for leak in reversed(first.values()))
                lines += list(filter(None, places))[: words.MOST_HELD]
                lines += [words.ADVICE.format(advice=advice)] * bool(advice)
                known = dict.fromkeys(leak.known for leak in several if leak.known is not None)
                lines += map(words.known_line, known)
    return lines


def _say_what_is_held(growth: ProgramGrowth, at_end: list[Leak], told: set[str]) -> None:
    """Print the tensors that rounds kept for a while, and the tensors that top-level names hold at the end.

    Neither is a finding: the first were freed, and most of the others are results.
    """
    from memwatch.words import leaks as words

    freed_by_place = {rounds.place: rounds.freed[0] for rounds in growth.rounds if rounds.freed}
    freed = {leak.cause: (place, leak) for place, leak in freed_by_place.items() if leak.cause not in told}
    for place, leak in freed.values():
        say(words.freed_line(place, leak, leak.holder))
    collections = _collections_at_end(growth, at_end)
    for template, has_graphs in ((words.GRAPHS_AT_END, True), (words.HELD_AT_END, False)):
        rows = _rows([leak for leak in collections if _has_graphs(leak, growth) is has_graphs], told)
        if rows:
            say(template.format(held=words.held_phrase(rows)))


def _collections_at_end(growth: ProgramGrowth, at_end: list[Leak]) -> list[Leak]:
    """Return the holders of several tensors at the end that no search of rounds has named."""
    grown = {_series(leak) for rounds in growth.rounds for leak in rounds.kept}
    return [leak for leak in at_end if leak.count > 1 and _series(leak) not in grown]


def _say_what_was_searched(
    growth: ProgramGrowth, at_end: list[Leak], *, is_clean: bool, has_grown: bool
) -> None:
    """Print that memwatch found nothing, and where it searched."""
    from memwatch.leaks.program_growth import FEWEST_PASSES, FEWEST_STEPS
    from memwatch.words import leaks as words

    has_unsearched_steps = 0 < growth.steps.number < FEWEST_STEPS
    searched = [rounds.place for rounds in growth.rounds]
    places = words.searched_places(searched, has_unsearched_steps=has_unsearched_steps)
    if is_clean:
        not_clean = {rounds.place for rounds in growth.rounds if not _is_clean(rounds)}
        clean = [place for place in places if place not in not_clean]
        say(
            words.searched_line(
                clean,
                has_grown=has_grown,
                is_certain=not _collections_at_end(growth, at_end),
                has_graphs=any(_has_graphs(leak, growth) for leak in at_end),
            )
        )
    if not searched or has_unsearched_steps:
        say(
            words.not_searched_line(
                growth.steps.number,
                all_steps=growth.all_steps,
                optimizers=growth.optimizers,
                fewest_steps=FEWEST_STEPS,
                fewest_passes=FEWEST_PASSES,
                has_loops=bool(searched),
            )
        )
    elif growth.later_optimizers and not any(rounds.loop for rounds in growth.rounds):
        say(
            words.LATER_OPTIMIZERS.format(
                steps=growth.steps.number, optimizers=growth.optimizers, passes=FEWEST_PASSES
            )
        )
    if growth.skipped_places:
        say(words.skipped_line(list(growth.skipped_places)))


def _undecided_lines(growth: ProgramGrowth) -> list[str]:
    """Return the first sentence about memory that may leak or not; an empty list if memwatch could decide."""
    from memwatch.leaks.new_storages import NODE_BYTES
    from memwatch.words import leaks as words

    lines = []
    for rounds in growth.rounds:
        if rounds.unseen_nodes:
            nbytes = rounds.unseen_nodes * NODE_BYTES
            lines.append(words.unseen_line(rounds.place, rounds.unseen_nodes, nbytes))
        for leak, count in rounds.seldom:
            holder = leak.container or leak.holder
            lines.append(words.seldom_line(rounds.place, holder, count, rounds.number))
    return lines[:1]


def _fills_places(leak: Leak) -> bool:
    """Return True if each round put a tensor with its graph into an empty place of a list or array."""
    return leak.keeps_graph and not leak.grows


def _has_graphs(leak: Leak, growth: ProgramGrowth) -> bool:
    """Return True if a holder has the graphs of several rounds at the end."""
    return growth.graphs_at_end.get(leak.cause, 0) > 1


def _series(leak: Leak) -> tuple[Hashable, ...]:
    """Return what is equal for the paths to two tensors of one holder."""
    from memwatch.leaks.cause import series_of

    return tuple(map(series_of, leak.edges))


def _rows(leaks: list[Leak], told: set[str]) -> list[tuple[str, int, dict[str, int]]]:
    """Return the holders that were not reported yet, with all their tensors; mark them as reported."""
    fresh = [leak for leak in leaks if leak.cause not in told]
    told.update(leak.cause for leak in fresh)
    rows: dict[str, tuple[str, int, dict[str, int]]] = {}
    for leak in fresh:
        holder, count, nbytes = rows.get(leak.cause, (leak.container or leak.holder, 0, {}))
        nbytes[leak.device] = nbytes.get(leak.device, 0) + leak.nbytes
        rows[leak.cause] = holder, count + leak.count, nbytes
    return list(rows.values())


def _counted(leaks: list[Leak], settings: Settings) -> list[Leak]:
    """Return the leaks that the settings do not ignore, and print how many they ignore and why."""
    from memwatch.leaks.leak import matches

    smallest_bytes = settings.get("limits.leak") or 0
    counted = []
    ignored: dict[str, list[Leak]] = {}
    for leak in leaks:
        rules = (
            f"{pattern}: {reason}"
            for pattern, reason in settings.ignore_leaks.items()
            if matches(leak, pattern)
        )
        rule = next(rules, None)
        if rule is None and leak.kind.is_below(leak.nbytes, smallest_bytes):
            rule = f"smaller than {format_bytes(smallest_bytes)}"
        if rule is None:
            counted.append(leak)
        else:
            ignored.setdefault(rule, []).append(leak)
    for rule, covered in ignored.items():
        nbytes = format_bytes(sum(leak.nbytes for leak in covered))
        say(f"ignored {len(covered)} leak{'s'[: len(covered) != 1]} of {nbytes}, as {FILE} asks ({rule})")
    return counted


def _wrapped(text: str, width: int) -> str:
    """Return the text with lines of at most `width` characters. The rest of a line is below it, indented further."""
    lines = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        fitting = textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        lines += fitting or [""]
    return "\n".join(lines) + "\n"
