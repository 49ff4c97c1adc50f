"""Thirteen training programs of many kinds, for the table of ways: each is models, optimizers and a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from budget_programs import LlamaBlock, Transformer, residual
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable


def _whole_backward(loss_of: Callable[..., Tensor], *batch: Tensor) -> None:
    loss_of(*batch).backward()


@dataclass
class Program:
    """What the lines of a way are about, and one step of the training.

    Attributes:
        model: the model.
        optimizers: its optimizers. The lines of a way may replace the first.
        step: one step of the training.
        backward: runs the loss of a batch, and its backward. The lines of a way may replace it.
    """

    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    step: Callable[[], object] = lambda: None
    backward: Callable[..., object] = _whole_backward


def _trained(
    model: nn.Module, loss_of: Callable[..., Tensor], *batch: Tensor, passes: int = 1, **options: bool
) -> Program:
    """Return the training of a model by AdamW.

    Args:
        model: the model.
        loss_of: its loss for some tensors, which have a row for each sample.
        batch: these tensors.
        passes: backward passes of a step, each with the whole batch.
        options: of the optimizer.
    """
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, **options)
    program = Program(model, [optimizer])
    del optimizer  # the lines of a way may replace it

    def step() -> None:
        program.optimizers[0].zero_grad()
        for _ in range(passes):
            program.backward(loss_of, *batch)
        program.optimizers[0].step()

    program.step = step
    return program


def _next_token(model: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda ids: functional.cross_entropy(model(ids).flatten(0, 1), ids.roll(-1, 1).flatten())


def gpt() -> Program:
    """A GPT with dropout."""
    model = Transformer(6, 128, dropout=0.1, causal=True)
    return _trained(model, _next_token(model), torch.randint(0, 128, (8, 96)))


def llama() -> Program:
    """Llama of transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=512, hidden_size=128, intermediate_size=384, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    ids = torch.randint(0, 512, (8, 128))
    return _trained(model, lambda ids: model(input_ids=ids, labels=ids).loss, ids)


def t5() -> Program:
    """T5 of transformers: an encoder and a decoder."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=512, d_model=128, d_kv=32, d_ff=256, num_layers=4, num_heads=4, decoder_start_token_id=0,
        use_cache=False,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config)
    ids, labels = torch.randint(0, 512, (8, 96)), torch.randint(0, 512, (8, 64))
    return _trained(model, lambda ids, labels: model(input_ids=ids, labels=labels).loss, ids, labels)


def vit() -> Program:
    """ViT of transformers."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=128, num_hidden_layers=6, num_attention_heads=4, intermediate_size=512, image_size=64,
        patch_size=8,
    )  # fmt: skip
    model = ViTForImageClassification(config)
    images, labels = torch.randn(16, 3, 64, 64), torch.randint(0, 2, (16,))
    return _trained(
        model, lambda images, labels: model(pixel_values=images, labels=labels).loss, images, labels
    )


class _Double(nn.Sequential):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__(
            nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(4, outside), nn.SiLU(),
            nn.Conv2d(outside, outside, 3, padding=1), nn.GroupNorm(4, outside), nn.SiLU(),
        )  # fmt: skip


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([_Double(3, 16), _Double(16, 32), _Double(32, 64)])
        self.middle = _Double(64, 64)
        self.up = nn.ModuleList([_Double(128, 32), _Double(64, 16), _Double(32, 16)])
        self.head = nn.Conv2d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.middle(x)
        for block in self.up:
            x = functional.interpolate(x, scale_factor=2)
            x = block(torch.cat([x, skips.pop()], 1))
        return self.head(x)


def unet() -> Program:
    """A U-Net with skips."""
    model, images = _UNet(), torch.randn(2, 3, 64, 64)
    return _trained(model, lambda images: functional.mse_loss(model(images), images), images)


def convolutions() -> Program:
    """Residual blocks with batch norm."""
    blocks = [residual(16, 16, 1), residual(16, 32, 2), residual(32, 32, 1), residual(32, 64, 2)]
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    )
    images, labels = torch.randn(8, 3, 48, 48), torch.randint(0, 10, (8,))
    return _trained(
        model, lambda images, labels: functional.cross_entropy(model(images), labels), images, labels
    )


