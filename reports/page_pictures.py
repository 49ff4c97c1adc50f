"""Take pictures of the pages, in light and in dark: a small GPT, its leaks, a plan of it, two captures and four ranks.

    python reports/page_pictures.py

Writes reports/page/*.png. Look at them after a change of the page.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import memwatch
from memwatch.analysis import ByDevice
from memwatch.analysis.compare import compare, peak_sites
from memwatch.report import diff_page, html, leak_page, trade_off

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from page import browser  # noqa: E402

SIZE = (1240, 1160)
TALL = (1240, 1660)
"""For the README's picture, with the headline, the changes and the curve, and for a plan with both of its charts."""
RANKS, STEPS = 4, 8


def pages(folder: Path) -> dict[str, tuple[Path, str]]:
    """Write the pages; return each with the fragment of its address."""
    torch.set_num_threads(1)
    shutil.copy(HERE / "page_training.py", folder / "train.py")
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    train = importlib.import_module("train")
    train.Training(4).record(1)  # what is made once in a process is made before
    small = train.Training(4).record(3)
    large = train.Training(6).record(3)
    training = train.Training(4)
    training.step()
    planned = training.record(1, replay=True)
    plan = memwatch.plan(planned, budget="60%")
    compared = compare(*(peak_sites(ByDevice(each.capture).tables("cpu")) for each in (small, large)))
    half = len(small.timeline) // 2
    return {
        "gpt": (html(small, folder / "gpt.html"), ""),
        "instant": (
            html(small, folder / "instant.html"),
            f"#at={half}&than=peak&by=module.phase&color=module",
        ),
        "storage": (html(small, folder / "storage.html"), f"#storage={small.at_peak.index[0]}"),
        "leak": (
            leak_page(train.leaks_of_a_step(), folder / "leak.html", title="one step of the training"),
            "",
        ),
        "plan": (
            html(planned, folder / "plan.html", plan=plan, tradeoff=trade_off(plan, shares=(80, 60, 40))),
            "",
        ),
        "ranks": (ranks_page(folder), ""),
        "diff": (diff_page(compared, folder / "diff.html", old="batch of 4", new="batch of 6"), ""),
    }


def ranks_page(folder: Path) -> Path:
    """Train as ranks of a gloo group, each a process; return the page of them all."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
    commands = ([sys.executable, "train.py", str(rank), str(RANKS), str(STEPS)] for rank in range(RANKS))
    processes = [subprocess.Popen(command, cwd=folder, env=environment) for command in commands]
    assert not any(process.wait() for process in processes)
    return memwatch.merge(sorted(folder.glob("train.rank*.memwatch"))).report(folder / "ranks.html")


def main() -> None:
    """Take each page twice."""
    with tempfile.TemporaryDirectory() as folder:
        driver = browser()
        for name, (page, fragment) in pages(Path(folder)).items():
            driver.set_window_size(*(TALL if name in ("gpt", "plan") else SIZE))
            for theme in ("light", "dark"):
                driver.get("about:blank")
                driver.get(page.as_uri() + fragment)
                driver.execute_script(f"document.documentElement.dataset.theme = '{theme}'")
                driver.execute_script(
                    "dispatchEvent(new Event('resize')); document.getElementById('theme').click()"
                )
                driver.execute_script("document.getElementById('theme').click()")
                shown = {"instant": "timeline", "plan": "plan"}.get(name)
                if shown:
                    driver.execute_script("document.getElementById(arguments[0]).scrollIntoView()", shown)
                driver.execute_async_script("setTimeout(arguments[0], 700)")
                driver.save_screenshot(str(HERE / "page" / f"{name}-{theme}.png"))
        driver.quit()


if __name__ == "__main__":
    main()
