"""Tiny models of eight kinds with one step of their training, and a count of live bytes by torch's own profiler.

Nothing here imports memwatch: the plain script of a test is run with it in a process of its own.
"""

from __future__ import annotations

import gc

import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile


class Attention(nn.Module):
    def __init__(self, width, heads=2, dropout=0.0, causal=True):
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
        if self.causal:
            scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
        mixed = functional.dropout(scores.softmax(-1), self.dropout, self.training) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, dropout=0.0, causal=True, mlp=None):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, dropout=dropout, causal=causal)
        self.mlp = mlp or nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class SwiGLU(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    def __init__(self, width, count=4):
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(SwiGLU(width) for _ in range(count))

    def forward(self, x):
        weight, choice = self.router(x).softmax(-1).max(-1)
        parts = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mask = choice == number
            parts = parts.masked_scatter(mask[..., None], (expert(x[mask]) * weight[mask][:, None]))
        return parts


class Transformer(nn.Module):
    def __init__(self, blocks, width=32, vocabulary=64, length=32):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x):
        return functional.relu(x + self.body(x))


class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.down1, self.down2 = self.part(3, width), self.part(width, 2 * width)
        self.middle = self.part(2 * width, 4 * width)
        self.up2, self.up1 = self.part(6 * width, 2 * width), self.part(3 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    @staticmethod
    def part(inside, outside):
        return nn.Sequential(
            nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(2, outside), nn.SiLU(),
            nn.Conv2d(outside, outside, 3, padding=1), nn.GroupNorm(2, outside), nn.SiLU(),
        )  # fmt: skip

    def forward(self, x):
        first = self.down1(x)
        second = self.down2(functional.max_pool2d(first, 2))
        x = functional.interpolate(self.middle(functional.max_pool2d(second, 2)), scale_factor=2)
        x = functional.interpolate(self.up2(torch.cat([x, second], 1)), scale_factor=2)
        return self.out(self.up1(torch.cat([x, first], 1)))


class Recurrent(nn.Module):
    def __init__(self, width=32, layers=4):
        super().__init__()
        self.layers = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        for layer in self.layers:
            x, _ = layer(x)
        return self.head(x)


def gpt():
    model = Transformer(Block(32, dropout=0.1) for _ in range(6))
    return model, torch.optim.AdamW(model.parameters()), of_tokens(model)


def llama():
    model = Transformer(Block(32, mlp=SwiGLU(32)) for _ in range(6))
    return model, torch.optim.AdamW(model.parameters(), foreach=True), of_tokens(model)


def bert():
    model = Transformer(nn.TransformerEncoderLayer(32, 2, 64, 0.1, batch_first=True) for _ in range(5))
    return model, torch.optim.Adam(model.parameters()), of_tokens(model)


def experts():
    model = Transformer(Block(32, mlp=Experts(32)) for _ in range(4))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), of_tokens(model)


def resnet():
    blocks = (Residual(8) for _ in range(6))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *blocks, *head)
    return (
        model,
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        of_values(model, (8, 3, 24, 24), (8,)),
    )


def unet():
    model = UNet()
    return model, torch.optim.Adam(model.parameters()), of_values(model, (4, 3, 32, 32), None)


def lstm():
    model = Recurrent()
    return model, torch.optim.RMSprop(model.parameters()), of_values(model, (8, 64, 32), None)


def mlp():
    layers = [layer for _ in range(12) for layer in (nn.Linear(32, 32), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(32, 4))
    return model, torch.optim.AdamW(model.parameters()), of_values(model, (1024, 32), None)


PROGRAMS = {each.__name__: each for each in (gpt, llama, bert, experts, resnet, unet, lstm, mlp)}


def of_tokens(model):
    ids = torch.randint(0, 64, (8, 32))
    return lambda: functional.cross_entropy(model(ids).flatten(0, 1), ids.roll(1, 1).flatten())


def of_values(model, shape, classes):
    x = torch.randn(shape)
    if classes is None:
        return lambda: model(x).square().mean()
    target = torch.randint(0, 4, classes)
    return lambda: functional.cross_entropy(model(x), target)


def made(name):
    """Return a model, its optimizer and one step of its training, the same each time."""
    torch.manual_seed(0)
    model, optimizer, loss = PROGRAMS[name]()

    def step():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        return value.detach()

    torch.manual_seed(1)
    return model, optimizer, step


def peak_of(step, steps=3):
    """Return the most live bytes of the host over some steps, by the memory events of torch's profiler.

    A first step has the gradients and the optimizer's state be made within the count, so that it knows their sizes.
    """
    gc.collect()
    level = alive()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as counted:
        for _ in range(steps):
            step()
    events = [event for event in counted.profiler.kineto_results.events() if event.name() == "[memory]"]
    peak = level
    for event in sorted(events, key=lambda event: event.start_ns()):
        level += event.nbytes()
        peak = max(peak, level)
    return peak


def alive():
    """Return the bytes of all storages of the process, parameters' gradients included; a compiler's have no bytes."""
    tensors = [each for each in gc.get_objects() if type(each) in (torch.Tensor, nn.Parameter)]
    tensors += [each.grad for each in tensors if each.is_leaf and each.grad is not None]
    sizes = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    return sum(sizes.values())


def values_after(name, code="", steps=3):
    """Return the losses of some steps, and the state that they leave, of a program with some lines added."""
    model, optimizer, step = made(name)
    exec(code, {"model": model, "optimizer": optimizer})
    losses = [step() for _ in range(steps)]
    return [
        *losses,
        *model.state_dict().values(),
        *(p.grad for p in model.parameters() if p.grad is not None),
    ]
