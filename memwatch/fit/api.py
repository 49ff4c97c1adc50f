"""Find the fastest way to train with a measured peak within a limit (`memwatch.fit`).

If no way stays within the limit, `BudgetError` names the obstacle, from a recording of the way with the lowest peak.
"""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any, Final

from memwatch._torch.fake import fake_mode, reads_values
from memwatch._torch.lookup import require_known_torch
from memwatch.device_names import is_host
from memwatch.fit.live_bytes import device_of
from memwatch.fit.program_trial import ProgramTrial
from memwatch.fit.result import Fit, ways_table
from memwatch.fit.search import Search
from memwatch.fit.trial import EstimatedTrial, LiveTrial, is_estimate
from memwatch.fit.way import expressions_of, variables_of
from memwatch.heap.frames import read_locals
from memwatch.kinds.fit import Kind
from memwatch.planner.plan import BudgetError
from memwatch.progress import working
from memwatch.report.facts import bytes_by, peak_instant
from memwatch.sizes import format_bytes, parse_bytes
from memwatch.way_lines import LOADED, UNSAVED
from memwatch.words import fit as words
from memwatch.words.storages import short_op
from memwatch.words.ways import PLACE_IN

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import pandas as pd
    from torch import nn

    from memwatch.fit.trial import Measurement
    from memwatch.fit.way import Expressions
    from memwatch.private_files import PrivateFiles
    from memwatch.reading import Reading


_PARTS: Final = 3  # categories that an error of the budget names, the largest first; a guess


def fit(
    step: Callable[[], Any],
    model: nn.Module,
    limit: int | float | str,
    *,
    ways: Collection[str] | None = None,
    quiet: bool = False,
) -> Fit:
    """Find, measure and keep the fastest way to train a model within a limit of memory.

    The limit covers all tensors that are alive on the model's device at once: parameters, gradients, optimizer state,
    activations, workspace, and all other tensors of the process on that device. Each way runs some steps from the same
    state, and the allocator's own events measure them. Afterwards parameters, buffers, gradients, optimizers,
    schedulers, random generators, and the lists, dictionaries and variables that `step` can reach are restored, bit
    for bit.

    Under a FakeTensorMode, or if every way runs out of memory, nothing can be measured. Then peaks are estimated, and
    ways are compared by their operations.

    Args:
        step: does one whole training step of the model: forward, backward, optimizer. It should do the same work each
            time. If it reads an iterator that cannot be set back, each trial gets new data, and a note reports it.
        model: the model.
        limit: the limit, in bytes or as text such as ``"8 GiB"``.
        ways: kinds of ways to try: `"foreach"`, `"gradients"`, `"step_in_backward"`, `"checkpoint"`, `"chain"`,
            `"policy"`, `"backend"`, `"offload"`, `"fused"`, `"loss_in_parts"`, `"autocast"`; None tries
            all.
        quiet: do not print the table.

    Returns:
        The result; the way is active until `undo()`.

    Raises:
        BudgetError: no tried way stays within the limit; the message names the obstacle. Everything is restored.
            `.best` is the measurement of the way with the lowest peak; None if no way could run.
        OptionError: one of `ways` does not exist.
        MemwatchError: the model has no parameters, or another profiler holds the allocator's events.
        SizeError: the limit is not a size.
    """
    require_known_torch()
    limit_bytes, kinds = parse_bytes(limit), Kind.chosen(ways)
    trial_class = EstimatedTrial if is_estimate(model) else LiveTrial
    trial: LiveTrial | EstimatedTrial = trial_class(step, model, device_of(model))
    search, kept = _searched_or_estimated(trial, step, limit_bytes, kinds)
    # the caller's variables name the model and the optimizers in the code
    names = expressions_of([read_locals(sys._getframe(1)), *variables_of(step)], model, trial.optimizers)
    notes = _notes(search, kept, trial.device)
    if trial.state.moving:
        notes.insert(0, words.NOT_RESTORED.format(names=", ".join(sorted(set(trial.state.moving)))))
    found = Fit(
        limit_bytes,
        trial.device,
        ways_table(search, kept, limit_bytes),
        code=_code(kept, names),
        plan=kept.way.plan,
        notes=notes,
        applied=trial.apply(kept.way),
    )
    if not quiet:
        sys.stdout.write(found.summary())
    trial.state.restore_random_states()
    return found


