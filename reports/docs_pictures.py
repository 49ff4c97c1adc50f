"""Draw the pictures of the pages on concepts, with what memwatch itself draws: its page, its figures, its graphs.

    python reports/docs_pictures.py

Writes docs/pictures/. Look at them after a change of the page.
"""

from __future__ import annotations

import base64
import importlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from page_pictures import ranks_page
from selenium.webdriver.common.by import By
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import memwatch
from memwatch.report import html

if TYPE_CHECKING:
    from types import ModuleType

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from page import browser  # noqa: E402

PICTURES = HERE.parent / "docs" / "pictures"
WINDOW = (900, 1400)
"""It is so high that no part of a dialog needs a scroll bar."""
MARGIN = 8
"""Pixels around a part."""
FIGURE_INCHES = (8, 3)
DOTS_PER_INCH = 90
AROUND = """
    const [elements, margin] = arguments;
    const boxes = elements.map((element) => element.getBoundingClientRect());
    const edge = (of, name) => of(...boxes.map((box) => box[name]));
    const [x, y] = [edge(Math.min, "left") - margin, edge(Math.min, "top") - margin];
    const [width, height] = [edge(Math.max, "right") + margin - x, edge(Math.max, "bottom") + margin - y];
    return { x: x + scrollX, y: y + scrollY, width, height };
"""
"""The box around some elements: a chart with its legend."""
LEAKY = """import torch

cache = []


class Owner:
    pass


def keep():
    cache.append(torch.ones(1000))


def knot():
    owner = Owner()
    owner.itself = owner
    owner.weight = torch.ones(1000)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.result = x * 2
        return ctx.result


def fold():
    Double.apply(torch.ones(1000, requires_grad=True))
"""


def save(axes: object, name: str) -> None:
    """Save a figure of `prof.plot`."""
    figure = axes.figure  # type: ignore[attr-defined]
    figure.set_size_inches(*FIGURE_INCHES)
    figure.savefig(PICTURES / name, dpi=DOTS_PER_INCH)


def figures(prof: memwatch.Profile) -> None:
    """Draw the peak on the curve, and the peak of an estimate."""
    save(prof.plot.timeline(), "peak.png")
    with FakeTensorMode(), memwatch.profile() as estimate:
        blocks = [nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True) for _ in range(12)]
        model = nn.Sequential(*blocks)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(4, 512, 1024)).sum().backward()
        optimizer.step()
    save(estimate.plot.peak(), "estimate.png")


def graphs(leaky: ModuleType) -> None:
    """Draw a leak of each kind."""
    for name, fn in (("retained", leaky.keep), ("cycle", leaky.knot), ("uncollectable", leaky.fold)):
        for leak in memwatch.find_leaks(fn):
            leak.draw(PICTURES / f"{name}.svg")


def parts(folder: Path, prof: memwatch.Profile, planned: memwatch.Profile) -> None:
    """Take pictures of parts of the page."""
    plan = memwatch.plan(planned, budget="60%")
    peak = html(prof, folder / "peak.html")
    with_plan = html(planned, folder / "plan.html", plan=plan, result=memwatch.replay(plan), tradeoff=())
    storage = prof.at_peak.query("category == 'activation'").index[0]
    idle = prof.at_peak.query("category == 'held'").index[0]
    taken = {
        "holder.png": (f"{peak.as_uri()}#storage={storage}", "dialog[open]"),
        "phases.png": (
            f"{peak.as_uri()}#storage={idle}",
            "dialog[open] :is(h3:has(+ .biography), .biography, .biography + .layers)",
        ),
        "plan.png": (with_plan.as_uri(), "#curves-title, #curves-title + .legend, #plan-curves"),
        "ranks.png": (ranks_page(folder).as_uri(), "#steps"),
    }
    driver = browser()
    driver.set_window_size(*WINDOW)
    for name, (address, part) in taken.items():
        driver.get("about:blank")
        driver.get(address)
        driver.execute_script("document.documentElement.dataset.theme = 'light'")
        driver.execute_async_script("setTimeout(arguments[0], 1500)")
        elements = driver.find_elements(By.CSS_SELECTOR, part)
        driver.execute_script(
            "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", elements[0]
        )
        clip = driver.execute_script(AROUND, elements, MARGIN)
        shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": {**clip, "scale": 1}})
        (PICTURES / name).write_bytes(base64.b64decode(shot["data"]))
    driver.quit()


def main() -> None:
    """Draw all pictures."""
    torch.set_num_threads(1)
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "training"
        folder.mkdir()
        shutil.copy(HERE / "page_training.py", folder / "train.py")
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        training = importlib.import_module("train").Training
        (folder / "leaky.py").write_text(LEAKY, encoding="utf-8")
        training(4).record(1)
        prof = training(4).record(3)
        figures(prof)
        graphs(importlib.import_module("leaky"))
        again = training(4)
        again.step()
        parts(folder, prof, again.record(1, replay=True))


if __name__ == "__main__":
    main()
