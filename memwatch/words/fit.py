"""The words for ways to fit a step into a limit: each way, its changes, and the obstacles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_NAMES: Final = 2
"""Modules that a text names one by one. If there are more, it names the first and the last. A guess."""

PLAIN: Final = "the program itself"

MODULE: Final = "module"
MODULES: Final = "modules"
CHANGES: Final[dict[str, str]] = {
    "plain": "nothing",
    "foreach": "one parameter is updated at a time",
    "fused": "one kernel updates a parameter, without temporaries",
    "gradients": "zero_grad() right after the optimizer's step",
    "step_in_backward": "each parameter is updated in the backward, and its gradient freed",
    "checkpoint": "computes the {noun} again in the backward",
    "chain": "computes the module again in the backward, part by part",
    "offload": "moves what the {noun} saved to the host until the backward",
    "loss_in_parts": "the cross entropy computes the logits of `{name}` part by part",
    "autocast": "matrix products and convolutions of the model compute in bfloat16",
    "backend": "compiles the model, and plans forward and backward",
    "policy": "a plan chooses the tensors that the backward computes again",
}
"""The changes of a way, by kind."""

DETAILS: Final[dict[str, str]] = {
    "checkpoint": " {which}",
    "chain": " `{name}` in {segments} segments",
    "offload": " {which}",
    "loss_in_parts": " `{name}`",
    "backend": " (budget {budget})",
    "policy": " (budget {budget})",
}
"""The text that follows the kind in the name of a way."""

LIMIT: Final = "Limit {limit}"
FITS: Final = "Limit {limit}: the fastest way that fits is {way}, with a peak of {peak}"

GROWS: Final = (
    "But each step leaves {nbytes} more alive than the step before. If that goes on, every way exceeds the limit after "
    "more steps: `memwatch leaks` names what grows"
)
BEGINS: Final = (
    "fit runs the first {steps} optimizer steps of {program} once for each way, and some ways have several variants. "
    "A line follows for each run. For fewer runs, give --ways KIND,...; for shorter ones, --steps 2"
)
PROGRAM_HAS_FEWER_STEPS: Final = "the program makes {steps} optimizer steps, so each run ends after {steps}"
RUN: Final = "run {number}: {outcome}"
RUN_PEAK: Final = "{run}: peak {peak}"
RUN_STEP: Final = ", {duration} per step"
RUN_FITS: Final = ", which fits"
RUN_FAILED: Final = "{run} failed: {failure}"
WAY_FAILED: Final = "{run}: not measured; the reason follows at the end"
SCAN: Final = "what the modules save"
RECORDING: Final = "a recording of the program"
FOR_PLAN: Final = "a recording for a plan"
AGAIN: Final = "the program itself, once more"
"""The runs of a search that try no way."""

NOT_MEASURED: Final = "not measured: see below"
FAILED: Final = "{ways} not measured: {failure}"
LEGEND: Final = (
    "Step: the shortest measured step. Extra: its time beyond the program's own. Bitwise: whether the trained "
    "parameters equal the program's own in every bit. A way is named by its kinds, as --ways takes them (in Python: "
    "ways=)"
)
"""The line below the table."""

FIRST_AND_LAST: Final = "`{first}` ... `{last}` ({count} modules)"
"""Modules by name, from the first to the last of them."""

NOT_OFFERED_ON_HOST: Final = (
    "offload is not offered: the model is on the host, so saved tensors are already there"
)
NOT_RESTORED: Final = (
    "the step reads from {names}, which cannot be reset: each trial got the next data, "
    "and the program continues after them"
)
NOT_COMPARED: Final = (
    "two runs of the plain step give different results, so memwatch does not compare results"
)
DISTURBED: Final = (
    "the measured duration of a step is unreliable, because other programs use the machine: "
    "a way that computes more was faster than the plain program"
)
NOT_BITWISE: Final = "the way that is kept gives results that differ from the plain step's in some bits"
ESTIMATED: Final = "planned from an estimate: peaks leave out workspace, and steps were not timed"

UNTRIED: Final = "{kinds} not tried: {why}"
FAST_ENOUGH: Final = "{way} fits, and takes no more time than the program itself"
COMPUTES_MORE: Final = "{way} fits, and this would only compute more"
NO_BLOCKS: Final = "no module saves enough for the backward"
NO_CHAIN: Final = "no nn.Sequential of small layers saves enough for the backward"
CHAIN_WITH_BUFFERS: Final = (
    "its layers update buffers, such as running statistics, and would update them a second time"
)
NO_ROOM: Final = "more than the limit is alive before the step begins"
NOT_ESTIMATED: Final = "a plan needs a recording of a step with its values"
ROUNDS: Final = "the results would round differently, and a way with the program's own results fits"
LESS_PRECISION: Final = (
    "the model would compute in half precision, and a way with the program's precision fits"
)
NO_FUSED: Final = "an optimizer has no fused step, or uses it already"
NO_LOSS: Final = (
    "a recording shows no cross entropy whose logits nothing else reads and that would lower the peak"
)
NOT_RECORDED: Final = "no step of the program could be recorded"
NO_LISTS: Final = "the optimizers update one parameter at a time already, or in one kernel"
NO_GRADIENTS_WAIT: Final = "no gradients are alive when the model is called"
OPTIMIZER_IS_LATER: Final = (
    "a library makes the optimizer when the training begins, so no code before it can change it"
)
NO_GAIN: Final = "a recording shows that it would lower the peak by little, or not at all"
"""Why a kind of way was not tried."""
CHANGED_ARGUMENTS: Final = (
    "no checkpoint for {modules}: each puts new tensors into the {objects} that it is called with, and its forward "
    "would do so again in the backward. If the training does not need this object, leave it out (a cache of "
    "transformers: use_cache=False)"
)
GROWN_LISTS: Final = (
    "no checkpoint for {modules}: each adds new tensors to its own list ({lists}), and its forward would add them "
    "again in the backward. If it returns these tensors instead, it can be checkpointed"
)
CHANGED_ATTRIBUTES: Final = (
    "no checkpoint for {modules}: each changes its own attribute ({names}), and its forward would run again in the "
    "backward with the new value. Change the attribute outside forward, or keep it in a buffer and write the buffer in "
    "place, and they can be checkpointed"
)
NOT_NEEDED: Final = "no checkpoint for {modules}: the peak is within the limit without it"
FAILED_WAYS: Final = "{count} of them could not be measured ({failures})"

NO_STEPS: Final = (
    "the program made no step of an optimizer of torch{ending}; train with one, or call memwatch.fit(step, model, "
    "limit) in the program"
)
TOO_FEW_STEPS: Final = (
    "the program made {made} steps of an optimizer of torch{ending}, and {needed} are needed; {to_do}, or call "
    "memwatch.fit(step, model, limit) in the program"
)
FEWER_STEPS: Final = "give --steps {steps}"
MORE_STEPS: Final = "let it make at least {needed} steps"
EXITED: Final = " before it called sys.exit({code!r})"

TOO_LARGE: Final = (
    "fit found no way to keep a limit of {limit} on {device}: the lowest peak of {tried} is {lowest} ({way}). "
    "`memwatch summary` on a recording lists changes that fit does not try"
)
BASELINE: Final = "{baseline} are alive before the step begins ({parts})"
OPTIMIZER: Final = "the peak is in the optimizer's step, which adds {increase} to the {baseline} from before"
WORKSPACE: Final = "at the peak one op, {op}, takes {workspace} of workspace"
ACTIVATIONS: Final = "the largest parts of its peak, in {op}, are {parts}"
OUT_OF_MEMORY: Final = "all {tried} ways ran out of memory on {device}"


def count_of_ways(count: int) -> str:
    """Return how many ways were tried."""
    return "1 way" if count == 1 else f"{count} ways"


def modules_as_text(names: Sequence[str]) -> str:
    """Return names of modules: all of them, or the first, the last and the count."""
    if len(names) <= _MOST_NAMES:
        return ", ".join(f"`{name}`" for name in names)
    return FIRST_AND_LAST.format(first=names[0], last=names[-1], count=len(names))


def too_few_steps(made: int, uncounted: int, steps: int, least: int, exit_code: object) -> str:
    """Return that a program ended too early.

    Args:
        made: the steps that it made.
        uncounted: the steps that a run needs beside `--steps`.
        steps: `--steps`.
        least: the smallest `--steps`.
        exit_code: the argument of its `sys.exit`; None if it ended by itself.
    """
    ending = "" if exit_code is None else EXITED.format(code=exit_code)
    if not made:
        return NO_STEPS.format(ending=ending)
    needed = uncounted + steps
    enough = FEWER_STEPS.format(steps=made - uncounted) if made - uncounted >= least else None
    to_do = enough or MORE_STEPS.format(needed=needed)
    return TOO_FEW_STEPS.format(made=made, needed=needed, ending=ending, to_do=to_do)


def files_dropped(paths: list[str]) -> list[str]:
    """Return a sentence about the file changes that were dropped. The list is empty if there were none."""
    if not paths:
        return []
    files = paths[0] if len(paths) == 1 else f"{len(paths)} files, such as {paths[0]}"
    return [
        f"the script wrote or deleted {files}. memwatch dropped these changes, so your files are as before"
    ]
