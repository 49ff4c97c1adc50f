"""Programs whose data are Python's own numbers or lie in a file: torch makes their memory below every op."""

from __future__ import annotations

import collections
import io
import random

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from truth_facts import ANY, GRAD, GRADIENT, RESULT, SAVED, UNNAMED, Fact, Ran, f32, pattern, var

import memwatch

PASSING = f"{UNNAMED}|{GRADIENT}|{RESULT}|the running op"
ROWS, IN, HIDDEN, OUT, LINES = 157, 73, 251, 29, 1501


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(IN, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, OUT)

    def forward(self, x):
        h = functional.relu(self.a(x))  # peak: a
        h = functional.relu(self.b(h))  # peak: b
        return self.c(h)  # peak: c


IN_NET = (
    Fact(f32(ROWS, HIDDEN), "activation", "a|b", SAVED, "net|Net", "relu"),
    Fact(f32(ROWS, HIDDEN), "temporary", "a|b|c", PASSING, "(net|Net)?[.]?[abc]?"),
    Fact(f32(HIDDEN, HIDDEN), "gradient|temporary", "b", f"{GRAD}|{PASSING}", "b"),
    Fact(ROWS * 8, "temporary", "picked", ".*"),
)


@pattern(
    Fact(f32(LINES, IN), "held", "table", var("table")),
    Fact(f32(ROWS, IN), "input", "picked", f"{SAVED}|{var('x')}"),
    *IN_NET,
    Fact(ANY, "gradient|temporary|activation", "a|b|c|loss|step", ".*", ".*"),
)
def rows_of_numbers_read_from_text():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)
    draw = random.Random(0).random
    text = [[draw() for _ in range(IN)] for _ in range(LINES)]
    with memwatch.profile() as prof:
        table = torch.tensor(text)  # peak: table
        for _ in range(4):
            x = table[torch.randperm(LINES)[:ROWS]]  # peak: picked
            loss = net(x).square().mean()  # peak: loss
            loss.backward()
            optimizer.step()  # peak: step
            optimizer.zero_grad()
            prof.step()
    return Ran(prof, {"net": net})


class Words(Dataset):
    def __init__(self):
        self.lengths = [17 + number % 23 for number in range(160)]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return torch.tensor([float(at) for at in range(self.lengths[index])]), index % 5  # peak: item


def padded(items):
    lengths = torch.tensor([label for _, label in items])  # peak: labels
    return nn.utils.rnn.pad_sequence([item for item, _ in items], batch_first=True), lengths  # peak: pad


@pattern(
    Fact(f32(40, 39), "input", "pad", f"{SAVED}|{var('x')}|{PASSING}"),
    Fact(8 * 40, "input|activation|temporary", "labels", f"{SAVED}|{var('y')}"),
    *(Fact(f32(length), "temporary|input", "item", ".*") for length in range(17, 40)),
    Fact(f32(40, 401), "activation", "loss", SAVED, "1", "tanh.default"),
    Fact(f32(40, 401), "temporary", "loss", PASSING, "[012]"),
    Fact(f32(401, 39), "gradient|temporary", "loss", f"{GRAD}|{PASSING}", "0"),
    Fact(ANY, "gradient|temporary|activation", "loss", ".*", ".*"),
)
def lists_of_numbers_that_are_padded():
    net = nn.Sequential(nn.Linear(39, 401), nn.Tanh(), nn.Linear(401, 5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
    with memwatch.profile() as prof:
        for x, y in DataLoader(Words(), batch_size=40, collate_fn=padded):
            functional.cross_entropy(net(x), y).backward()  # peak: loss
            optimizer.step()
            optimizer.zero_grad()
    return Ran(prof, {"net": net})


SEEN, MOVES, PICKED, UNITS = 151, 7, 61, 53


class Values(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(SEEN, UNITS), nn.Linear(UNITS, MOVES)

    def forward(self, seen):
        return self.b(functional.relu(self.a(seen)))  # peak: values


@pattern(
    Fact(f32(101, SEEN), "held", "corpus", var("corpus")),
    Fact(f32(SEEN), "held", "state", f"memory|{var('picked')}"),
    Fact(f32(PICKED, SEEN), "input", "before|after", f"{SAVED}|{var('before')}|{var('after')}"),
    Fact(f32(PICKED, UNITS), "activation", "values", SAVED, "net|Values", "relu"),
    Fact(f32(PICKED, UNITS), "temporary", "values", PASSING, "(net|target|Values)?[.]?[ab]?"),
    Fact(f32(UNITS, SEEN), "temporary", "step", ".*", "", "add|mul|sqrt|div|lerp"),
    Fact(ANY, "gradient|temporary|activation", "values|best|loss|moves|step", ".*", ".*"),
)
def transitions_of_numbers_in_a_deque():
    draw = random.Random(0)
    net, target = Values(), Values()
    memory = collections.deque(maxlen=250)
    optimizer = torch.optim.Adam(net.parameters(), foreach=False)
    with memwatch.profile() as prof:
        corpus = torch.tensor([[draw.random() for _ in range(SEEN)] for _ in range(101)])  # peak: corpus
        state = corpus[0].clone()  # peak: state
        for number in range(500):
            follows = torch.tensor([draw.random() for _ in range(SEEN)])  # peak: state
            memory.append((state, number % MOVES, follows))
            state = follows
            if number > 300 and number % 50 == 0:
                picked = draw.sample(memory, PICKED)
                before = torch.stack([each[0] for each in picked])  # peak: before
                after = torch.stack([each[2] for each in picked])  # peak: after
                moves = torch.tensor([each[1] for each in picked])  # peak: moves
                with torch.no_grad():
                    best = 1 + 0.9 * target(after).max(1).values  # peak: best
                values = net(before).gather(1, moves[:, None])[:, 0]  # peak: loss
                loss = functional.smooth_l1_loss(values, best)  # peak: loss
                loss.backward()
                optimizer.step()  # peak: step
                optimizer.zero_grad()
                prof.step()
        del corpus
    return Ran(prof, {"net": net, "target": target})


@pattern(
    Fact(f32(HIDDEN, HIDDEN), "temporary|held", "read", f"{var('state')}|{var('saved')}"),
    Fact(f32(HIDDEN, IN), "temporary|held", "read", f"{var('state')}|{var('saved')}"),
    Fact(f32(OUT, HIDDEN), "temporary|held", "read", f"{var('state')}|{var('saved')}"),
    Fact(f32(HIDDEN), "temporary|held", "read", f"{var('state')}|{var('saved')}", most=2),
    *IN_NET,
    Fact(f32(ROWS, IN), "input", "batch", f"{SAVED}|{var('x')}|{UNNAMED}"),
    Fact(ANY, "gradient|temporary|activation", "a|b|c|loss", ".*", ".*"),
)
def checkpoint_that_is_read_and_kept():
    net, file = Net(), io.BytesIO()
    torch.save({"state": net.state_dict(), "epoch": 3}, file)
    file.seek(0)
    with memwatch.profile() as prof:
        saved = torch.load(file)  # peak: read
        net.load_state_dict(saved["state"])
        x = torch.randn(ROWS, IN)  # peak: batch
        net(x).square().mean().backward()  # peak: loss
        assert saved["epoch"] == 3
    return Ran(prof, {"net": net})