class _GraphLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(2 * width, width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        messages = functional.relu(self.message(torch.cat([x[source], x[target]], -1)))
        gathered = torch.zeros_like(x).index_add(0, target, messages)
        return x + functional.relu(self.update(torch.cat([x, gathered], -1)))


class _GraphNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_GraphLayer(64) for _ in range(5))
        self.head = nn.Linear(64, 7)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, edges)
        return self.head(x)


def gnn() -> Program:
    """A graph network that passes messages."""
    model = _GraphNet()
    x, edges, labels = (
        torch.randn(1_000, 64),
        torch.randint(0, 1_000, (2, 4_000)),
        torch.randint(0, 7, (1_000,)),
    )
    return _trained(
        model, lambda x, edges, labels: functional.cross_entropy(model(x, edges), labels), x, edges, labels
    )


class _Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            *(nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()) for _ in range(5)),
            nn.Linear(64, 128),
        )
        self.discriminator = nn.Sequential(
            nn.Linear(128, 64),
            *(nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2)) for _ in range(4)),
            nn.Linear(64, 1),
        )


def gan() -> Program:
    """A generator and a discriminator, each with an optimizer."""
    model = _Gan()
    of_generator = torch.optim.Adam(model.generator.parameters(), lr=1e-3)
    of_discriminator = torch.optim.Adam(model.discriminator.parameters(), lr=1e-3)
    real = torch.randn(2_048, 128)

    def step() -> None:
        of_discriminator.zero_grad()
        fake = model.generator(torch.randn(2_048, 64))
        loss = functional.softplus(-model.discriminator(real)) + functional.softplus(
            model.discriminator(fake.detach())
        )
        loss.mean().backward()
        of_discriminator.step()
        of_generator.zero_grad()
        functional.softplus(-model.discriminator(fake)).mean().backward()
        of_generator.step()

    return Program(model, [of_generator, of_discriminator], step)


def accumulation() -> Program:
    """A GPT whose gradients are summed over four micro-batches."""
    model = Transformer(4, 128, causal=True)
    return _trained(model, _next_token(model), torch.randint(0, 128, (4, 96)), passes=4)


class _LowRank(nn.Module):
    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base, self.down = base, nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        base.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def lora() -> Program:
    """A Llama whose weights are frozen but for low-rank matrices."""
    model = nn.Sequential(
        nn.Embedding(256, 128), *(LlamaBlock(128) for _ in range(6)), nn.RMSNorm(128), nn.Linear(128, 256)
    )
    model.requires_grad_(requires_grad=False)
    for block in list(model)[1:7]:
        block.qkv, block.out = _LowRank(block.qkv, 8), _LowRank(block.out, 8)
    return _trained(model, _next_token(model), torch.randint(0, 256, (8, 128)))


def vocabulary() -> Program:
    """A small GPT with a large vocabulary: the logits are most of the peak."""
    body = Transformer(2, 64, causal=True)
    body.tokens, body.head = nn.Embedding(8_192, 64), nn.Linear(64, 8_192)
    return _trained(body, _next_token(body), torch.randint(0, 8_192, (4, 96)))


def optimizer_bound() -> Program:
    """A wide model with a small batch: parameters and the optimizer's state are most of the peak."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(6)))
    x = torch.randn(16, 512)
    return _trained(model, lambda x: functional.mse_loss(model(x), x), x, foreach=True)


class _Ratings(nn.Module):
    """A score for a user and an item."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(30_000, 64), nn.Embedding(10_000, 64)
        self.score = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return self.score(torch.cat([self.users(users), self.items(items)], dim=1)).squeeze(1)


def recommender() -> Program:
    """Large embeddings, of which each batch reads a few rows."""
    model = _Ratings()
    batch = torch.randint(0, 30_000, (512,)), torch.randint(0, 10_000, (512,)), torch.rand(512)
    return _trained(
        model, lambda users, items, rating: functional.mse_loss(model(users, items), rating), *batch
    )


PROGRAMS: dict[str, Callable[[], Program]] = {
    each.__name__: each
    for each in (
        gpt, llama, t5, vit, unet, convolutions, gnn, gan, accumulation, lora, vocabulary, optimizer_bound,
        recommender,
    )
}  # fmt: skip
