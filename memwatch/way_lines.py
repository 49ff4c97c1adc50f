"""The lines of Python that apply a way, as templates by kind.

memwatch runs these very lines when it measures a way, so pasted lines do the same as in the measurement. They never
import torch as a whole: `import torch` in a function would hide the module from the lines above it there.

A program may copy or pickle its model after the lines (`copy.deepcopy`, `torch.save`). So a new forward is a `partial`
of a function and of objects that are copied too: the module, or its former forward. If a function found the module in
a variable, the copy would compute with the original's weights.
"""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_STEP_IN_BACKWARD: Final = """\
# does not work with gradient accumulation, clipping by the norm of all gradients, or GradScaler
def step_in_backward(optimizer):
    from copy import copy
    from functools import partial
    from weakref import ref

    def step_now(parameter, whole, one, number):
        group = {{**whole().param_groups[number], "params": [parameter]}}
        one.state, one.param_groups = whole().state, [group]
        one.step()
        one.state, one.param_groups = {{}}, []
        parameter.grad = None  # so optimizer.step() does nothing

    for number, group in enumerate(optimizer.param_groups):
FUSED        for parameter in group["params"]:
            if parameter.requires_grad:
                one = copy(optimizer)
                one.state, one.param_groups = {{}}, []
                hook = partial(step_now, whole=ref(optimizer), one=one, number=number)
                parameter.register_post_accumulate_grad_hook(hook)

step_in_backward({optimizer})
"""

