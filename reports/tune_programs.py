"""Twenty programs whose batches differ in length or size, for the table of allocator settings.

They run on fake tensors, so each has the sizes of a real job: its tensors take 1 to 30 GiB.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import torch
from budget_programs import Experts, LlamaBlock
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

STEPS: Final = 12
_SEED: Final = 7


def _sizes(smallest: int, largest: int, count: int = STEPS) -> Iterator[int]:
    """Yield sizes that differ from batch to batch, the same in each run."""
    chance = random.Random(_SEED)
    return (chance.randint(smallest, largest) for _ in range(count))


def _ids(batch: int, length: int, vocabulary: int = 32_000) -> Tensor:
    return torch.randint(vocabulary, (batch, length), device="cuda")


def _train(model: nn.Module, losses: Callable[[nn.Module], Iterable[Tensor]], *, accumulate: int = 1) -> None:
    """Train a model with AdamW.

    Args:
        model: the model.
        losses: yields the loss of each batch.
        accumulate: batches for each step of the optimizer.
    """
    optimizer = torch.optim.AdamW(model.parameters())
    for number, loss in enumerate(losses(model), 1):
        loss.backward()
        del loss
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()


def _small_llama(**options: object) -> LlamaForCausalLM:
    config = LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16, **options
    )
    return LlamaForCausalLM(config).to("cuda")


def gpt2() -> None:
    """GPT-2 small on texts of up to 1,024 tokens."""
    _train(
        GPT2LMHeadModel(GPT2Config()).to("cuda"),
        lambda model: (model(i, labels=i).loss for i in (_ids(8, n) for n in _sizes(200, 1024))),
    )


def llama() -> None:
    """A Llama of 180 million parameters, one long document at a time."""
    _train(
        _small_llama(),
        lambda model: (model(i, labels=i).loss for i in (_ids(1, n) for n in _sizes(500, 4096))),
    )


def llama_bfloat16() -> None:
    """The same under autocast."""

    def losses(model: nn.Module) -> Iterator[Tensor]:
        for length in _sizes(500, 4096):
            with torch.autocast("cuda", torch.bfloat16):
                ids = _ids(2, length)
                yield model(ids, labels=ids).loss

    _train(_small_llama(), losses)


def llama_checkpointed() -> None:
    """The same with activation checkpointing."""
    model = _small_llama()
    model.gradient_checkpointing_enable()
    model.train()
    _train(model, lambda model: (model(i, labels=i).loss for i in (_ids(4, n) for n in _sizes(500, 4096))))


def llama_accumulated() -> None:
    """The same with four batches of different lengths for each step."""
    _train(
        _small_llama(),
        lambda model: (model(i, labels=i).loss for i in (_ids(1, n) for n in _sizes(300, 2048, 16))),
        accumulate=4,
    )


def bert() -> None:
    """BERT on batches that are padded to their longest text."""
    labels = torch.randint(2, (32,), device="cuda")
    _train(
        BertForSequenceClassification(BertConfig()).to("cuda"),
        lambda model: (model(_ids(32, n, 30_000), labels=labels).loss for n in _sizes(30, 512)),
    )


def t5() -> None:
    """T5 with sources and targets of different lengths."""
    model = T5ForConditionalGeneration(T5Config(num_layers=6, d_model=512, decoder_start_token_id=0)).to(
        "cuda"
    )
    lengths = list(zip(_sizes(50, 700), reversed(list(_sizes(10, 300))), strict=True))
    _train(
        model,
        lambda model: (model(_ids(16, n), labels=_ids(16, most)).loss for n, most in lengths),
    )


def whisper() -> None:
    """Whisper base: sound of one length, texts of many."""
    config = WhisperConfig(d_model=512, encoder_attention_heads=8, decoder_attention_heads=8)
    sound = torch.randn(16, 80, 3000, device="cuda")
    _train(
        WhisperForConditionalGeneration(config).to("cuda"),
        lambda model: (model(sound, labels=_ids(16, n, 50_000)).loss for n in _sizes(10, 440)),
    )


class _Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100_000, 512)
        self.layers = nn.LSTM(512, 1024, num_layers=2, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(2048, 50)

    def forward(self, ids: Tensor) -> Tensor:
        return self.tags(self.layers(self.words(ids))[0])


def lstm() -> None:
    """A tagger on sentences of different lengths."""
    _train(_Tagger().to("cuda"), lambda model: (model(_ids(64, n)).mean() for n in _sizes(10, 300)))


def _stage(inside: int, outside: int, stride: int = 2) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, stride, 1), nn.BatchNorm2d(outside), nn.ReLU(),
        nn.Conv2d(outside, outside, 3, 1, 1), nn.BatchNorm2d(outside), nn.ReLU(),
    )  # fmt: skip


def multi_scale() -> None:
    """A convolution net on images of a new size in each step."""
    model = nn.Sequential(
        _stage(3, 64), _stage(64, 128), _stage(128, 256), _stage(256, 512), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(512, 1000),
    )  # fmt: skip
    _train(
        model.to("cuda"),
        lambda model: (model(torch.randn(64, 3, n, n, device="cuda")).mean() for n in _sizes(128, 480)),
    )


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.down, self.deep = _stage(3, 64, 1), _stage(64, 128), _stage(128, 256)
        self.up1, self.up2 = _stage(256 + 128, 128, 1), _stage(128 + 64, 64, 1)
        self.last = nn.Conv2d(64, 20, 1)

    def forward(self, image: Tensor) -> Tensor:
        first = self.first(image)
        down = self.down(first)
        up = functional.interpolate(self.deep(down), size=down.shape[-2:])
        up = functional.interpolate(self.up1(torch.cat([up, down], 1)), size=first.shape[-2:])
        return self.last(self.up2(torch.cat([up, first], 1)))


def segmentation() -> None:
    """A U-Net on pictures of different widths and heights."""
    widths, heights = list(_sizes(200, 900)), list(_sizes(300, 700))[::-1]
    _train(
        _UNet().to("cuda"),
        lambda model: (
            model(torch.randn(4, 3, height, width, device="cuda")).mean()
            for width, height in zip(widths, heights, strict=True)
        ),
    )


def segmentation_evaluated() -> None:
    """The same, with an evaluation after every third step whose results are kept."""
    kept = []

    def losses(model: nn.Module) -> Iterator[Tensor]:
        for number, side in enumerate(_sizes(200, 700)):
            yield model(torch.randn(4, 3, side, side, device="cuda")).mean()
            if number % 3 == 2:
                with torch.no_grad():
                    kept.append(model(torch.randn(2, 3, side + 97, side, device="cuda")).argmax(1))

    _train(_UNet().to("cuda"), losses)


class _GraphNet(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.message = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(4))
        self.update = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(4))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        for message, update in zip(self.message, self.update, strict=True):
            sent = functional.relu(message(torch.cat([nodes[source], nodes[target]], 1)))
            received = torch.zeros_like(nodes).index_add(0, target, sent)
            nodes = functional.relu(update(torch.cat([nodes, received], 1)))
        return nodes.mean()


def graphs() -> None:
    """A graph net on graphs of different sizes."""

    def losses(model: nn.Module) -> Iterator[Tensor]:
        for count in _sizes(20_000, 120_000):
            edges = torch.randint(count, (2, 5 * count), device="cuda")
            yield model(torch.randn(count, 256, device="cuda"), edges)

    _train(_GraphNet().to("cuda"), losses)


def points() -> None:
    """A PointNet on clouds of different sizes."""
    model = nn.Sequential(
        nn.Conv1d(3, 64, 1), nn.ReLU(), nn.Conv1d(64, 256, 1), nn.ReLU(), nn.Conv1d(256, 1024, 1), nn.ReLU(),
        nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(1024, 40),
    )  # fmt: skip
    _train(
        model.to("cuda"),
        lambda model: (model(torch.randn(32, 3, n, device="cuda")).mean() for n in _sizes(2_000, 30_000)),
    )


def boxes() -> None:
    """A detector's second stage: another number of boxes in each picture."""
    net = _stage(3, 64)
    head = nn.Sequential(nn.Flatten(), nn.Linear(64 * 49, 1024), nn.ReLU(), nn.Linear(1024, 91))

    def losses(model: nn.Module) -> Iterator[Tensor]:
        for count in _sizes(50, 2_000):
            features = model[0](torch.randn(2, 3, 800, 1200, device="cuda"))
            crops = functional.adaptive_avg_pool2d(features, 7).repeat(count, 1, 1, 1)
            yield model[1](crops).mean()

    _train(nn.ModuleList([net, head]).to("cuda"), losses)


