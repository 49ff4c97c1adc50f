"""The words for ways to fit a step into a limit: each way, its changes, and the obstacles."""

from __future__ import annotations

from typing import Final

PLAIN: Final = "the program itself"

CHANGES: Final[dict[str, str]] = {
    "plain": "nothing",
    "foreach": "one parameter is updated at a time",
    "fused": "one kernel updates a parameter, without temporaries",
    "gradients": "zero_grad() right after the optimizer's step",
    "step_in_backward": "each parameter is updated in the backward, and its gradient freed",
    "checkpoint": "computes {which} again in the backward",
    "chain": "computes `{name}` again in the backward, part by part",
    "offload": "moves what {which} save to the host until the backward",
    "loss_in_parts": "the cross entropy computes the logits of `{name}` part by part",
    "backend": "compiles the model and plans forward and backward",
    "policy": "recomputes the tensors that a plan names in the backward",
}
"""The changes of a way, by kind."""

NAMES: Final[dict[str, str]] = {
    "foreach": "foreach=False",
    "fused": "fused=True",
    "gradients": "gradients freed early",
    "step_in_backward": "step in backward",
    "checkpoint": "checkpoint {blocks} of {of} blocks",
    "chain": "checkpoint {name} in {segments} segments",
    "offload": "offload {blocks} of {of} blocks",
    "loss_in_parts": "loss in parts",
    "backend": "compile backend, {budget}",
    "policy": "selective checkpoint, {budget}",
}
"""A way in a few words, by kind."""

LIMIT: Final = "Limit {limit}"
FITS: Final = "Limit {limit}: the fastest way that fits is {way}, with a peak of {peak}"

NOT_MEASURED: Final = "not measured: see below"
FAILED: Final = "not measured: {ways}: {failure}"

FIRST_AND_LAST: Final = "{first} ... {last}"
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

TOO_LARGE: Final = (
    "a limit of {limit} on {device} is not reachable: the lowest of {tried} ways is {lowest} ({way})"
)
BASELINE: Final = "{baseline} are alive before the step begins ({parts})"
OPTIMIZER: Final = "the peak is in the optimizer's step, which adds {increase} to the {baseline} from before"
WORKSPACE: Final = "at the peak one op, {op}, takes {workspace} of workspace"
ACTIVATIONS: Final = "at the peak, in {op}, are {parts}"
OUT_OF_MEMORY: Final = "all {tried} ways ran out of memory on {device}"


def files_dropped(paths: list[str]) -> list[str]:
    """Return a sentence about the file changes that were dropped. The list is empty if there were none."""
    if not paths:
        return []
    files = paths[0] if len(paths) == 1 else f"{len(paths)} files, such as {paths[0]}"
    return [
        f"the script wrote or deleted {files}. memwatch dropped these changes, so your files are as before"
    ]
