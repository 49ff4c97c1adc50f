"""Checkpointed programs: recomputed memory has the line and the module of the forward that runs again."""

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
from truth_facts import GRAD, GRADIENT, LIBRARY, RESULT, SAVED, UNNAMED, Fact, Ran, f32, pattern, var

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


TAKEN = r"a selective checkpoint|whose region took the saved result"
HELD = rf"{SAVED}|checkpoint|recompute|{UNNAMED}"


def recomputed(selected=False):
    """Facts about a stack of checkpointed blocks, in the backward of one of them."""
    up = ("activation", TAKEN) if selected else ("recomputed", HELD)
    block = r"(blocks\.)?\d"
    return (
        Fact(f32(ROWS, HIDDEN), up[0], "up", up[1], rf"{block}\.up", "addmm"),
        Fact(f32(ROWS, HIDDEN), "recomputed", "gelu", HELD, block, "gelu.default"),
        Fact(f32(ROWS, HIDDEN), "temporary", "gelu", GRADIENT, block, "gelu_backward"),
        Fact(f32(ROWS, HIDDEN), "temporary", "down", GRADIENT, rf"{block}\.down", "mm.default"),
        Fact(
            f32(ROWS, WIDTH),
            "activation|input|recomputed",
            "down",
            rf"{SAVED}|checkpoint|kept",
            block,
            "add.Tensor",
        ),
        Fact(
            f32(ROWS, WIDTH),
            "activation|input",
            "checkpoint batch",
            rf"{SAVED}|checkpoint|{var('x')}",
            op="randn",
        ),
        Fact(
            f32(ROWS, WIDTH),
            "temporary|recomputed",
            "down",
            rf"{GRADIENT}|{HELD}",
            rf"{block}\.down",
            "addmm",
        ),
        Fact(
            f32(ROWS, WIDTH),
            "temporary",
            "checkpoint loss|down|up",
            rf"{GRADIENT}|`\*args`, argument of `_engine_run_backward`",  # of a nested backward: reentrant
            rf"{block}(\.up|\.down)?|",
            "mm.default|add.Tensor|mul|div|pow|expand",
        ),
        Fact(f32(HIDDEN, WIDTH), "gradient", "up", GRAD, rf"{block}\.up", "mm.default"),
        Fact(f32(HIDDEN, WIDTH), "gradient", "down", GRAD, rf"{block}\.down", "mm.default"),
        Fact(f32(HIDDEN, WIDTH), "temporary", "up", RESULT, rf"{block}\.up", "mm.default"),
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


@pattern(*recomputed())
def checkpoint_without_reentry():
    return train(Stack(lambda block, x: checkpoint(block, x, use_reentrant=False)))


NESTED_BACKWARD = "a checkpoint, w(hose region ran again|hich was given it as the gradient)"
"""The function that a reentrant checkpoint calls with its recomputed outputs and their gradients."""


@pattern(
    *recomputed(),
    Fact(f32(ROWS, WIDTH), "recomputed", "down", NESTED_BACKWARD, r"blocks\.\d", "add.Tensor", most=1),
    Fact(f32(ROWS, WIDTH), "temporary", "up", NESTED_BACKWARD, r"blocks\.\d\.up", "add.Tensor", most=1),
)
def checkpoint_with_reentry():
    return train(Stack(lambda block, x: checkpoint(block, x, use_reentrant=True)))


@pattern(
    Fact(f32(ROWS, WIDTH), "temporary", "region batch", var("x"), op="randn"),
    Fact(f32(ROWS, WIDTH), "input", "given to a region", "a running checkpoint, which keeps it", op="tanh"),
    Fact(f32(ROWS, HIDDEN), "temporary", "given to a region", f"{RESULT}|`input`|{UNNAMED}", "[01]"),
)
def input_of_a_region_in_no_variable():
    region = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))
    with torch.no_grad(), memwatch.profile() as prof:
        for _ in range(2):
            x = torch.randn(ROWS, WIDTH)  # peak: region batch
            checkpoint(region, x.tanh(), use_reentrant=True)  # peak: given to a region
    return Ran(prof, {"region": region})


