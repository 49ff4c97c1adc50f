"""The lines of Python that apply a way, as templates by kind.

memwatch runs these very lines when it measures a way, so pasted lines do the same as in the measurement.
"""

from __future__ import annotations

from typing import Final

LINES: Final[dict[str, str]] = {
    "foreach": """\
for group in {optimizer}.param_groups:
    group["foreach"] = False
""",
    # a fused step needs Adam's counts of steps on the parameters' device; otherwise they are on the host
    "fused": """\
for group in {optimizer}.param_groups:
    group["fused"], group["foreach"] = True, None
    for parameter in group["params"]:
        if "step" in (state := {optimizer}.state.get(parameter, {{}})):
            state["step"] = state["step"].to(parameter.device)
""",
    # gc cannot see the hooks of a parameter. So a hook must not refer to the parameter, nor to the optimizer, which
    # holds it. Instead a copy of the optimizer steps for each parameter. The copy has no hooks, and schedulers do not
    # count its steps
    "step_in_backward": """\
import copy
import weakref
from functools import partial

def step_now(parameter, all_of_it, one, number):
    group = {{**all_of_it().param_groups[number], "params": [parameter]}}
    one.state, one.param_groups = all_of_it().state, [group]
    one.step()
    one.state, one.param_groups = {{}}, []
    parameter.grad = None  # so optimizer.step() does nothing

one = copy.copy({optimizer})
one.state, one.param_groups = {{}}, []
for number, group in enumerate({optimizer}.param_groups):
    for parameter in group["params"]:
        hook = partial(step_now, number=number, one=copy.copy(one))
        hook = partial(hook, all_of_it=weakref.ref({optimizer}))
        parameter.register_post_accumulate_grad_hook(hook)
""",
    # replaced until the process ends, for a model that is called in evaluation too
    "loss_in_parts": """\
import torch
from functools import partial
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

head = {model}.get_submodule({name!r})
logits_of, whole_loss = head.forward, functional.cross_entropy

def no_logits(hidden):  # the loss computes the logits, part by part
    return hidden if torch.is_grad_enabled() else logits_of(hidden)

def loss_of_part(hidden, target, options):
    return whole_loss(logits_of(hidden), target, reduction="sum", **options)

def loss_by_parts(hidden, target, *args, **options):
    if hidden.shape[-1] != head.in_features or not torch.is_grad_enabled():
        return whole_loss(hidden, target, *args, **options)  # of another head
    options = {{key: it for key, it in options.items() if it is not None}}
    reduction = options.pop("reduction", "mean")
    known = {{"ignore_index", "label_smoothing"}}
    if args or reduction == "none" or options.keys() - known:
        options["reduction"] = reduction
        return whole_loss(logits_of(hidden), target, *args, **options)
    loss_of = partial(checkpoint, loss_of_part, use_reentrant=False)
    parts = zip(hidden.chunk(8), target.chunk(8))
    total = sum(loss_of(*part, options) for part in parts)
    count = (target != options.get("ignore_index", -100)).sum()
    return total / count if reduction == "mean" else total

head.forward, functional.cross_entropy = no_logits, loss_by_parts
""",
    "sgd": """\
import torch

groups = [{{"params": group["params"]}} for group in {optimizer}.param_groups]
{optimizer} = torch.optim.SGD(groups, lr=0.01, momentum=0.9, foreach=False)
""",
    "adafactor": """\
import torch

groups = [{{"params": group["params"]}} for group in {optimizer}.param_groups]
{optimizer} = torch.optim.Adafactor(groups, lr=0.01, foreach=False)
""",
    # a part counts by its share of the samples, so the parts need not be equal
    "micro_batches": """\
def backward_in_parts(loss_of, *batch, parts={parts}):
    total = 0.0
    for part in zip(*(tensor.chunk(parts) for tensor in batch)):
        loss = loss_of(*part) * (len(part[0]) / len(batch[0]))
        loss.backward()
        total += loss.detach()
    return total

# loss_of stands for your forward and loss: write backward_in_parts(loss_of, inputs, targets)
# in place of loss_of(inputs, targets).backward()
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
    "in_place": """\
for name in {names}:
    {model}.get_submodule(name).inplace = True
""",
    "without_graph": """\
import torch

{model}.forward = torch.no_grad()({model}.forward)
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
    # not model.compile(): of a model that is one of torch's own containers it compiles nothing
    "backend": """\
import torch

{model}.forward = torch.compile({model}.forward, backend="memwatch", options={options!r})
""",
}
"""Lines that apply a way, by kind."""

LOADED: Final = """\
from memwatch.planner.plan import load_plan

plan = load_plan({path!r}){comment}
"""
"""Lines that come before those of a way that applies a plan."""
UNSAVED: Final = '  # the file that fit.plan.save("step.plan") writes'
"""The comment where you have to write the plan yourself."""
