"""Networks that compute parts of themselves again in backward, in every way that torch has."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

WIDTH = 16
again = functools.partial(checkpoint, use_reentrant=False)
again_reentrant = functools.partial(checkpoint, use_reentrant=True)


class Block(nn.Module):
    """Three modules and an addition of its own, each on a line of its own; part of it runs without gradients."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        with torch.no_grad():
            scale = x.abs().amax()
        h = self.up(x)
        h = self.act(h)
        h = self.down(h)
        return (x + h / scale).tanh()


class Net(nn.Module):
    """Blocks that are run in any way, and a head."""

    def __init__(self, run):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 2)
        self.run = run

    def forward(self, x):
        for block in self.blocks:
            x = self.run(block, x)
        return self.head(x)


class Within(nn.Module):
    """Checkpoints a method and a lambda of its own: no module call begins in the region."""

    def __init__(self, run):
        super().__init__()
        self.block = Block()
        self.run = run

    def _middle(self, x):
        y = x.sin() * 2
        return self.block(y).exp()

    def forward(self, x):
        y = self.run(self._middle, x)
        return self.run(lambda z: z.cos().sigmoid(), y)


def _selected(ctx, op, *args, **kwargs):
    keep = op is torch.ops.aten.addmm.default
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


def selectively(block, x):
    """Run a block in a region whose policy saves the products."""
    return again(block, x, context_fn=functools.partial(create_selective_checkpoint_contexts, _selected))


def _nested(block, x):
    return again(lambda y: again(block, y).sin().exp(), x)


def _nested_reentrant(block, x):
    return again_reentrant(lambda y: again_reentrant(block, y).sin().exp(), x)


def _to_the_end(block, x):
    with set_checkpoint_early_stop(False):
        return again(block, x)


def _offloaded(block, x):
    def region(y):
        y = block(y)
        # the checkpoint's see none
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda kept: kept):
            y = y.exp()
        return y.cos()

    return again(region, x)


class Sequential(nn.Module):
    """Checkpoints its blocks in three segments; torch runs the last one plainly."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))

    def forward(self, x):
        return checkpoint_sequential(self.blocks, 3, x, use_reentrant=False)


def _wrapped(implementation):
    net = Net(lambda block, x: block(x))
    for index, block in enumerate(net.blocks):
        net.blocks[index] = checkpoint_wrapper(block, implementation)
    return net


def _llama():
    import transformers  # takes seconds, and one network needs it

    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2,
    )  # fmt: skip
    net = transformers.LlamaForCausalLM(config).train()
    net.gradient_checkpointing_enable()
    return net


VARIANTS = {
    "non-reentrant": lambda: Net(again),
    "reentrant": lambda: Net(again_reentrant),
    "selective": lambda: Net(selectively),
    "nested": lambda: Net(_nested),
    "nested and reentrant": lambda: Net(_nested_reentrant),
    "without early stop": lambda: Net(_to_the_end),
    "with hooks on saved tensors inside": lambda: Net(_offloaded),
    "methods and lambdas": lambda: Within(again),
    "methods and lambdas, reentrant": lambda: Within(again_reentrant),
    "checkpoint_sequential": Sequential,
    "checkpoint_wrapper": lambda: _wrapped(CheckpointImpl.NO_REENTRANT),
    "checkpoint_wrapper, reentrant": lambda: _wrapped(CheckpointImpl.REENTRANT),
    "HF gradient_checkpointing_enable": _llama,
}


def train(net):
    torch.manual_seed(0)
    if hasattr(net, "generate"):
        tokens = torch.randint(32, (2, 8))
        net(input_ids=tokens, labels=tokens).loss.backward()
    else:
        net(torch.randn(8, WIDTH, requires_grad=True)).sum().backward()


def places(ops):
    return list(zip(ops["name"], ops["module"], ops["line"], ops["function"], strict=True))


def train_plainly():
    net = Net(lambda block, x: block(x))
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(2):
        net(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
