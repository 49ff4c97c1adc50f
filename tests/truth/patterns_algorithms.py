"""Algorithms with shapes of their own: two caches at once, trees, solvers, retrieval, codebooks, experts, hooks."""

from __future__ import annotations

import collections
import functools

import torch
from torch import nn
from torch.nn import functional
from truth_facts import ANY, GRADIENT, RESULT, SAVED, UNNAMED, Fact, Ran, f32, pattern, var

import memwatch

PASSING = f"{UNNAMED}|{GRADIENT}|{RESULT}|the running op"
WORDS, BIG, SMALL, PROMPT = 101, 97, 41, 100


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.kv, self.o = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )

    def forward(self, x, cache):
        q = self.q(x)  # peak: q
        k, v = self.kv(x).chunk(2, -1)  # peak: kv
        if cache is not None:
            k, v = torch.cat([cache[0], k], 1), torch.cat([cache[1], v], 1)  # peak: grown
        a = functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]  # peak: attend
        return x + self.o(a), (k, v)  # peak: out


class Writer(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.emb, self.head = nn.Embedding(WORDS, width), nn.Linear(width, WORDS)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, ids, caches):
        x, new = self.emb(ids), []
        for number, block in enumerate(self.blocks):
            x, cache = block(x, caches[number] if caches else None)
            new.append(cache)
        return self.head(x), new


IN_WRITER = (
    f"{var('new', 'forward')}|{var('caches', 'forward')}|{var('cache', 'forward')}|{var('k', 'forward')}"
    f"|{var('v', 'forward')}|{PASSING}"
)


@pattern(
    *(
        Fact(f32(3, length, BIG), "held|temporary", "grown", f"`past`|{IN_WRITER}", "(target.)?blocks.[012]")
        for length in range(PROMPT, PROMPT + 70)
    ),
    *(
        Fact(f32(3, length, SMALL), "held|temporary", "grown", f"`guessed`|{IN_WRITER}", "(draft.)?blocks.0")
        for length in range(PROMPT, PROMPT + 70)
    ),
    Fact(ANY, "temporary|held|input", "q|kv|attend|out|prompt|token", ".*", ".*"),
)
def speculative_decoding_with_two_caches():
    target, draft = Writer(BIG, 3).eval(), Writer(SMALL, 1).eval()
    with torch.no_grad(), memwatch.profile() as prof:
        ids = torch.randint(WORDS, (3, PROMPT))  # peak: prompt
        logits, past = target(ids, None)
        _, guessed = draft(ids, None)
        token = logits[:, -1:].argmax(-1)
        for _ in range(12):
            guess = [token]
            for _ in range(3):
                logits, guessed = draft(guess[-1], guessed)
                guess.append(logits[:, -1:].argmax(-1))
            logits, past = target(torch.cat(guess, 1), past)
            token = logits[:, -1:].argmax(-1)  # peak: token
    return Ran(prof, {"target": target, "draft": draft})


LEAVES, KNOWN, JOINED = 97, 61, 83


class Tree(nn.Module):
    def __init__(self):
        super().__init__()
        self.leaf, self.join = nn.Linear(KNOWN, JOINED), nn.Linear(2 * JOINED, JOINED)

    def forward(self, node):
        if isinstance(node, torch.Tensor):
            return torch.tanh(self.leaf(node))  # peak: leaf
        left, right = (self(child) for child in node)
        return torch.tanh(self.join(torch.cat([left, right], -1)))  # peak: join


@pattern(
    Fact(f32(LEAVES, KNOWN), "input", "tree", rf"{SAVED}|tree|{var('node')}|{PASSING}"),
    Fact(f32(LEAVES, JOINED), "activation", "leaf|join", SAVED, "net|Tree", "tanh.default"),
    Fact(f32(LEAVES, 2 * JOINED), "activation", "join", SAVED, "net|Tree", "cat"),
    Fact(ANY, "temporary|gradient|activation", "loss|join|leaf", ".*", ".*"),
)
def recursive_network_over_trees():
    net = Tree()
    optimizer = torch.optim.Adagrad(net.parameters(), foreach=False)

    def grown(depth):
        return torch.randn(LEAVES, KNOWN) if not depth else (grown(depth - 1), grown(depth - 1))  # peak: tree

    with memwatch.profile() as prof:
        for _ in range(2):
            tree = grown(3)
            net(tree).square().sum().backward()  # peak: loss
            optimizer.step()
            optimizer.zero_grad()
            del tree
    return Ran(prof, {"net": net})


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(47, 173), nn.Tanh(), nn.Linear(173, 47))

    def forward(self, t, y):
        return self.net(y) * t  # peak: field


def solved(field, y, steps):
    path, dt = [y], 1 / steps
    for number in range(steps):
        t = number * dt
        k1 = field(t, y)
        k2 = field(t + dt / 2, y + dt / 2 * k1)  # peak: stages
        k3 = field(t + dt, y - dt * k1 + 2 * dt * k2)  # peak: stages
        y = y + dt / 6 * (k1 + 4 * k2 + k3)  # peak: stages
        path.append(y)
    return torch.stack(path)  # peak: path


STAGES = "|".join(var(name, "solved") for name in ("path", "y", "k1", "k2", "k3"))