def keep_products(context, op, *args, **kwargs):
    saves = op is torch.ops.aten.addmm.default
    return CheckpointPolicy.MUST_SAVE if saves else CheckpointPolicy.PREFER_RECOMPUTE


@pattern(*recomputed(selected=True))
def checkpoint_that_selects():
    contexts = functools.partial(create_selective_checkpoint_contexts, keep_products)
    return train(Stack(lambda block, x: checkpoint(block, x, use_reentrant=False, context_fn=contexts)))


def nested(block, x):
    inner = lambda y: checkpoint(block, y, use_reentrant=False)  # noqa: E731
    return checkpoint(inner, x, use_reentrant=False)


@pattern(*recomputed())
def checkpoint_nested():
    return train(Stack(nested))


@pattern(*recomputed())
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


@pattern(*recomputed())
def checkpoint_wrapper_around_blocks():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    net = Stack(lambda block, x: block(x))
    net.blocks = nn.ModuleList(map(checkpoint_wrapper, net.blocks))
    return train(net)


def part(x, weight):
    h = x @ weight  # peak: part product
    s = h.sigmoid()  # peak: part sigmoid
    return s * s  # peak: part square


@pattern(
    Fact(f32(2003, 97), "recomputed", "part sigmoid", HELD, op="sigmoid.default"),
    Fact(f32(2003, 97), "temporary", "part square", f"{var('y')}|{GRADIENT}", op="mul.Tensor"),
    Fact(f32(2003, WIDTH), "activation|input", "part input", f"{var('x')}|checkpoint"),
    Fact(
        f32(WIDTH, 97),
        "held|input|activation|temporary",
        "part weight",
        f"{SAVED}|{var('weight')}|checkpoint",
    ),
)
def checkpoint_of_a_function_whose_local_is_dead():
    with memwatch.profile() as prof:
        weight = torch.randn(WIDTH, 97, requires_grad=True)  # peak: part weight
        for _ in range(2):
            x = torch.randn(2003, WIDTH)  # peak: part input
            y = checkpoint(part, x, weight, use_reentrant=False)
            y.sum().backward()
            weight.grad = None
            del x, y
    return Ran(prof)


@pattern(
    *(
        Fact(
            f32(8, 32, 431),
            "recomputed",
            f"train llama|{LIBRARY}",
            HELD,
            rf"model\.layers\.\d\.mlp{child}",
            op,
        )
        for child, op in ((r"\.(gate|up)_proj", "mm"), (r"(\.act_fn)?", r"silu\.default"), ("", "mul"))
    ),
    Fact(
        f32(8, 32, 431), "temporary", f"train llama|{LIBRARY}", GRADIENT, r".*\.mlp\.down_proj", "mm", most=1
    ),
    Fact(f32(8, 32, 431), "temporary", f"train llama|{LIBRARY}", GRADIENT, r".*\.mlp", "mul", most=2),
    Fact(f32(8, 32, 431), "temporary", f"train llama|{LIBRARY}", GRADIENT, r".*\.mlp.*", "silu_backward"),
    Fact(
        f32(8, 32, 32),
        "activation",
        f"train llama|{LIBRARY}",
        "checkpoint",
        r"model\.embed_tokens",
        "embedding",
    ),
    Fact(f32(8, 32, 32), "temporary", f"train llama|{LIBRARY}", GRADIENT, r"model\.norm", "mul", most=1),
    *(
        Fact(f32(8, 32, 32), "recomputed", f"train llama|{LIBRARY}", HELD, rf"model\.layers\.\d{child}", op)
        for child, op in (
            (r"\.(input|post_attention)_layernorm", "mul"),
            (r"\.self_attn", "add|attention"),
            (r"\.self_attn\.[qkv]_proj", "mm"),
            ("", "add"),
        )
    ),
    *(
        Fact(
            f32(*shape),
            "gradient",
            f"train llama|{LIBRARY}",
            GRAD,
            r"lm_head|model\.(layers|embed).*",
            "mm|embed",
        )
        for shape in ((431, 32), (32, 431), (89, 32), (32, 32))
    ),
)
def llama_with_gradient_checkpointing():
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=89, hidden_size=32, intermediate_size=431, num_hidden_layers=2, num_attention_heads=4,
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
