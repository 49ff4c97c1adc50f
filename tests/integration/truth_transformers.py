"""Tiny, randomly initialised models of the transformers library; nothing is downloaded.

The library is imported when a model is made: collecting the tests takes seconds less, and the other tests of the
process search fewer objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from truth_models import Program, train


def _language(model: Any) -> Program:
    tokens = torch.randint(3, 99, (2, 16))
    loss = lambda: model(input_ids=tokens, labels=tokens).loss  # noqa: E731
    return train(model, loss, torch.optim.AdamW(model.parameters()))


def gpt2() -> Program:
    import transformers

    config = transformers.GPT2Config(
        vocab_size=99, n_positions=32, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=1
    )
    return _language(transformers.GPT2LMHeadModel(config))


def llama() -> Program:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return _language(transformers.LlamaForCausalLM(config))


def bert() -> Program:
    import transformers

    config = transformers.BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32,
    )  # fmt: skip
    return _language(transformers.BertForMaskedLM(config))


def t5() -> Program:
    import transformers

    config = transformers.T5Config(
        vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    return _language(transformers.T5ForConditionalGeneration(config))


def vit() -> Program:
    import transformers

    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8,
        num_labels=5,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    images, labels = torch.randn(2, 3, 32, 32), torch.randint(5, (2,))
    loss = lambda: model(pixel_values=images, labels=labels).loss  # noqa: E731
    return train(model, loss, torch.optim.AdamW(model.parameters()))


TRANSFORMERS: dict[str, Callable[[], Program]] = {
    maker.__name__: maker for maker in (gpt2, llama, bert, t5, vit)
}