LINES: Final[dict[str, str]] = {
    # these loops are in functions, because a program may have variables of the same names: a process group, say
    "foreach": """\
def without_foreach(optimizer):
    for group in optimizer.param_groups:
        group["foreach"] = False

without_foreach({optimizer})
""",
    # a fused step needs Adam's counts of steps on the parameters' device; otherwise they are on the host
    "fused": """\
def use_fused(optimizer):
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, None
        for parameter in group["params"]:
            if "step" in (state := optimizer.state.get(parameter, {{}})):
                state["step"] = state["step"].to(parameter.device)

use_fused({optimizer})
""",
    # for an optimizer that a library makes when the training begins: no line before it can name the optimizer
    "foreach, later": """\
from torch.optim.optimizer import register_optimizer_step_pre_hook

def without_foreach(optimizer, *_):
    for group in optimizer.param_groups:
        group["foreach"] = False

register_optimizer_step_pre_hook(without_foreach)  # runs before each step of any optimizer
""",
    "fused, later": """\
from torch.optim.optimizer import register_optimizer_step_pre_hook

def use_fused(optimizer, *_):
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, None

register_optimizer_step_pre_hook(use_fused)  # runs before each step of any optimizer
""",
    # gc cannot see the hooks of a parameter. So a hook must not refer to the parameter, nor to the optimizer, which
    # holds it. Instead a copy of the optimizer steps for each parameter. The copy has no hooks, and schedulers do not
    # count its steps
    "step_in_backward": _STEP_IN_BACKWARD.replace("FUSED", ""),
    "fused + step_in_backward": _STEP_IN_BACKWARD.replace(
        "FUSED",
        """\
        group["fused"], group["foreach"] = True, None
        for state in map(optimizer.state.get, group["params"]):
            if state and "step" in state:
                state["step"] = state["step"].to(group["params"][0].device)
""",
    ),
    # a tensor that stands for the logits: an op that only moves or leaves out rows moves rows of the hidden states, and
    # the cross entropy computes the logits part by part; any other op of the program gets real logits
    "loss_in_parts": """\
from functools import partial
from torch import Size, Tensor, cat, float32, is_grad_enabled
from torch._C import DisableTorchFunctionSubclass
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

class Logits(Tensor):  # keeps the hidden states and the head until something needs the logits
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with DisableTorchFunctionSubclass():
            return of_logits(function, args, kwargs or {{}})

def as_logits(hidden, head):
    logits = hidden.as_subclass(Logits)
    logits.head = head
    return logits

def of_logits(function, args, kwargs):
    logits, rest, name = args[0], args[1:], function.__name__
    if function is functional.cross_entropy and isinstance(logits, Logits):
        return loss_by_parts(logits.head, logits.as_subclass(Tensor), *rest, **kwargs)
    if isinstance(logits, Logits) and not kwargs:
        hidden, head, width = logits.as_subclass(Tensor), logits.head, logits.head.out_features
        sizes = rest[0] if rest and isinstance(rest[0], (tuple, list)) else rest
        shape = Size((*hidden.shape[:-1], width))
        if function == Tensor.shape.__get__ or name == "size":
            return shape[rest[0]] if rest else shape
        if name in ("view", "reshape") and sizes[-1:] in ((width,), [width]):
            return as_logits(getattr(hidden, name)(*sizes[:-1], head.in_features), head)
        if name == "flatten" and rest[1:] and rest[1] % hidden.dim() < hidden.dim() - 1:
            return as_logits(hidden.flatten(*rest), head)
        same = ("contiguous", "dim", "__get__", "__len__")  # as for the hidden states
        if name in same or (name == "float" and hidden.dtype == float32):
            result = function(hidden)
            has_rows = isinstance(result, Tensor) and result.shape == hidden.shape
            return as_logits(result, head) if has_rows else result
        if name == "__getitem__" and of_rows(rest[0], hidden.dim()):
            return as_logits(hidden[rest[0]], head)
    return function(*map(real_logits, args), **{{key: real_logits(it) for key, it in kwargs.items()}})

def real_logits(it):
    if isinstance(it, (tuple, list)):
        return (list if isinstance(it, list) else tuple)(map(real_logits, it))
    return it.head.whole(it.as_subclass(Tensor)) if isinstance(it, Logits) else it

def of_rows(index, dimensions):  # whether an index leaves the last dimension whole
    index = index if isinstance(index, tuple) else (index,)
    if any(isinstance(it, (Tensor, list)) or it is None for it in index):
        return len(index) == 1 and isinstance(index[0], Tensor) and index[0].dim() < dimensions
    return len(index) < dimensions and ... not in index or index[-1] in (slice(None), ...)

def loss_of_part(head, hidden, target, options):
    return functional.cross_entropy(head.whole(hidden), target, **options)

def loss_by_parts(head, hidden, target, *args, **options):
    if args[1:]:
        return functional.cross_entropy(head.whole(hidden), target, *args, **options)
    options.update(zip(("weight",), args))
    options = {{key: it for key, it in options.items() if it is not None}}
    reduction, weight = options.get("reduction", "mean"), options.get("weight")
    known = {{"ignore_index", "label_smoothing", "reduction", "weight"}}
    if hidden.dim() != 2 or target.is_floating_point() or options.keys() - known:
        return functional.cross_entropy(head.whole(hidden), target, **options)
    options["reduction"] = "none" if reduction == "none" else "sum"
    loss_of = partial(checkpoint, loss_of_part, use_reentrant=False)
    losses = [loss_of(head, *part, options) for part in zip(hidden.chunk(8), target.chunk(8))]
    if reduction != "mean":
        return cat(losses) if reduction == "none" else sum(losses)
    counted = target[target != options.get("ignore_index", -100)]
    return sum(losses) / (len(counted) if weight is None else weight[counted].sum())

def no_logits(head, hidden):
    return as_logits(hidden, head) if is_grad_enabled() else head.whole(hidden)

logits_head = {model}.get_submodule({name!r})
logits_head.whole = logits_head.forward
logits_head.forward = partial(no_logits, logits_head)
""",
    "sgd": """\
from torch.optim import SGD

{optimizer} = SGD(
    [{{"params": group["params"]}} for group in {optimizer}.param_groups],
    lr=0.01, momentum=0.9, foreach=False,
)
""",
    "adafactor": """\
from torch.optim import Adafactor

{optimizer} = Adafactor(
    [{{"params": group["params"]}} for group in {optimizer}.param_groups],
    lr=0.01, foreach=False,
)
""",
    # a library that finds an optimizer in its place makes none
    "sgd, later": """\
from torch.optim import SGD

# a library makes its optimizer when the training begins. Trainer of transformers takes this one
# instead; other libraries may want it as an argument
{optimizer} = SGD({model}.parameters(), lr=0.01, momentum=0.9, foreach=False)
""",
    "adafactor, later": """\
from torch.optim import Adafactor

# a library makes its optimizer when the training begins. Trainer of transformers takes this one
# instead; other libraries may want it as an argument
{optimizer} = Adafactor({model}.parameters(), lr=0.01, foreach=False)
""",
    "sparse_gradients": """\
for name in {names}:
    {model}.get_submodule(name).sparse = True
""",
    # SparseAdam takes sparse gradients alone, so a second optimizer updates the embeddings, with the same options
    "sparse_adam": """\
from torch.optim import SparseAdam

tables = [*map({model}.get_submodule, {names})]
for table in tables:
    table.sparse = True
groups = []
for group in {optimizer}.param_groups:
    is_table = [any(it is table.weight for table in tables) for it in group["params"]]
    options = {{key: group[key] for key in ("lr", "betas", "eps", "maximize")}}
    groups.append({{**options, "params": [it for it, of in zip(group["params"], is_table) if of]}})
    group["params"] = [it for it, of in zip(group["params"], is_table) if not of]
of_tables = SparseAdam([group for group in groups if group["params"]])

def step_of_tables(*_):
    of_tables.step()
    of_tables.zero_grad()

{optimizer}.register_step_post_hook(step_of_tables)
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
    # a cross entropy is a mean over the targets that it does not ignore, and a part may have no such target
    "micro_batches, counted": """\
def backward_in_parts(loss_of, *batch, parts={parts}, ignore_index=-100):
    total, batch = 0.0, [tensor.chunk(parts) for tensor in batch]
    counts = [int((targets != ignore_index).sum()) for targets in batch[-1]]
    for count, *part in zip(counts, *batch):
        if count:
            loss = loss_of(*part) * (count / sum(counts))
            loss.backward()
            total += loss.detach()
    return total

# loss_of stands for your forward and loss: write backward_in_parts(loss_of, inputs, targets)
# in place of loss_of(inputs, targets).backward(). The targets come last, as your cross entropy
# gets them, and ignore_index is that of your cross entropy
""",
    "gradients": """\
{optimizer}.register_step_post_hook(lambda optimizer, *_: optimizer.zero_grad())
""",
    "gradients, later": """\
from torch.optim.optimizer import register_optimizer_step_post_hook

register_optimizer_step_post_hook(lambda optimizer, *_: optimizer.zero_grad())
""",
    "checkpoint": """\
from functools import partial
from torch.utils.checkpoint import checkpoint

for name in {names}:
    block = {model}.get_submodule(name)
    block.forward = partial(checkpoint, block.forward, use_reentrant=False)
""",
    # a forward may read a buffer that it writes, as a codebook, so the second one must begin with the former values.
    # Each call has its own copies: several calls may come before their backwards
    "checkpoint, buffers": """\
from contextlib import nullcontext
from functools import partial
from torch.utils.checkpoint import checkpoint

class FormerBuffers:  # a block that runs again begins with its former buffers, and does not update them again
    def __init__(self, block):
        self.former = [(buffer, buffer.data.clone()) for buffer in block.buffers()]

    def __enter__(self):
        self.latest = [(buffer, buffer.data.clone()) for buffer, _ in self.former]
        for buffer, value in self.former:
            buffer.data.copy_(value)

    def __exit__(self, *_):
        for buffer, value in self.latest:
            buffer.data.copy_(value)
        del self.latest

def contexts_of(block):
    return nullcontext(), FormerBuffers(block)

for name in {names}:
    block = {model}.get_submodule(name)
    contexts = partial(contexts_of, block)
    block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=contexts)
