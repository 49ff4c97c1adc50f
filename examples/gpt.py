"""Train a small character-level GPT on the source code of Python's own library, and watch its memory."""

import pathlib

import torch
from torch import Tensor, nn
from torch.nn import functional

import memwatch
from memwatch.report import plan_summary, trade_off

LAYERS, HEADS, WIDTH, CONTEXT, BATCH, STEPS = 4, 4, 128, 128, 16, 20


class Attention(nn.Module):
    """Causal self-attention with several heads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Let every position look at those before it."""
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    """Attention and a small network, each added to what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Transform each position."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Characters in, a score for each possible next character out."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, WIDTH)
        self.position = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)

    def forward(self, characters: Tensor) -> Tensor:
        """Score the next character at every position."""
        return self.head(self.norm(self.blocks(self.token(characters) + self.position)))


def library_text() -> str:
    """Read some of the source files that every Python has."""
    folder = pathlib.Path(pathlib.__file__).parent
    folder = folder.parent if folder.name == "pathlib" else folder
    return "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("[a-d]*.py")))


def train_step(model: GPT, optimizer: torch.optim.Optimizer, data: Tensor) -> float:
    """Take one step on a batch of random pieces of the text; return the loss."""
    starts = torch.randint(len(data) - CONTEXT - 1, (BATCH,))
    batch = torch.stack([data[start : start + CONTEXT + 1] for start in starts])
    logits = model(batch[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main() -> None:
    torch.manual_seed(0)
    text = library_text()
    characters = sorted(set(text))
    number = {character: index for index, character in enumerate(characters)}
    data = torch.tensor([number[character] for character in text])
    model = GPT(len(characters))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    with memwatch.profile() as prof:
        for step in range(STEPS):
            print(f"step {step:2}  loss {train_step(model, optimizer, data):.3f}")
            prof.step()

    print(prof.summary())
    pathlib.Path("out").mkdir(exist_ok=True)
    prof.save("out/gpt.memwatch", force=True)
    prof.report("out/gpt.html", force=True)
    print("The page, to be opened in a browser: out/gpt.html\n")

    print("How low could the peak of a step be? (The first plan on a machine takes some seconds more.)")
    with memwatch.profile(replay=True) as prof:
        train_step(model, optimizer, data)
    others = trade_off(memwatch.plan(prof, budget="60%"))
    plan = memwatch.plan(prof, budget="60%")  # the best that any of these searches found
    result = memwatch.replay(plan)
    print(plan_summary(plan, result, reading=prof, tradeoff=others))
    prof.report("out/gpt_plan.html", plan=plan, result=result, tradeoff=others, force=True)
    print("The page with the plan in it: out/gpt_plan.html")


if __name__ == "__main__":
    main()
