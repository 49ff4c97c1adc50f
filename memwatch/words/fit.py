"""The words for ways to fit a step into a limit: what each changes, and the lines of Python that apply it.

The lines are templates. What they say is what memwatch runs when it measures a way, so they do what was measured.
"""

from __future__ import annotations

from typing import Final

PLAIN: Final = "the program itself"

CHANGES: Final[dict[str, str]] = {
    "plain": "nothing",
    "foreach": "one parameter is updated at a time",
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
    "gradients": "gradients freed early",
    "checkpoint": "checkpoint {blocks} of {of} blocks",
    "chain": "checkpoint {name} in {segments} segments",
    "offload": "offload {blocks} of {of} blocks",
    "backend": "compile backend, {budget}",
    "policy": "selective checkpoint, {budget}",
}
"""A way in a few words, by kind."""

FIRST_AND_LAST: Final = "{first} ... {last}"
"""Modules by name, from the first to the last of them."""

LINES: Final[dict[str, str]] = {
    "foreach": """\
for group in {optimizer}.param_groups:
    group["foreach"] = False
""",
    "gradients": """\
{optimizer}.register_step_post_hook(lambda optimizer, *_: optimizer.zero_grad())
""",
    "checkpoint": """\
from functools import partial
from torch.utils.checkpoint import checkpoint

for name in {names}:
    block = {model}.get_submodule(name)
    block.forward = partial(checkpoint, block.forward, use_reentrant=False)
""",
    "checkpoint, buffers": """\
from contextlib import contextmanager, nullcontext
from functools import partial
from torch.utils.checkpoint import checkpoint

@contextmanager
def same_buffers(block):  # to compute a block again does not update its buffers again
    before = [(buffer, buffer.clone()) for buffer in block.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.data.copy_(value)

for name in {names}:
    block = {model}.get_submodule(name)
    contexts = lambda block=block: (nullcontext(), same_buffers(block))
    block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=contexts)
""",
    "chain": """\
from functools import partial
from torch.utils.checkpoint import checkpoint_sequential

chain = {model}.get_submodule({name!r})
chain.forward = partial(checkpoint_sequential, list(chain), {segments}, use_reentrant=False)
""",
    "offload": """\
from functools import partial
from torch.autograd.graph import save_on_cpu

def offloaded(forward, *args, **kwargs):
    with save_on_cpu(pin_memory=True):
        return forward(*args, **kwargs)

for name in {names}:
    block = {model}.get_submodule(name)
    block.forward = partial(offloaded, block.forward)
""",
    "policy": """\
import memwatch

memwatch.apply_plan({model}, plan)
""",
    "backend": """\
import memwatch

{model}.compile(backend="memwatch", options={options!r})
""",
}
"""Lines that apply a way, by kind."""

LOADED: Final = """\
from memwatch.planner.plan import load_plan

plan = load_plan("step.plan")  # the file that fit.plan.save("step.plan") writes
"""
"""Lines that come before those of a way that applies a plan."""

NOT_OFFERED_ON_HOST: Final = (
    "offload is not offered: the model is on the host, where what is saved lies already"
)
NOT_RESTORED: Final = (
    "the step takes from {names}, which cannot be set back: each trial had the next data, "
    "and so will the program"
)
NOT_COMPARED: Final = "the plain step does not give the same results twice, so results are not compared"
NOT_BITWISE: Final = "the way that is kept gives results that differ from the plain step's in some bits"
ESTIMATED: Final = (
    "planned from an estimate: peaks are of tensors without memory, and nothing was run or timed"
)

TOO_LARGE: Final = (
    "a limit of {limit} on {device} is not reachable: the lowest of {tried} is {lowest} ({way})"
)
BASELINE: Final = "{baseline} are alive before the step begins ({parts})"
OPTIMIZER: Final = "the peak is in the optimizer's step, which has {increase} above the {baseline} of before"
WORKSPACE: Final = "at the peak one op, {op}, takes {workspace} of workspace"
ACTIVATIONS: Final = "at the peak, in {op}, are {parts}"
OUT_OF_MEMORY: Final = "each of the {tried} ways that were tried ran out of memory on {device}"
