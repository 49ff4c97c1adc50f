"""The words for ways to fit a step into a limit: what each is and changes, and what stands in the way."""

from __future__ import annotations

from typing import Final

PLAIN: Final = "the program itself"

CHANGES: Final[dict[str, str]] = {
    "plain": "nothing",
    "foreach": "one parameter is updated at a time",
    "fused": "one kernel updates a parameter, without temporaries",
    "gradients": "zero_grad() right after the optimizer's step",
    "checkpoint": "computes {which} again in the backward",
    "chain": "computes `{name}` again in the backward, part by part",
    "offload": "moves what {which} save to the host until the backward",
    "backend": "compiles the model and plans forward and backward",
    "policy": "computes what a plan names again in the backward",
}
"""What a way changes, by kind."""

NAMES: Final[dict[str, str]] = {
    "foreach": "foreach=False",
    "fused": "fused=True",
    "gradients": "gradients freed early",
    "checkpoint": "checkpoint {blocks} of {of} blocks",
    "chain": "checkpoint {name} in {segments} segments",
    "offload": "offload {blocks} of {of} blocks",
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
    "offload is not offered: the model is on the host, where what is saved lies already"
)
NOT_RESTORED: Final = (
    "the step takes from {names}, which cannot be set back: each trial had the next data, "
    "and so will the program"
)
NOT_COMPARED: Final = "the plain step does not give the same results twice, so results are not compared"
DISTURBED: Final = (
    "how long steps take is unsure, as other programs use the machine: "
    "a way that computes more was faster than the program"
)
NOT_BITWISE: Final = "the way that is kept gives results that differ from the plain step's in some bits"
ESTIMATED: Final = "planned from an estimate: peaks are without workspace, and no step was timed"

TOO_LARGE: Final = (
    "a limit of {limit} on {device} is not reachable: the lowest of {tried} ways is {lowest} ({way})"
)
BASELINE: Final = "{baseline} are alive before the step begins ({parts})"
OPTIMIZER: Final = "the peak is in the optimizer's step, which has {increase} above the {baseline} of before"
WORKSPACE: Final = "at the peak one op, {op}, takes {workspace} of workspace"
ACTIVATIONS: Final = "at the peak, in {op}, are {parts}"
OUT_OF_MEMORY: Final = "each of the {tried} ways that were tried ran out of memory on {device}"


def files_dropped(paths: list[str]) -> list[str]:
    """Say which changes of files a script made in vain; say nothing if it made none."""
    if not paths:
        return []
    files = paths[0] if len(paths) == 1 else f"{len(paths)} files, such as {paths[0]}"
    return [
        f"the script wrote or deleted {files}. memwatch dropped these changes, so your files are as before"
    ]