def fit_program(
    load: Callable[[], Callable[[], None]],
    limit: int | float | str,
    *,
    steps: int | None = None,
    ways: Collection[str] | None = None,
    files: PrivateFiles | None = None,
    plan_path: str | None = None,
    print_line: Callable[[str], object] = lambda line: None,
) -> Fit:
    """Return the fastest way to run a training script within a limit; each way is tried in a run of its beginning.

    Args:
        load: makes the process look as if Python had just started on the program, and returns the program.
        limit: the limit, in bytes or as text such as ``"8 GiB"``.
        steps: steps of the optimizer after which a run is ended; None for 3, or 2 if the program makes no more.
        ways: kinds of ways to try; see `fit`.
        files: keeps the script's changes away from the user's files; None lets the script write.
        plan_path: the file to which the caller saves the plan, if the way has one. The lines load it from there.
        print_line: called with the result of each run, as soon as it has ended.

    Returns:
        The result. The process stays unchanged.

    Raises:
        BudgetError: no way that was tried stays within the limit.
        MemwatchError: the program trained no model with an optimizer of torch, or made too few steps.
    """
    require_known_torch()
    limit_bytes, kinds = parse_bytes(limit), Kind.chosen(ways)
    trial = ProgramTrial(load, steps, files, print_line)
    search, kept = _searched(trial, limit_bytes, kinds, print_line)
    notes = _notes(search, kept, trial.device)
    if files is not None:
        notes += words.files_dropped(files.drop_changes())
    return Fit(
        limit_bytes,
        trial.device,
        ways_table(search, kept, limit_bytes),
        code=_code(kept, trial.names, plan_path),
        plan=kept.way.plan,
        notes=notes,
    )


def _searched_or_estimated(
    trial: LiveTrial | EstimatedTrial, step: Callable[[], Any], limit_bytes: int, kinds: set[Kind]
) -> tuple[Search, Measurement]:
    """Search by running steps. If none of them has enough memory, search with fake tensors."""
    try:
        return _searched(trial, limit_bytes, kinds)
    except BudgetError as not_reachable:
        some_way_ran = not_reachable.best is not None
        if some_way_ran or not isinstance(trial, LiveTrial):
            raise
        try:
            estimated = _estimated(trial, step, limit_bytes, kinds)
        except BudgetError:
            raise
        except Exception as estimate_error:
            raise not_reachable from estimate_error  # both errors are shown
        if estimated is None:
            raise
        return estimated


def _estimated(
    trial: LiveTrial, step: Callable[[], Any], limit_bytes: int, kinds: set[Kind]
) -> tuple[Search, Measurement] | None:
    """Search with fake tensors, because no way could run. Return None for a step that reads values of tensors."""
    try:
        with fake_mode():
            return _searched(EstimatedTrial(step, trial.model, trial.device), limit_bytes, kinds)
    except reads_values():
        return None


def _code(kept: Measurement, names: Expressions, plan_path: str | None = None) -> str:
    """Return the lines for the program. If the way has a plan, the lines load it from a file."""
    lines = kept.way.code(names)
    if kept.way.plan is not None:
        comment = UNSAVED if plan_path is None else ""
        lines = LOADED.format(path=plan_path or "step.plan", comment=comment) + lines
    return f"{PLACE_IN.format(function=names.function)}\n{lines}" if names.function and lines else lines


