"""Programs whose peaks are known to the byte: each maker builds the model outside and returns the function to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own convention

Program = Callable[[], Any]


def train(
    net: nn.Module, loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer, count: int = 2
) -> Program:
    """Return a program of `count` training steps."""

    def run() -> Any:
        for _ in range(count):
            optimizer.zero_grad()
            value = loss()
            value.backward()
            optimizer.step()
        return value

    return run


def mlp() -> Program:
    net = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4)])
    x = torch.randn(32, 64)
    return train(net, lambda: net(x).pow(2).mean(), torch.optim.AdamW(net.parameters(), foreach=False))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, width: int = 64, layers: int = 3, vocabulary: int = 97) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(32, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt() -> Program:
    net = Gpt()
    tokens = torch.randint(97, (4, 33))

    def loss() -> Tensor:
        logits = net(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return train(net, loss, torch.optim.AdamW(net.parameters()), 3)


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.short(x), inplace=True)


def resnet() -> Program:
    blocks = [Residual(8, 8, 1), Residual(8, 16, 2), Residual(16, 16, 1), Residual(16, 32, 2)]
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)
    )
    x, y = torch.randn(4, 3, 32, 32), torch.randint(10, (4,))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)
    return train(net, lambda: F.cross_entropy(net(x), y), optimizer)


def lstm() -> Program:
    net, x = nn.LSTM(16, 32, 2, batch_first=True), torch.randn(4, 12, 16)
    return train(net, lambda: net(x)[0].pow(2).mean(), torch.optim.Adam(net.parameters()))


def encoder_eval() -> Program:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    net, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(4, 16, 32)

    def run() -> Tensor:
        with torch.no_grad():
            return net(x)

    return run


def conv_float64() -> Program:
    net, x = nn.Conv2d(4, 8, 3, dilation=2).double(), torch.randn(2, 4, 24, 24, dtype=torch.float64)
    return train(net, lambda: net(x).pow(2).sum(), torch.optim.SGD(net.parameters(), lr=0.1))


def sdpa() -> Program:
    q, k, v = (torch.randn(2, 4, 64, 16, requires_grad=True) for _ in range(3))
    return lambda: F.scaled_dot_product_attention(q, k, v).sum().backward()


def sort_and_topk() -> Program:
    x = torch.randn(64, 512)
    return lambda: (x.sort(dim=1), x.topk(5), x.sort(dim=0, stable=True)[0].sum())


@torch.library.custom_op("memwatch_truth::big_temporaries", mutates_args=())
def big_temporaries(x: Tensor) -> Tensor:
    """Double a tensor with temporaries that never leave the function."""
    big = x.repeat(50).exp().log()
    return big[: x.numel()].reshape(x.shape) + x


@big_temporaries.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


big_temporaries.register_autograd(lambda ctx, grad: grad * 2)


def custom_op() -> Program:
    x = torch.randn(1000, requires_grad=True)
    return lambda: big_temporaries(x).sum().backward()


def lora() -> Program:
    base = nn.Linear(128, 128)
    base.requires_grad_(False)
    down, up = nn.Linear(128, 4, bias=False), nn.Linear(4, 128, bias=False)
    x = torch.randn(16, 128)
    net = nn.ModuleList([base, down, up])
    return train(
        net,
        lambda: (base(x) + up(down(x))).pow(2).mean(),
        torch.optim.AdamW([*down.parameters(), *up.parameters()]),
    )


def sparse_embedding() -> Program:
    table = nn.Embedding(1000, 16, sparse=True)
    tokens = torch.randint(1000, (4, 20))
    return train(table, lambda: table(tokens).pow(2).sum(), torch.optim.SparseAdam(table.parameters()))


def lbfgs() -> Program:
    net, x = nn.Linear(32, 8), torch.randn(16, 32)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=5)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        return loss

    return lambda: [optimizer.step(closure) for _ in range(2)]


def two_optimizers() -> Program:
    maker = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32))
    critic = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    makes, judges = torch.optim.Adam(maker.parameters()), torch.optim.RMSprop(critic.parameters())
    real = torch.randn(16, 32)

    def run() -> None:
        for _ in range(2):
            fake = maker(torch.randn(16, 8))
            judges.zero_grad()
            (critic(fake.detach()).mean() - critic(real).mean()).backward()
            judges.step()
            makes.zero_grad()
            (-critic(fake).mean()).backward()
            makes.step()

    return run


def model_inside() -> Program:
    """Everything is made in the block, the model too."""
    return lambda: mlp()()


def indexing() -> Program:
    """Gradients of indexing, sorting and gathering, and a tensor used four times."""
    x = torch.randn(64, 256, requires_grad=True)
    rows = torch.arange(0, 64, 3)

    def run() -> None:
        y = x * 2
        (
            y[rows].sum() + y.max(1)[0].sum() + y[:32].exp().sum() + y[32:].prod(1).sum() + y.cumsum(1).sum()
        ).backward()

    return run


MAKERS = {
    maker.__name__: maker
    for maker in (
        mlp, gpt, resnet, lstm, encoder_eval, conv_float64, sdpa, sort_and_topk, custom_op, lora,
        sparse_embedding, lbfgs, two_optimizers, model_inside, indexing,
    )
}  # fmt: skip