@pattern(
    Fact(f32(101, 173), "activation", "field", SAVED, "net.1", "tanh.default"),
    Fact(f32(101, 173), "temporary", "field", PASSING, "net.[0-2]"),
    Fact(
        f32(101, 47),
        "activation|temporary|input",
        "field|stages|start",
        f"{SAVED}|{PASSING}|{STAGES}|{var('y')}",
        ".*",
    ),
    Fact(f32(11, 101, 47), "activation|temporary", "path|loss", f"{SAVED}|{PASSING}"),
    Fact(ANY, "gradient|temporary|activation", "field|loss", ".*", ".*"),
)
def differential_equation_that_is_learned():
    field = Field()
    optimizer = torch.optim.SGD(field.parameters(), lr=0.1)
    with memwatch.profile() as prof:
        for _ in range(2):
            start = torch.randn(101, 47)  # peak: start
            solved(field, start, 10).square().mean().backward()  # peak: loss
            optimizer.step()
            optimizer.zero_grad()
    return Ran(prof, {"field": field})


ASKED, FOUND, CHUNK = 211, 10, 500


def search(queries, corpus):
    best = torch.full((ASKED, FOUND), -1.0)  # peak: best
    where = torch.zeros(ASKED, FOUND, dtype=torch.long)  # peak: best
    for at in range(0, len(corpus), CHUNK):
        scores = queries @ corpus[at : at + CHUNK].T  # peak: scores
        top, index = scores.topk(min(FOUND, scores.shape[1]))  # peak: top
        merged, ids = torch.cat([best, top], 1), torch.cat([where, index + at], 1)  # peak: best
        best, pick = merged.topk(FOUND)  # peak: best
        where = ids.gather(1, pick)  # peak: best
    return best, where


@pattern(
    Fact(f32(4001, 67), "input", "", f"{var('corpus')}"),
    Fact(f32(ASKED, 67), "temporary", "queries", f"{var('queries')}"),
    Fact(f32(ASKED, CHUNK), "temporary", "scores", f"{var('scores', 'search')}|{PASSING}"),
    Fact(ANY, "temporary", "best|top", ".*"),
)
def retrieval_in_chunks():
    corpus = functional.normalize(torch.randn(4001, 67))
    with torch.inference_mode(), memwatch.profile() as prof:
        for _ in range(2):
            queries = torch.randn(ASKED, 67)  # peak: queries
            search(queries, corpus)
    return Ran(prof)


class Log:
    """Keeps what every layer gives, in double precision."""

    def __init__(self, net):
        self.store = collections.defaultdict(list)
        for name, module in net.named_children():
            module.register_forward_hook(functools.partial(self.keep, name))

    def keep(self, name, module, args, out):
        self.store[name].append(out.to(torch.float64))  # peak: kept


@pattern(
    *(Fact(8 * 157 * width, "held|temporary", "kept", f"store|{RESULT}", "[02]|") for width in (251, 29)),
    Fact(8 * 157 * 251, "held|temporary", "kept", f"store|{RESULT}", "1|"),
    Fact(f32(157, 73), "input", "batch", f"{var('x')}|{UNNAMED}|local|argument"),
    Fact(ANY, "temporary", "run", ".*", ".*"),
)
def activations_logged_by_partial_hooks():
    net = nn.Sequential(nn.Linear(73, 251), nn.Tanh(), nn.Linear(251, 29)).eval()
    log = Log(net)
    with torch.no_grad(), memwatch.profile() as prof:
        for number in range(6):
            x = torch.randn(157, 73)  # peak: batch
            net(x)  # peak: run
            if number == 4:
                log.store.clear()
            prof.step()
    return Ran(prof, {"net": net})


class Codebook(nn.Module):
    def __init__(self, count, width):
        super().__init__()
        self.register_buffer("codes", torch.randn(count, width))
        self.register_buffer("sums", torch.zeros(count, width))
        self.register_buffer("counts", torch.ones(count))

    def forward(self, x):
        distance = torch.cdist(x, self.codes)  # peak: distance
        index = distance.argmin(1)  # peak: index
        q = self.codes[index]  # peak: q
        with torch.no_grad():
            chosen = functional.one_hot(index, len(self.codes)).float()  # peak: chosen
            self.counts.lerp_(chosen.sum(0), 0.1)
            self.sums.lerp_(chosen.T @ x, 0.1)  # peak: sums
            self.codes = self.sums / self.counts[:, None]  # peak: codes
        return x + (q - x).detach(), functional.mse_loss(x, q)  # peak: passed


@pattern(
    Fact(f32(257, 61), "buffer", "codes|", "`codes`|`sums`|codes|sums", "codebook", "div|^$"),
    Fact(f32(257, 61), "temporary", "sums", PASSING, "codebook", "mm"),
    Fact(8 * 409 * 257, "temporary", "chosen", PASSING, "codebook"),
    Fact(
        f32(409, 257),
        "temporary|activation",
        "distance|chosen",
        f"{var('distance')}|{var('chosen')}|{SAVED}|{PASSING}",
        "codebook",
    ),
    Fact(f32(409, 31), "input", "data", f"{SAVED}|{var('x')}"),
    Fact(ANY, "activation|temporary|gradient", "index|loss|up|q|passed|distance|sums", ".*", ".*"),
)
def codebook_with_moving_averages():
    up, down, codebook = nn.Linear(31, 61), nn.Linear(61, 31), Codebook(257, 61)
    optimizer = torch.optim.SGD([*up.parameters(), *down.parameters()], lr=0.1)
    with memwatch.profile() as prof:
        for _ in range(3):
            x = torch.randn(409, 31)  # peak: data
            z, commitment = codebook(up(x))  # peak: up
            loss = functional.mse_loss(down(z), x) + commitment  # peak: loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return Ran(prof, {"up": up, "down": down, "codebook": codebook})
