"""Programs that generate, search and sample."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from truth_facts import KERNEL, LIBRARY, RESULT, UNNAMED, Fact, Ran, f32, pattern, var

import memwatch

BATCH, WIDTH, VALUES, TOKENS = 4, 64, 48, 40
OLD, NEW = TOKENS - 1, TOKENS


class Cache:
    def __init__(self):
        self.keys = self.values = None


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VALUES)
        self.out = nn.Linear(VALUES, WIDTH)

    def attend(self, x, keys, values):
        return self.out((x @ keys.transpose(1, 2)).softmax(-1) @ values)


class WithObject(Attention):
    def forward(self, x, cache):
        k, v = self.key(x), self.value(x)
        cache.keys = k if cache.keys is None else torch.cat([cache.keys, k], 1)  # peak: object keys
        cache.values = v if cache.values is None else torch.cat([cache.values, v], 1)  # peak: object values
        return self.attend(x, cache.keys, cache.values)


@pattern(
    Fact(f32(BATCH, OLD, WIDTH), "held", "object keys", var("cache.keys"), "net|WithObject"),
    Fact(f32(BATCH, NEW, WIDTH), "held|temporary", "object keys", RESULT, "net|WithObject"),
    Fact(f32(BATCH, OLD, VALUES), "held", "object values", var("cache.values"), "net|WithObject"),
)
def cache_replaced_in_an_attribute():
    net, cache = WithObject().eval(), Cache()
    with torch.no_grad(), memwatch.profile() as prof:
        x = torch.randn(BATCH, 1, WIDTH)
        for _ in range(TOKENS):
            x = net(x, cache)
    return Ran(prof, {"net": net})


class WithDict(Attention):
    def forward(self, x, cache):
        k, v = self.key(x), self.value(x)
        if "k" in cache:
            cache["k"] = torch.cat([cache["k"], k], 1)  # peak: dict keys
            cache["v"] = torch.cat([cache["v"], v], 1)  # peak: dict values
        else:
            cache["k"], cache["v"] = k, v
        return self.attend(x, cache["k"], cache["v"])


@pattern(
    Fact(f32(BATCH, OLD, WIDTH), "held|input", "dict keys", var("cache"), "net|WithDict"),
    Fact(f32(BATCH, NEW, WIDTH), "held|temporary", "dict keys", RESULT, "net|WithDict"),
    Fact(f32(BATCH, OLD, VALUES), "held|input", "dict values", var("cache"), "net|WithDict"),
)
def cache_replaced_in_a_dict():
    net, cache = WithDict().eval(), {}
    with torch.no_grad(), memwatch.profile() as prof:
        x = torch.randn(BATCH, 1, WIDTH)
        for _ in range(TOKENS):
            x = net(x, cache)
    return Ran(prof, {"net": net})


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(3))

    def forward(self, x, past):
        for number, layer in enumerate(self.layers):
            k, v = layer.key(x), layer.value(x)
            if len(past) <= number:
                past.append((k, v))
            else:
                keys = torch.cat([past[number][0], k], 1)  # peak: list keys
                values = torch.cat([past[number][1], v], 1)  # peak: list values
                past[number] = keys, values
            x = x + layer.attend(x, *past[number])
        return x


@pattern(
    Fact(f32(BATCH, OLD, WIDTH), "held", "list keys", var("past"), "net|Layers"),
    Fact(f32(BATCH, NEW, WIDTH), "held", "list keys", f"{var('past')}|{var('keys')}", "net|Layers"),
    Fact(f32(BATCH, OLD, VALUES), "held", "list values", var("past"), "net|Layers"),
    Fact(
        f32(BATCH, NEW, VALUES),
        "held",
        "list values",
        f"{var('past')}|{var('values')}|{RESULT}",
        "net|Layers",
    ),
)
def cache_replaced_in_a_list():
    net, past = Layers().eval(), []
    with torch.no_grad(), memwatch.profile() as prof:
        x = torch.randn(BATCH, 1, WIDTH)
        for _ in range(TOKENS):
            x = net(x, past)
    return Ran(prof, {"net": net})


class Preallocated(Attention):
    def __init__(self):
        super().__init__()
        self.cache = None

    def forward(self, x, position):
        if self.cache is None:
            self.cache = torch.zeros(BATCH, 211, WIDTH + VALUES)  # peak: preallocated
        self.cache[:, position] = torch.cat([self.key(x), self.value(x)], -1)[:, 0]
        keys, values = self.cache[:, : position + 1].split([WIDTH, VALUES], -1)
        return self.attend(x, keys, values)


@pattern(
    Fact(
        f32(BATCH, 211, WIDTH + VALUES),
        "held",
        "preallocated",
        f"{var('self.cache')}|{var('net.cache')}|attribute .cache of|{RESULT}",
        "net|Preallocated",
    ),
)
def cache_allocated_once():
    net = Preallocated().eval()
    with torch.no_grad(), memwatch.profile() as prof:
        x = torch.randn(BATCH, 1, WIDTH)
        for position in range(TOKENS):
            x = net(x, position)
    return Ran(prof, {"net": net})


@pattern(
    *(
        Fact(
            f32(6, 2, length, 8),
            "held|temporary",
            f"generate|{LIBRARY}",
            rf"\.(keys|values)\b|{RESULT}",
            r"model\.layers\.\d\.self_attn",
        )
        for length in range(40, 54)
    ),
)
def cache_of_hugging_face_generate():
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=99, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, bos_token_id=0, eos_token_id=None, pad_token_id=1,
    )  # fmt: skip
    net = transformers.LlamaForCausalLM(config).eval()
    prompt = torch.randint(3, 99, (6, 4))
    with torch.no_grad(), memwatch.profile() as prof:
        tokens = net.generate(prompt, max_new_tokens=50, do_sample=False)  # peak: generate
    assert tokens.shape[1] == 54
    return Ran(prof, {"net": net})


WORDS = 1999


@pattern(
    Fact(f32(8, WORDS), "temporary", "log probabilities", var("scores", "beam_search"), op="log_softmax"),
    Fact(f32(8, WORDS), "temporary", "log probabilities", UNNAMED, "net|Linear", op="mm"),
    Fact(f32(8, WORDS), "temporary", "totals", var("totals", "beam_search"), op="add.Tensor"),
    Fact(f32(8, WORDS), "temporary", "log probabilities|totals", RESULT, op="log_softmax|add.Tensor"),
)
def beam_search():
    net = nn.Linear(WIDTH, WORDS)
    with torch.no_grad(), memwatch.profile() as prof:
        beams, state, total = torch.zeros(8, 1, dtype=torch.long), torch.randn(8, WIDTH), torch.zeros(8)
        for _ in range(12):
            scores = net(state).log_softmax(-1)  # peak: log probabilities
            totals = (total[:, None] + scores).flatten()  # peak: totals
            total, best = totals.topk(8)
            state = state[best // WORDS]
            beams = torch.cat([beams[best // WORDS], (best % WORDS)[:, None]], 1)
    return Ran(prof, {"net": net})


@pattern(
    Fact(f32(16, WORDS), "temporary", "logits", var("logits"), "net|Linear", "mm"),
    Fact(f32(16, WORDS), "temporary", "sorted logits", var("ranked"), op="sort"),
    Fact(2 * f32(16, WORDS), "temporary", "sorted logits", var("order"), op="sort"),
    Fact(f32(16, WORDS), "temporary", "probabilities", var("chances"), op="softmax"),
    Fact(f32(16, WORDS), "temporary", "masked", f"{var('ranked')}|{RESULT}", op="masked_fill|clone|copy"),
    Fact(f32(16, WORDS), "temporary", "sums", f"{UNNAMED}|{RESULT}", op="cumsum"),
    Fact(f32(16, WORDS), "temporary", "choice", f"{UNNAMED}|{RESULT}"),
)
def top_p_sampling():
    net = nn.Linear(WIDTH, WORDS)
    table = torch.randn(WORDS, WIDTH)
    with torch.no_grad(), memwatch.profile() as prof:
        state = torch.randn(16, WIDTH)
        for _ in range(6):
            logits = net(state)  # peak: logits
            ranked, order = logits.sort(-1, descending=True)  # peak: sorted logits
            chances = functional.softmax(ranked, -1)  # peak: probabilities
            mask = chances.cumsum(-1) > 0.9  # peak: sums
            ranked = ranked.masked_fill(mask, -1e9)  # peak: masked
            choice = order.gather(1, ranked.softmax(-1).multinomial(1))  # peak: choice
            state = table[choice[:, 0]]
    return Ran(prof, {"net": net})


@pattern(
    Fact(f32(4, 3, 61, 61), "input|temporary", "noise", f"{var('x')}"),
    Fact(f32(4, 3, 61, 61), "temporary", "denoised", RESULT, "last"),
    Fact(
        f32(4, 16, 61, 61), "temporary", "hidden", f"{var('h', 'forward')}|{RESULT}|{var('input')}", "first"
    ),
    Fact(
        f32(4, 16, 61, 61),
        "temporary",
        "shifted",
        f"{var('h', 'forward')}|{RESULT}|{UNNAMED}",
        "net|Denoiser",
    ),
    Fact(f32(4, 16, 61, 61), "workspace", "denoised|hidden", KERNEL, "first|last"),
)
def diffusion_sampler():
    net = Denoiser().eval()
    with torch.no_grad(), memwatch.profile() as prof:
        x = torch.randn(4, 3, 61, 61)  # peak: noise
        for step in range(8):
            noise = net(x, torch.full((4,), step))
            x = x - 0.1 * noise + 0.01 * torch.randn_like(x)  # peak: noise
            del noise
    return Ran(prof, {"net": net})


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x, step):
        h = self.first(x)  # peak: hidden
        h = functional.silu(h, inplace=True) + step[:, None, None, None]  # peak: shifted
        return self.last(h)  # peak: denoised


class WithBuffers(nn.Module):
    """Writes keys into memory that its caller keeps."""

    def __init__(self):
        super().__init__()
        self.words, self.project = nn.Embedding(31, 24), nn.Linear(24, 24)

    def forward(self, ids, keys, place):
        x = self.words(ids)
        keys[:, place] = self.project(x)
        return (x.unsqueeze(1) @ keys[:, : place + 1].transpose(1, 2)).sum(1)


@pattern(Fact(f32(13, 211, 24), "held", "caller's keys", var("keys"), op="zeros"))
def cache_that_the_caller_keeps():
    net = WithBuffers().eval()
    with torch.no_grad(), memwatch.profile() as prof:
        keys, ids = torch.zeros(13, 211, 24), torch.zeros(13, dtype=torch.long)  # peak: caller's keys
        for place in range(5):
            ids = net(ids, keys, place).argmax(-1)
    return Ran(prof, {"net": net})
