"""Take pictures of the pages, in light and in dark: a small GPT, its leaks, a plan of it, and two captures of it.

    python reports/page_pictures.py

Writes reports/page/*.png. Look at them after a change of the page.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import memwatch
from memwatch.analysis import ByDevice
from memwatch.analysis.compare import compare
from memwatch.report import diff_page, html, leak_page, trade_off

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from page import browser  # noqa: E402

WIDTH, VOCABULARY, LENGTH = 32, 64, 32
SIZE = (1240, 1160)
LAYER = {
    "nhead": 2,
    "dim_feedforward": 4 * WIDTH,
    "batch_first": True,
    "norm_first": True,
    "activation": "gelu",
}


class GPT(nn.Module):
    """Two blocks over characters."""

    def __init__(self) -> None:
        """Make two blocks."""
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(WIDTH, **LAYER) for _ in range(2)])
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Training:
    """A loop that keeps the logits of every step, as a careless one does."""

    def __init__(self, batch: int) -> None:
        torch.manual_seed(0)
        self.model = GPT()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.logits: list[torch.Tensor] = []
        self.batch = batch

    def step(self) -> None:
        """Train one step."""
        tokens = torch.randint(0, VOCABULARY, (self.batch, LENGTH))
        logits = self.model(tokens)
        self.logits.append(logits)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def record(self, steps: int, **options: bool) -> memwatch.Profile:
        """Return what some steps did."""
        with memwatch.profile(**options) as prof:
            for _ in range(steps):
                self.step()
                prof.step()
        return prof


def pages(folder: Path) -> dict[str, tuple[Path, str]]:
    """Write the pages; return each with the part of it to show."""
    torch.set_num_threads(1)
    Training(4).step()  # what is made once in a process is made before
    small = Training(4).record(3)
    large = Training(6).record(3)
    training = Training(4)
    training.step()
    planned = training.record(1, replay=True)
    plan = memwatch.plan(planned, budget="60%")
    compared = compare(*(ByDevice(each.capture).tables("cpu") for each in (small, large)))
    leaks = memwatch.find_leaks(training.step)
    half = len(small.timeline) // 2
    return {
        "gpt": (html(small, folder / "gpt.html"), ""),
        "instant": (
            html(small, folder / "instant.html"),
            f"#at={half}&than=peak&by=module.phase&color=module",
        ),
        "storage": (html(small, folder / "storage.html"), f"#storage={small.at_peak.index[0]}"),
        "leak": (leak_page(leaks, folder / "leak.html", title="one step of the training"), ""),
        "plan": (
            html(planned, folder / "plan.html", plan=plan, tradeoff=trade_off(plan, shares=(80, 60, 40))),
            "plan",
        ),
        "diff": (diff_page(compared, folder / "diff.html", old="batch 4", new="batch 6"), ""),
    }


def main() -> None:
    """Take each page twice."""
    with tempfile.TemporaryDirectory() as folder:
        driver = browser()
        driver.set_window_size(*SIZE)
        for name, (page, part) in pages(Path(folder)).items():
            for theme in ("light", "dark"):
                driver.get("about:blank")
                driver.get(page.as_uri() + (part if part.startswith("#") else ""))
                driver.execute_script(f"document.documentElement.dataset.theme = '{theme}'")
                driver.execute_script(
                    "dispatchEvent(new Event('resize')); document.getElementById('theme').click()"
                )
                driver.execute_script("document.getElementById('theme').click()")
                if part and not part.startswith("#"):
                    driver.execute_script("document.getElementById(arguments[0]).scrollIntoView()", part)
                driver.execute_async_script("setTimeout(arguments[0], 700)")
                driver.save_screenshot(str(HERE / "page" / f"{name}-{theme}.png"))
        driver.quit()


if __name__ == "__main__":
    main()
