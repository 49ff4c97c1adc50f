"""Data that waits for its turn: fetched ahead by a generator, in an object of a package, in a cache, in a window."""

from __future__ import annotations

import functools
from collections import OrderedDict, deque
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from truth_facts import GRAD, GRADIENT, RESULT, SAVED, UNNAMED, Fact, Ran, f32, pattern, var

import memwatch

ROWS, IN, HIDDEN, OUT = 301, 503, 211, 7
WEIGHTS = (
    Fact(f32(HIDDEN, IN), "gradient|temporary", "train", f"{GRAD}|{GRADIENT}", "0", "mm"),
    Fact(f32(ROWS, HIDDEN), "activation", "train", SAVED, "1", "relu"),
    Fact(f32(ROWS, HIDDEN), "temporary", "train", f"{GRADIENT}|{RESULT}", "[12]", "mm|threshold"),
)
FETCHED = r"`(q|b)`, local variable of suspended generator `fetched_ahead`"


def mlp():
    return nn.Sequential(nn.Linear(IN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUT))


def train(net, optimizer, x):
    net(x).square().mean().backward()  # peak: train
    optimizer.step()
    optimizer.zero_grad()


def made():
    for _ in range(6):
        yield torch.randn(ROWS, IN), torch.randint(OUT, (ROWS,))  # peak: made


def fetched_ahead(batches):
    q = deque()
    for b in batches:
        q.append(b)
        if len(q) > 2:
            yield q.popleft()
    while q:
        yield q.popleft()


@pattern(
    *WEIGHTS,
    Fact(f32(ROWS, IN), "input|held", "made", f"{SAVED}|{var('x')}|{FETCHED}", "", "randn"),
    Fact(f32(ROWS, IN), "input|held", "made", FETCHED, "", "randn", most=2),
)
def batches_that_a_generator_fetches_ahead():
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with memwatch.profile() as prof:
        for x, _ in fetched_ahead(made()):
            train(net, optimizer, x)
    return Ran(prof, {"net": net})


@pattern(
    *WEIGHTS,
    Fact(f32(7 * ROWS, IN), "held|input", "", r"`data\.tensors`|\.tensors of TensorDataset"),
    Fact(f32(ROWS, IN), "input", "loader", f"{SAVED}|{var('x')}", "", "stack"),
)
def data_set_of_torch_made_before():
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    data = TensorDataset(torch.randn(7 * ROWS, IN))
    with memwatch.profile() as prof:
        for (x,) in DataLoader(data, batch_size=ROWS):  # peak: loader
            train(net, optimizer, x)
    return Ran(prof, {"net": net})


@functools.cache
def table(rows):
    return torch.randn(rows, IN)  # peak: table


class Server:
    def __init__(self):
        self.model, self.by_user = mlp().eval(), OrderedDict()

    @torch.inference_mode()
    def handle(self, user, rows):
        self.model(table(rows))  # peak: handled
        self.by_user[user] = self.model[0](table(rows))  # peak: kept for the user
        if len(self.by_user) > 3:
            self.by_user.popitem(last=False)


@pattern(
    *(
        Fact(f32(rows, IN), "held", "table", "kept by lru_cache|result kept by")
        for rows in (400, 410, 420, 430)
    ),
    *(
        Fact(f32(rows, HIDDEN), "held", "kept for the user", r"\.by_user`", "(model\\.)?0")
        for rows in (400, 410, 420, 430)
    ),
    *(
        Fact(f32(rows, HIDDEN), "temporary", "handled", rf"{RESULT}|{UNNAMED}|{var('input')}", "[01]")
        for rows in (400, 410, 420, 430)
    ),
)
def server_with_caches():
    table.cache_clear()
    server = Server()
    with memwatch.profile() as prof:
        for user in range(12):
            server.handle(user, 400 + 10 * (user % 4))
    table.cache_clear()
    return Ran(prof, {"model": server.model})


class Transition(NamedTuple):
    state: torch.Tensor
    action: int
    following: torch.Tensor


STATE, BATCH = 1031, 24


@pattern(
    Fact(f32(STATE), "held|input|temporary", "reset|moved", r"memory|state|following|local|argument", "", "randn"),
    Fact(
        f32(BATCH, STATE),
        "input|temporary",
        "states|next states",
        rf"{SAVED}|{var('states')}|{var('following_states')}|{UNNAMED}|not seen",
        "",
        "stack",
    ),
    Fact(f32(BATCH, 96), "activation|temporary", "hidden", rf"{SAVED}|{GRADIENT}|{UNNAMED}|{RESULT}", ".*"),
    Fact(f32(96, STATE), "gradient|temporary", "hidden", f"{GRAD}|{GRADIENT}", "up", "mm"),
)  # fmt: skip
def transitions_as_named_tuples():
    class Values(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(STATE, 96), nn.Linear(96, 4)

        def forward(self, x):
            return self.down(functional.relu(self.up(x)))  # peak: hidden

    policy, target = Values(), Values()
    optimizer = torch.optim.AdamW(policy.parameters(), amsgrad=True, fused=True)
    memory = deque(maxlen=40)
    with memwatch.profile() as prof:
        state = torch.randn(STATE)  # peak: reset
        for _ in range(45):
            with torch.no_grad():
                action = policy(state.unsqueeze(0)).argmax(1).item()
            following = torch.randn(STATE)  # peak: moved
            memory.append(Transition(state, action, following))
            state = following
            if len(memory) < BATCH:
                continue
            batch = Transition(*zip(*list(memory)[:BATCH]))
            states = torch.stack(batch.state)  # peak: states
            following_states = torch.stack(batch.following)  # peak: next states
            chosen = policy(states).gather(1, torch.tensor(batch.action)[:, None])
            with torch.no_grad():
                best = target(following_states).max(1).values
            functional.smooth_l1_loss(chosen[:, 0], best).backward()
            optimizer.step()
            optimizer.zero_grad()
    return Ran(prof, {"policy": policy, "target": target})


@pattern(
    Fact(f32(8, 3, 32, 32), "held", "frame", f"{var('frames')}", "", "clone"),
    Fact(10 * f32(8, 3, 32, 32), "temporary", "video", f"{RESULT}|{UNNAMED}|{var('video')}", "", "stack|clamp"),
    Fact(f32(8, 3, 32, 32), "temporary", "denoise|next", f"{var('eps')}|{var('x')}|{UNNAMED}", ".*"),
)  # fmt: skip
def frames_of_a_video():
    net = nn.Conv2d(4, 3, 3, padding=1)
    with torch.no_grad(), memwatch.profile() as prof:
        x, frames = torch.randn(8, 3, 32, 32), []
        for t in range(10):
            at = torch.full((8, 1, 32, 32), t / 10)
            eps = net(torch.cat([x, at], 1))  # peak: denoise
            x = x - 0.1 * eps  # peak: next
            frames.append(x.clone())  # peak: frame
        torch.stack(frames, 1).clamp(-1, 1)  # peak: video
    return Ran(prof, {"net": net})