def _searched(
    trial: LiveTrial | EstimatedTrial | ProgramTrial,
    limit_bytes: int,
    kinds: set[Kind],
    print_line: Callable[[str], object] = lambda line: None,
) -> tuple[Search, Measurement]:
    begun, ended = itertools.count(1), itertools.count(1)
    with working("memwatch fit") as say:
        search = Search(
            trial,
            limit_bytes,
            kinds,
            lambda run: say(f"{next(begun)}: {run}"),
            lambda outcome: print_line(words.RUN.format(number=next(ended), outcome=outcome)),
        )
        kept = search.run()
    if kept is None:
        raise _not_reachable(trial, search, limit_bytes)
    return search, kept


def _not_reachable(
    trial: LiveTrial | EstimatedTrial | ProgramTrial, search: Search, limit_bytes: int
) -> BudgetError:
    lowest = search.lowest
    failures = [each.failure for each in search.tried if each.failure]
    failed = words.FAILED_WAYS.format(count=len(failures), failures="; ".join(dict.fromkeys(failures)))
    if lowest is None or lowest.peak_bytes is None:
        text = words.OUT_OF_MEMORY.format(tried=len(search.tried), device=trial.device)
        return BudgetError((text, failed) if failures else text, None, 0)
    text = words.TOO_LARGE.format(
        limit=format_bytes(limit_bytes), device=trial.device, tried=words.count_of_ways(len(search.tried)),
        lowest=format_bytes(lowest.peak_bytes), way=lowest.way.name,
    )  # fmt: skip
    error = BudgetError(text, lowest, lowest.baseline_bytes).because(failed if failures else "")
    for why in search.untried:
        error = error.because(why)
    # if memory of earlier runs is still alive, a recording would count it as memory of its run
    if trial.left_bytes:
        return error
    return error.because(_obstacle(trial.recorded(lowest.way), lowest, limit_bytes))


def _obstacle(reading: Reading, lowest: Measurement, limit_bytes: int) -> str:
    """Return the reason why even the lowest way does not fit.

    It is the memory from before the step, the optimizer, the workspace of an op, or else the storages at the peak.

    Args:
        reading: the recording of a step in the lowest way.
        lowest: the measurement of that way.
        limit_bytes: the limit.
    """
    at = peak_instant(reading)
    bytes_by_category = bytes_by(reading.at_peak, "category")["nbytes"]
    baseline = format_bytes(reading.baseline_bytes)
    if reading.baseline_bytes > limit_bytes:
        rows = reading.storages
        before = rows[rows["counted"] & (rows["birth_event"] < 0)]  # alive when the recording began
        return words.BASELINE.format(
            baseline=baseline, parts=_largest(bytes_by(before, "category")["nbytes"])
        )
    if at.phase == "optimizer":
        increase = format_bytes(reading.peak_bytes - reading.baseline_bytes)
        return words.OPTIMIZER.format(increase=increase, baseline=baseline)
    workspace = int(bytes_by_category.get("workspace", 0))
    if lowest.peak_bytes is not None and lowest.peak_bytes - workspace <= limit_bytes and workspace:
        return words.WORKSPACE.format(op=short_op(at.op_name), workspace=format_bytes(workspace))
    return words.ACTIVATIONS.format(op=short_op(at.op_name) or "the step", parts=_largest(bytes_by_category))


def _largest(bytes_by_category: pd.Series[int]) -> str:
    largest = bytes_by_category.head(_PARTS)
    return ", ".join(f"{category} {format_bytes(int(nbytes))}" for category, nbytes in largest.items())


def _notes(search: Search, kept: Measurement, device: str) -> list[str]:
    program_fits = len(search.tried) == 1
    found = [words.ESTIMATED] if kept.is_estimate else []
    if search.is_repeatable is False:
        found.append(words.NOT_COMPARED)
    elif search.is_bitwise(kept) is False:
        found.append(words.NOT_BITWISE)
    if search.is_disturbed:
        found.append(words.DISTURBED)
    if not program_fits:
        if is_host(device) and not kept.is_estimate:
            found.append(words.NOT_OFFERED_ON_HOST)
        found += search.untried
    if not_needed := search.not_needed(kept):
        found.append(not_needed)
    return found