""",
    "in_place": """\
for name in {names}:
    {model}.get_submodule(name).inplace = True
""",
    "without_graph": """\
from functools import partial, update_wrapper
from torch import no_grad

def without_graph(forward, *args, **kwargs):
    with no_grad():
        return forward(*args, **kwargs)

{model}.forward = update_wrapper(partial(without_graph, {model}.forward), {model}.forward, ())
""",
    "unread_gradients": """\
# before an optimizer gets these parameters, call requires_grad_(True) for them
for name in {names}:
    {model}.get_submodule(name).requires_grad_(False)
""",
    "float32": """\
from torch import Tensor

def in_float32(module, args, kwargs):
    def single(it):
        return it.float() if isinstance(it, Tensor) and it.is_floating_point() else it
    return tuple(map(single, args)), {{key: single(it) for key, it in kwargs.items()}}

{model}.float()
{model}.register_forward_pre_hook(in_float32, with_kwargs=True)
""",
    # a library may ask for the signature of a model's forward, as trainers do: `update_wrapper` keeps it
    "autocast": """\
from functools import partial, update_wrapper
from torch import autocast, bfloat16

def in_bfloat16(forward, *args, **kwargs):
    with autocast({device!r}, bfloat16):
        return forward(*args, **kwargs)

for name in {names}:
    block = {model}.get_submodule(name)
    block.forward = update_wrapper(partial(in_bfloat16, block.forward), block.forward, ())
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
from torch import compile as compiled