def experts() -> None:
    """A mixture of experts on sequences of different lengths."""
    model = nn.Sequential(nn.Embedding(32_000, 1024), *(Experts(1024) for _ in range(6)))
    _train(model.to("cuda"), lambda model: (model(_ids(1, n)[0]).mean() for n in _sizes(2_000, 20_000)))


@torch.no_grad()
def generation() -> None:
    """Generation with a cache that grows by concatenation, for prompts of different lengths."""
    model = _small_llama().eval()
    for length in _sizes(50, 1500, 6):
        past, ids = None, _ids(8, length)
        for _ in range(40):
            output = model(ids, past_key_values=past, use_cache=True)
            past, ids = output.past_key_values, output.logits[:, -1:].argmax(-1)


@torch.no_grad()
def embeddings() -> None:
    """Embeddings of documents: the results of all batches are kept."""
    model = BertForSequenceClassification(BertConfig()).to("cuda").bert.eval()
    kept = [model(_ids(64, length, 30_000)).last_hidden_state[:, 0].clone() for length in _sizes(30, 512, 24)]
    torch.cat(kept)


def rollouts() -> None:
    """Reinforcement: rollouts of different lengths without gradients, then a step on all of them."""
    model = _small_llama()
    optimizer = torch.optim.AdamW(model.parameters())
    lengths = list(_sizes(100, 1200))
    for first in range(0, STEPS, 3):
        with torch.no_grad():
            kept = [
                (ids, model(ids).logits.log_softmax(-1))
                for ids in (_ids(2, n) for n in lengths[first : first + 3])
            ]
        for ids, before in kept:
            (model(ids).logits.log_softmax(-1) - before).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def segments() -> None:
    """Blocks under activation checkpointing on packed sequences, with the loss computed in parts."""
    blocks = nn.ModuleList(LlamaBlock(1024) for _ in range(8))
    model = nn.ModuleDict(
        {"tokens": nn.Embedding(32_000, 1024), "blocks": blocks, "head": nn.Linear(1024, 32_000)}
    )

    def losses(model: nn.Module) -> Iterator[Tensor]:
        for length in _sizes(1_000, 6_000):
            x = model["tokens"](_ids(1, length))
            for block in model["blocks"]:
                x = checkpoint(block, x, use_reentrant=False)
            parts = [
                checkpoint(lambda part: model["head"](part).logsumexp(-1).sum(), part, use_reentrant=False)
                for part in x.split(512, 1)
            ]
            yield torch.stack(parts).sum()

    _train(model.to("cuda"), losses)


PROGRAMS: Final = {
    program.__name__: program
    for program in (
        gpt2, llama, llama_bfloat16, llama_checkpointed, llama_accumulated, bert, t5, whisper, lstm, multi_scale,
        segmentation, segmentation_evaluated, graphs, points, boxes, experts, generation, embeddings, rollouts,
        segments,
    )
}  # fmt: skip
