"""Models of the transformers library that generate and analyse, without gradients."""

from __future__ import annotations

import torch
import transformers
from patterns_transformers import VOCABULARY, gpt2, llama
from truth_facts import ANY, KERNEL, LIBRARY, RESULT, UNNAMED, Fact, Ran, f32, pattern

import memwatch

ROWS, PROMPT, NEW = 5, 6, 18
MOST = PROMPT + NEW
PASSING = (
    Fact(ANY, "temporary", f"{LIBRARY}|generate", f"{UNNAMED}|local|argument", ".*"),
    Fact(ANY, "workspace", f"{LIBRARY}|generate", KERNEL, ".*"),
)
"""Facts about all memory that a forward without gradients makes: a running call has it."""


def prompts():
    return torch.randint(3, VOCABULARY, (ROWS, PROMPT))


@pattern(
    *(
        Fact(
            f32(ROWS, 2, length, 8), "held|temporary", LIBRARY, rf"\.(keys|values)\b|{RESULT}", r".*self_attn"
        )
        for length in range(MOST - 4, MOST)
    ),
    *PASSING,
)
def llama_that_samples():
    net = llama().eval()
    prompt = prompts()
    with memwatch.profile() as prof:
        # peak: generate
        net.generate(prompt, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=True, top_k=5)
    return Ran(prof, {"net": net})


@pattern(
    Fact(f32(7, 2, 13, 8), "held", LIBRARY, r"\.(keys|values)\b", r".*self_attn", "cat"),
    *PASSING,
)
def mistral_with_a_sliding_window():
    config = transformers.MistralConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=8, max_position_embeddings=128, bos_token_id=0, eos_token_id=1,
        pad_token_id=2,
    )  # fmt: skip
    net = transformers.MistralForCausalLM(config).eval()
    prompt = torch.randint(3, VOCABULARY, (7, 13))
    with memwatch.profile() as prof:
        net.generate(prompt, max_new_tokens=20, min_new_tokens=20, do_sample=False)  # peak: generate
    return Ran(prof, {"net": net})


@pattern(Fact(f32(ROWS, 2, 64, 8), "held", LIBRARY, r"\.(keys|values)\b", ".*"), *PASSING)
def llama_with_a_static_cache():
    net = llama().eval()
    prompt = prompts()
    cache = transformers.StaticCache(config=net.config, max_cache_len=64)
    with memwatch.profile() as prof:
        net.generate(
            prompt,
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            do_sample=False,
            past_key_values=cache,
            disable_compile=True,
        )  # peak: generate
    return Ran(prof, {"net": net})


@pattern(
    *(
        Fact(
            f32(3 * ROWS, 4, length, 8),
            "held|temporary",
            LIBRARY,
            rf"\.(keys|values)\b|{RESULT}|local|argument",
            r".*attn.*|",
        )
        for length in (PROMPT, *range(MOST - 4, MOST))
    ),
    *PASSING,
)
def gpt2_that_searches_beams():
    net = gpt2().eval()
    prompt = prompts()
    with memwatch.profile() as prof:
        net.generate(
            prompt, max_new_tokens=NEW, min_new_tokens=NEW, num_beams=3, do_sample=False, pad_token_id=2
        )  # peak: generate
    return Ran(prof, {"net": net})


@pattern(
    *(
        Fact(f32(ROWS, 4, length, 8), "held|temporary", LIBRARY, rf"\.(keys|values)\b|{RESULT}", r".*")
        for length in (*range(NEW - 4, NEW + 2), 40)
    ),
    Fact(f32(ROWS, 40, 32), "held|temporary", LIBRARY, "local|argument", ".*"),
    *PASSING,
)
def t5_that_generates():
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=112, num_layers=2, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    net = transformers.T5ForConditionalGeneration(config).eval()
    prompt = torch.randint(3, VOCABULARY, (ROWS, 40))
    with memwatch.profile() as prof:
        net.generate(prompt, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)  # peak: generate
    return Ran(prof, {"net": net})


@pattern(
    Fact(3 * f32(16, 29, 32), "held|temporary", "generate", rf"features|{RESULT}", "", "stack"),
    *PASSING,
)
def features_of_all_layers():
    net = gpt2().eval()
    features = []
    with torch.no_grad(), memwatch.profile() as prof:
        for _ in range(6):
            words = torch.randint(3, VOCABULARY, (16, 29))  # peak: generate
            found = net(input_ids=words, output_hidden_states=True, use_cache=False)  # peak: generate
            features.append(torch.stack(found.hidden_states)[:, :, -1])  # peak: generate
            prof.step()
    return Ran(prof, {"net": net})


class Streamer:
    """Gets each token as it comes."""

    def put(self, tokens):
        pass

    def end(self):
        pass


@pattern(
    Fact(f32(1, VOCABULARY), "held|temporary", LIBRARY, rf"scores|local|argument|{UNNAMED}", ".*"),
    *(
        Fact(f32(1, 2, length, 8), "held|temporary", LIBRARY, rf"\.(keys|values)\b|{RESULT}", r".*self_attn")
        for length in range(56, 61)
    ),
    *PASSING,
)
def llama_that_keeps_its_scores():
    net = llama().eval()
    prompt = torch.randint(3, VOCABULARY, (1, 3))
    with memwatch.profile() as prof:
        found = net.generate(
            prompt, max_new_tokens=57, min_new_tokens=57, do_sample=False, output_scores=True,
            return_dict_in_generate=True, streamer=Streamer(),
        )  # peak: generate  # fmt: skip
    assert len(found.scores) == 57
    return Ran(prof, {"net": net})
