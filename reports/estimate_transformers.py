"""Compare estimates of transformers architectures with real runs to the byte, at two lengths.

`python reports/estimate_transformers.py` writes reports/estimate_transformers.md. Each architecture is a tiny
configuration with random weights, trained for two steps. The real run is recorded, and the same program is estimated.
"""

from __future__ import annotations

import importlib
import pathlib
import sys
import traceback
from typing import TYPE_CHECKING, Any

import torch
import transformers
from estimate import in_child, tensor_peak

import memwatch
from memwatch.estimate.program import estimate_program

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = pathlib.Path(__file__).with_suffix(".md")
STEPS, BATCH, WORDS = 2, 2, 128
LENGTHS = (48, 256)
INTRODUCTION = """\
# Estimates of transformers architectures beside real runs

Written by `python reports/estimate_transformers.py`, torch {torch}, transformers {transformers}, CPU. Each
architecture is a small configuration with random weights and two layers. It is trained for two steps of AdamW on two
samples. In a padded batch, the second half of the last sample is padding. The figure is the most bytes of tensors that
were alive at once. A line that reads an unknown value gets 0, as the loss does.

DeBERTa v2 is estimated too high, because it calls `gather`. The backward of `gather` checks in C++ whether a tensor is
a subclass. If it is, the backward copies the gradient and does not write in place. memwatch cannot hide this.

For images, the length is the side of an image in pixels. For Whisper, it is the number of words.

| architecture | batch | length | real, bytes | estimated, bytes | difference | lines that read unknown values |
| --- | --- | ---: | ---: | ---: | ---: | ---: |
"""
SIZES = {
    "vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
GROUPED = SIZES | {"num_key_value_heads": 2, "head_dim": 8}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "patch_size": 16,
}


