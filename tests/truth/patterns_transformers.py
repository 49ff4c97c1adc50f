"""Models of the transformers library that train: by its `Trainer` and by loops of the program's own."""

from __future__ import annotations

import tempfile

import torch
import transformers
from torch import nn
from truth_facts import (
    ANY,
    GRAD,
    GRADIENT,
    LIBRARY,
    SAVED,
    STEP,
    UNNAMED,
    Fact,
    Ran,
    f32,
    pattern,
)  # fmt: skip

import memwatch

ROWS, TOKENS, VOCABULARY = 6, 31, 97


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=1
    )
    return transformers.GPT2LMHeadModel(config)


def llama():
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=112, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0,
        eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def sentences(count):
    rows = torch.randint(3, VOCABULARY, (count, TOKENS))
    return [{"input_ids": row, "labels": row} for row in rows]


def fit(net, count=4, **options):
    """Train a model with a `Trainer`, in a block of its own."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, use_cpu=True, max_steps=count, per_device_train_batch_size=ROWS, report_to=[],
            save_strategy="no", logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
            **options,
        )  # fmt: skip
        data = sentences(ROWS * count)
        with memwatch.profile() as prof:
            trainer = transformers.Trainer(net, arguments, train_dataset=data)
            trainer.train()  # peak: train
    return Ran(prof, {"net": net})


def trained(mark="train"):
    """Facts about the tensors of a forward and its backward: saved by autograd, or held by a call or the backward."""
    return (
        Fact(ANY, "activation", f"{LIBRARY}|{mark}", SAVED, ".*"),
        Fact(ANY, "temporary", f"{LIBRARY}|{mark}", f"{GRADIENT}|{UNNAMED}|local|argument", ".*"),
        Fact(ANY, "gradient|temporary", f"{LIBRARY}|{mark}", f"{GRAD}|{GRADIENT}", ".+", "backward|mm|sum|add"),
    )  # fmt: skip


BATCH = Fact(
    2 * f32(ROWS, TOKENS), "input|temporary|activation", LIBRARY, f"local|argument|{SAVED}", op="stack|cat"
)
CHECKPOINTED = (
    Fact(ANY, "recomputed", f"{LIBRARY}|train", f"checkpoint|{SAVED}|{UNNAMED}|local|argument", ".*"),
    Fact(ANY, "activation", f"{LIBRARY}|train", "checkpoint", ".*"),
)


@pattern(BATCH, *trained())
def trainer_of_gpt2():
    return fit(gpt2(), optim="adamw_torch")


@pattern(BATCH, *trained(), *CHECKPOINTED)
def trainer_with_checkpointing_and_accumulation():
    return fit(llama(), 2, gradient_checkpointing=True, gradient_accumulation_steps=2)


@pattern(BATCH, *trained(), Fact(ANY, "temporary", f"{LIBRARY}|train", STEP, ""))
def trainer_with_adafactor():
    return fit(llama(), optim="adafactor", learning_rate=1e-3)


@pattern(BATCH, *trained())
def trainer_in_bfloat16():
    return fit(gpt2(), bf16=True)


@pattern(
    Fact(f32(ROWS, TOKENS, VOCABULARY), "held|temporary", LIBRARY, r"logits|local|attribute|argument", ".*"),
    Fact(ANY, "temporary|held", f"{LIBRARY}|evaluate", f"{UNNAMED}|local|argument", ".*"),
    Fact(ANY, "input", LIBRARY, "local|argument"),
)
def trainer_that_evaluates():
    net = gpt2()
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, use_cpu=True, per_device_eval_batch_size=ROWS, report_to=[], disable_tqdm=True,
            dataloader_pin_memory=False, eval_accumulation_steps=100,
        )  # fmt: skip
        data = sentences(8 * ROWS)
        with memwatch.profile() as prof:
            trainer = transformers.Trainer(net, arguments, compute_metrics=lambda found: {})
            trainer.evaluate(data)  # peak: evaluate
    return Ran(prof, {"net": net})


def step_of(net, loss, steps=2):
    """Train a model in a loop of the program's own."""
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    with memwatch.profile() as prof:
        for _ in range(steps):
            loss().backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    return Ran(prof, {"net": net})


@pattern(*trained())
def bert_with_masked_words():
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=112, max_position_embeddings=32,
    )  # fmt: skip
    net = transformers.BertForMaskedLM(config)
    words = torch.randint(3, VOCABULARY, (ROWS, TOKENS))
    return step_of(net, lambda: net(input_ids=words, labels=words).loss)  # peak: train


@pattern(*trained())
def vision_transformer():
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=112, image_size=32,
        patch_size=8, num_labels=5,
    )  # fmt: skip
    net = transformers.ViTForImageClassification(config)
    images, labels = torch.randn(ROWS, 3, 32, 32), torch.randint(5, (ROWS,))
    return step_of(net, lambda: net(pixel_values=images, labels=labels).loss)  # peak: train


@pattern(*trained())
def whisper_that_transcribes():
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY, num_mel_bins=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, d_model=32, encoder_ffn_dim=112, decoder_ffn_dim=112,
        max_source_positions=24, max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1,
    )  # fmt: skip
    net = transformers.WhisperForConditionalGeneration(config)
    sound, words = torch.randn(ROWS, 8, 48), torch.randint(3, VOCABULARY, (ROWS, TOKENS))
    return step_of(net, lambda: net(input_features=sound, labels=words).loss)  # peak: train


@pattern(*trained())
def t5_that_translates():
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=112, num_layers=1, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    net = transformers.T5ForConditionalGeneration(config)
    words = torch.randint(3, VOCABULARY, (ROWS, TOKENS))
    return step_of(net, lambda: net(input_ids=words, labels=words).loss)  # peak: train


@pattern(*trained())
def clip_that_contrasts():
    of_both = {"hidden_size": 32, "intermediate_size": 112, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = transformers.CLIPConfig(
        text_config={**of_both, "vocab_size": VOCABULARY, "max_position_embeddings": 32, "eos_token_id": 2},
        vision_config={**of_both, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    net = transformers.CLIPModel(config)
    words, images = torch.randint(3, VOCABULARY, (ROWS, TOKENS)), torch.randn(ROWS, 3, 32, 32)
    # peak: train
    return step_of(net, lambda: net(input_ids=words, pixel_values=images, return_loss=True).loss)


class Adapted(nn.Module):
    """A frozen layer with a small one beside it, as peft has them."""

    def __init__(self, frozen, rank=3):
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))  # peak: adapted


@pattern(
    *trained(),
    Fact(f32(ROWS, TOKENS, 3), "activation", "adapted", SAVED, r".*\.down"),
    Fact(
        ANY,
        "temporary|activation",
        "adapted",
        f"{UNNAMED}|{GRADIENT}|{SAVED}|local|argument",
        r".*(_proj|up|down|frozen)",
    ),
)
def llama_with_low_rank_adapters():
    net = llama().requires_grad_(False)
    for layer in net.model.layers:
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj)
        layer.self_attn.v_proj = Adapted(layer.self_attn.v_proj)
    words = torch.randint(3, VOCABULARY, (ROWS, TOKENS))
    optimizer = torch.optim.AdamW([one for one in net.parameters() if one.requires_grad], fused=True)
    with memwatch.profile() as prof:
        for _ in range(2):
            net(input_ids=words, labels=words).loss.backward()  # peak: train
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    return Ran(prof, {"net": net})
