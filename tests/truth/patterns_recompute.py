"""Checkpointed programs: what backward computes again has the line and the module of the forward that runs again."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)
from truth_facts import IN_FLIGHT, LIBRARY, RESULT, SAVED, UNNAMED, Fact, Ran, f32, pattern, var

import memwatch

ROWS, WIDTH, HIDDEN = 61, 48, 701


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        h = self.up(x)  # peak: up
        h = functional.gelu(h)  # peak: gelu
        return x + self.down(h)  # peak: down


HELD = rf"{SAVED}|checkpoint|recompute|{UNNAMED}"
RECOMPUTED = (
    Fact(f32(ROWS, HIDDEN), "recomputed", "up", HELD, r"blocks\.\d\.up|\d\.up", "addmm"),
    Fact(f32(ROWS, HIDDEN), "recomputed", "gelu", HELD, r"blocks\.\d|\d", "gelu$|gelu.default"),
    Fact(f32(ROWS, HIDDEN), "temporary", "gelu", f"{IN_FLIGHT}|{RESULT}", r"blocks\.\d|\d", "gelu_backward"),
    Fact(f32(ROWS, HIDDEN), "temporary", "down", f"{IN_FLIGHT}|{RESULT}", r"blocks\.\d\.down|\d\.down", "mm"),
    Fact(
        f32(ROWS, WIDTH),
        "activation|input|temporary|recomputed",
        "down|checkpoint batch|checkpoint loss",
        ".",
        r"blocks\.\d|\d|blocks\.\d\.down|\d\.down",
    ),
    Fact(
        f32(ROWS, WIDTH),
        "activation|input|temporary|recomputed",
        "down|checkpoint batch|checkpoint loss|up",
        ".",
    ),
    Fact(f32(ROWS, WIDTH), "temporary", "up", f"{IN_FLIGHT}|{RESULT}", r"blocks\.\d\.up|\d\.up"),
)


class Stack(nn.Module):
    def __init__(self, run):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.run = run

    def forward(self, x):
        for block in self.blocks:
            x = self.run(block, x)
        return x


def train(net):
    with memwatch.profile() as prof:
        for _ in range(2):
            x = torch.randn(ROWS, WIDTH, requires_grad=True)  # peak: checkpoint batch
            net(x).pow(2).mean().backward()  # peak: checkpoint loss
            net.zero_grad()
            del x
            prof.step()
    return Ran(prof, {"net": net})


@pattern(*RECOMPUTED)
def checkpoint_without_reentry():
    return train(Stack(lambda block, x: checkpoint(block, x, use_reentrant=False)))


@pattern(*RECOMPUTED)
def checkpoint_with_reentry():
    return train(Stack(lambda block, x: checkpoint(block, x, use_reentrant=True)))


def keep_products(context, op, *args, **kwargs):
    saves = op is torch.ops.aten.addmm.default
    return CheckpointPolicy.MUST_SAVE if saves else CheckpointPolicy.PREFER_RECOMPUTE


@pattern(
    Fact(
        f32(ROWS, HIDDEN),
        "activation|held|temporary",
        "up",
        rf"{HELD}|saved|kept",
        r"blocks\.\d\.up",
        "addmm",
    ),
    *RECOMPUTED[1:],
)
def checkpoint_that_selects():
    contexts = functools.partial(create_selective_checkpoint_contexts, keep_products)
    return train(Stack(lambda block, x: checkpoint(block, x, use_reentrant=False, context_fn=contexts)))


def nested(block, x):
    inner = lambda y: checkpoint(block, y, use_reentrant=False)  # noqa: E731
    return checkpoint(inner, x, use_reentrant=False)


@pattern(*RECOMPUTED)
def checkpoint_nested():
    return train(Stack(nested))


@pattern(*RECOMPUTED)
def checkpoint_sequentially():
    net = nn.Sequential(*(Block() for _ in range(4)))
    ran = train(lambda_module(net))
    return Ran(ran.prof, {"net": net})


def lambda_module(net):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = net

        def forward(self, x):
            return checkpoint_sequential(self.blocks, 4, x, use_reentrant=False)

    return Outer()


@pattern(*RECOMPUTED)
def checkpoint_wrapper_around_blocks():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    net = Stack(lambda block, x: block(x))
    net.blocks = nn.ModuleList(map(checkpoint_wrapper, net.blocks))
    return train(net)


def part(x, weight):
    h = x @ weight  # peak: part product
    return h.sigmoid()  # peak: part sigmoid


@pattern(
    Fact(
        f32(2003, 97),
        "activation|temporary|recomputed",
        "part sigmoid",
        HELD + f"|{var('y')}",
        op="sigmoid.default",
    ),
    Fact(
        f32(2003, 97),
        "recomputed|temporary",
        "part product",
        f"{UNNAMED}|{RESULT}|{var('h', 'part')}",
        op="mm",
    ),
    Fact(
        f32(2003, 97),
        "temporary|activation",
        "part product|part sigmoid|part loss",
        f"{IN_FLIGHT}|{RESULT}|{SAVED}|{UNNAMED}",
    ),
    Fact(f32(2003, WIDTH), "input|held|activation|temporary", "part input", f"{SAVED}|{var('x')}|checkpoint"),
    Fact(
        f32(WIDTH, 97),
        "parameter|input|held|temporary",
        "part weight",
        f"{SAVED}|{var('weight')}|checkpoint|parameter",
    ),
)
def checkpoint_of_a_function_whose_local_is_dead():
    with memwatch.profile() as prof:
        weight = torch.randn(WIDTH, 97, requires_grad=True)  # peak: part weight
        for _ in range(2):
            x = torch.randn(2003, WIDTH)  # peak: part input
            y = checkpoint(part, x, weight, use_reentrant=False)
            y.pow(2).mean().backward()  # peak: part loss
            weight.grad = None
            del x, y
    return Ran(prof)


@pattern(
    *(
        Fact(
            f32(8, 32, size),
            "recomputed",
            f"train llama|{LIBRARY}",
            HELD,
            r"model\.layers\.\d.*",
            "(?<!backward).default$",
        )
        for size in (211,)
    ),
    *(
        Fact(
            f32(8, 32, size),
            "temporary",
            f"train llama|{LIBRARY}",
            f"{IN_FLIGHT}|{RESULT}|{UNNAMED}",
            r"model\.layers\.\d.*",
        )
        for size in (211,)
    ),
)
def llama_with_gradient_checkpointing():
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=89, hidden_size=32, intermediate_size=211, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    net = transformers.LlamaForCausalLM(config).train()
    net.gradient_checkpointing_enable()
    tokens = torch.randint(3, 89, (8, 32))
    with memwatch.profile() as prof:
        for _ in range(2):
            net(input_ids=tokens, labels=tokens).loss.backward()  # peak: train llama
            net.zero_grad()
            prof.step()
    return Ran(prof, {"net": net})