def words(length: int, padded: bool) -> dict[str, torch.Tensor]:
    """Return a batch of words as a tokenizer makes it: ids, the mask of padding, and labels."""
    ids = torch.randint(3, WORDS, (BATCH, length))
    mask = torch.ones(BATCH, length, dtype=torch.int64)
    if padded:
        mask[-1, length // 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.clone()}


def bare_words(length: int, padded: bool) -> dict[str, torch.Tensor]:
    """Return a batch of words without a mask."""
    ids = torch.randint(3, WORDS, (BATCH, length))
    return {"input_ids": ids, "labels": ids.clone()}


def images(length: int, padded: bool) -> dict[str, torch.Tensor]:
    """Return a batch of images with their classes."""
    return {
        "pixel_values": torch.randn(BATCH, 3, length, length),
        "labels": torch.zeros(BATCH, dtype=torch.int64),
    }


def speech(length: int, padded: bool) -> dict[str, torch.Tensor]:
    """Return a batch of spectrograms with the words to write."""
    return {"input_features": torch.randn(BATCH, 16, 100), "labels": torch.randint(3, WORDS, (BATCH, length))}


def pairs(length: int, padded: bool) -> dict[str, Any]:
    """Return a batch of images with their captions."""
    text = words(min(length, 64), padded)
    del text["labels"]
    return {**text, "pixel_values": torch.randn(BATCH, 3, 32, 32), "return_loss": True}


def classes(length: int, padded: bool) -> dict[str, torch.Tensor]:
    """Return a batch of texts with their classes."""
    return words(length, padded) | {"labels": torch.zeros(BATCH, dtype=torch.int64)}


def whisper() -> Any:
    """Return a configuration of Whisper."""
    return transformers.WhisperConfig(
        vocab_size=WORDS, num_mel_bins=16, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=50,
        max_target_positions=512, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip


def t5() -> Any:
    """Return a configuration of T5."""
    return transformers.T5Config(
        vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0
    )


def bart() -> Any:
    """Return a configuration of BART."""
    return transformers.BartConfig(
        vocab_size=WORDS, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=512,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None,
    )  # fmt: skip


def gpt2() -> Any:
    """Return a configuration of GPT-2."""
    return transformers.GPT2Config(
        vocab_size=WORDS, n_positions=512, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2
    )


def clip() -> Any:
    """Return a configuration of CLIP."""
    return transformers.CLIPConfig(
        text_config={**SIZES, "projection_dim": 16},
        vision_config={**VISION, "image_size": 32},
        projection_dim=16,
    )


def swin() -> Any:
    """Return a configuration of Swin."""
    return transformers.SwinConfig(
        image_size=64,
        patch_size=4,
        embed_dim=16,
        depths=[1, 1],
        num_heads=[2, 4],
        window_size=4,
        num_labels=4,
    )


ARCHITECTURES: dict[str, tuple[str, Callable[[], Any], Callable[..., dict[str, Any]]]] = {
    "Llama": ("LlamaForCausalLM", lambda: transformers.LlamaConfig(**GROUPED), words),
    "Llama without a mask": ("LlamaForCausalLM", lambda: transformers.LlamaConfig(**GROUPED), bare_words),
    "Llama, eager attention": (
        "LlamaForCausalLM", lambda: transformers.LlamaConfig(**GROUPED, attn_implementation="eager"), words,
    ),
    "Qwen2": ("Qwen2ForCausalLM", lambda: transformers.Qwen2Config(**GROUPED), words),
    "Qwen3": ("Qwen3ForCausalLM", lambda: transformers.Qwen3Config(**GROUPED), words),
    "Mistral, window 32": (
        "MistralForCausalLM", lambda: transformers.MistralConfig(**GROUPED, sliding_window=32), words,
    ),
    "Phi-3": ("Phi3ForCausalLM", lambda: transformers.Phi3Config(**GROUPED), words),
    "Gemma": ("GemmaForCausalLM", lambda: transformers.GemmaConfig(**GROUPED), words),
    "Gemma 2": ("Gemma2ForCausalLM", lambda: transformers.Gemma2Config(**GROUPED, sliding_window=32), words),
    "Gemma 3": ("Gemma3ForCausalLM", lambda: transformers.Gemma3TextConfig(**GROUPED, sliding_window=32), words),
    "GPT-2": ("GPT2LMHeadModel", gpt2, words),
    "GPT-NeoX": ("GPTNeoXForCausalLM", lambda: transformers.GPTNeoXConfig(**SIZES), words),
    "OPT": (
        "OPTForCausalLM",
        lambda: transformers.OPTConfig(
            vocab_size=WORDS, hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=512, word_embed_proj_dim=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        ),
        words,
    ),
    "Mixtral, bfloat16": ("MixtralForCausalLM", lambda: transformers.MixtralConfig(**GROUPED, **EXPERTS), words),
    "Qwen3 MoE, bfloat16": ("Qwen3MoeForCausalLM", lambda: transformers.Qwen3MoeConfig(**GROUPED, **EXPERTS), words),
    "BERT": ("BertForMaskedLM", lambda: transformers.BertConfig(**SIZES), words),
    "RoBERTa": (
        "RobertaForSequenceClassification",
        lambda: transformers.RobertaConfig(**SIZES | {"max_position_embeddings": 514}), classes,
    ),
    "DistilBERT": (
        "DistilBertForSequenceClassification",
        lambda: transformers.DistilBertConfig(vocab_size=WORDS, dim=32, hidden_dim=64, n_layers=2, n_heads=4), classes,
    ),
    "ModernBERT": (
        "ModernBertForSequenceClassification",
        lambda: transformers.ModernBertConfig(**SIZES, local_attention=32, cls_token_id=1, sep_token_id=2), classes,
    ),
    "DeBERTa v2": (
        "DebertaV2ForSequenceClassification",
        lambda: transformers.DebertaV2Config(**SIZES, relative_attention=True, pos_att_type=["p2c", "c2p"]), classes,
    ),
    "T5": ("T5ForConditionalGeneration", t5, words),
    "BART": ("BartForConditionalGeneration", bart, words),
    "Whisper": ("WhisperForConditionalGeneration", whisper, speech),
    "ViT": ("ViTForImageClassification", lambda: transformers.ViTConfig(**VISION, image_size=64, num_labels=4), images),
    "Swin": ("SwinForImageClassification", swin, images),
    "CLIP": ("CLIPModel", clip, pairs),
}  # fmt: skip


def trained(name: str, length: int, padded: bool) -> None:
    """Train a model."""
    kind, configuration, batch_of = ARCHITECTURES[name]
    config = configuration()
    if batch_of is images:
        config.image_size = length
    model = getattr(transformers, kind)(config)
    if "bfloat16" in name:  # torch's fake kernel of a grouped matrix product takes no other type
        model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(STEPS):
        model(**batch_of(length, padded)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def real(name: str, length: int, padded: bool) -> dict[str, Any]:
    """Return the peak of tensors in a real run."""
    with memwatch.profile() as prof:
        trained(name, length, padded)
    return tensor_peak(prof)


def estimated(name: str, length: int, padded: bool) -> dict[str, Any]:
    """Return the peak of tensors in an estimate."""
    try:
        found = estimate_program(lambda: lambda: trained(name, length, padded), steps=STEPS)
    except Exception as error:  # any refusal is a row
        traceback.print_exc()
        return {"error": str(error)}
    return {**tensor_peak(found.reading), "reads": list(found.reads), "remarks": list(found.remarks)}


def main() -> None:
    """Compare all, or the architectures that are named; write the page for all."""
    torch.set_num_threads(1)
    chosen, rows = sys.argv[1:] or list(ARCHITECTURES), []
    for module in ("torch._dynamo", "torch.fx.experimental.symbolic_shapes"):
        importlib.import_module(module)  # here, and not in each child
    for name in chosen:
        kinds = (False, True) if ARCHITECTURES[name][2] in (words, classes, pairs) else (False,)
        for padded in kinds:
            for length in (32, 64) if ARCHITECTURES[name][2] is images else LENGTHS:
                if not hasattr(transformers, ARCHITECTURES[name][0]):
                    print(name, "is not in this version of transformers", file=sys.stderr)
                    continue
                there, here = (
                    in_child(real, name, length, padded)(),
                    in_child(estimated, name, length, padded)(),
                )
                label = "padded" if padded else "full"
                if "error" in here:
                    text, more, reads = "refused", "", ""
                else:
                    text, more = f"{here['bytes']:,}", f"{here['bytes'] - there['bytes']:,}"
                    reads = str(len(here["reads"]))
                    if here["bytes"] != there["bytes"]:
                        print(there["categories"], here["categories"], file=sys.stderr)
                    print(here["reads"], here["remarks"], file=sys.stderr)
                rows.append(
                    f"| {name} | {label} | {length} | {there['bytes']:,} | {text} | {more} | {reads} |"
                )
                print(rows[-1], flush=True)
    if chosen == list(ARCHITECTURES):
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        PAGE.write_text(INTRODUCTION.format(**versions) + "\n".join(rows) + "\n")


main()