{model}.forward = compiled({model}.forward, backend="memwatch", options={options!r})
""",
}
"""Lines that apply a way, by kind."""

LOADED: Final = """\
from memwatch.planner import load_plan

plan = load_plan({path!r}){comment}
"""
"""Lines that come before those of a way that applies a plan."""
UNSAVED: Final = '  # the file that fit.plan.save("step.plan") writes'
"""The comment where you have to save the plan to a file first."""


_LOOP: Final = "for name in {names}:\n"
_PARAGRAPHS: Final = re.compile(r"\n\n+(?=\S)")
"""What separates definitions: empty lines, if the next line is not indented."""


def of_blocks(
    key: str, model: str, names: Sequence[str], told: str = "", *, device: str = "", optimizer: str = ""
) -> str:
    """Return the lines of a change to blocks of a model. A single block needs no loop.

    Args:
        key: the change.
        model: the program's expression for the model.
        names: the names of the blocks within it; "" is the model itself.
        told: an expression for the names, by default a tuple of them.
        device: the kind of device, such as "cuda".
        optimizer: the program's expression for the optimizer.
    """
    template, block = LINES[key], ""
    if len(names) == 1 and _LOOP in template:
        block = f"{model}.get_submodule({names[0]!r})" if names[0] else model
        before, _, body = template.partition(_LOOP)
        template = before + textwrap.dedent(body).replace("{model}.get_submodule(name)", "{block}")
    return template.format(
        model=model, names=told or tuple(names), block=block, device=device, optimizer=optimizer
    )


def joined(parts: Iterable[str]) -> str:
    """Return the lines of several changes together; each import and each definition comes once."""
    seen: set[str] = set()
    kept = []
    for paragraph in _PARAGRAPHS.split("\n".join(parts).strip("\n")):
        if paragraph.partition(" ")[0] in ("def", "class"):
            lines = [] if paragraph in seen else [paragraph]
            seen.add(paragraph)
        else:
            lines = []
            for line in paragraph.splitlines():
                is_import = line.partition(" ")[0] in ("import", "from")
                if not (is_import and line in seen):
                    lines.append(line)
                seen.add(line)
        if lines:
            kept.append("\n".join(lines))
    return "\n\n".join(kept) + "\n" if kept else ""
