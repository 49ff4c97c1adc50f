"""A real training run and a real browser, each started once for the tests of the reports."""

from __future__ import annotations

import gc
import json
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import pytest
import torch
from forked import run_forked
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait
from torch import nn

import memwatch
from memwatch.profile import profile
from memwatch.report import trade_off

DEBIAN_PACKAGES = {"chromium": "chromium", "chromedriver": "chromium-driver"}
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1440,1200",
)


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True, dropout=0.1)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)


class TinyGPT(nn.Module):
    """Two blocks over characters."""

    def __init__(self, vocabulary: int = 64, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([Block(width), Block(width)])
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture(scope="session")
def training():
    """Profile two steps of a tiny GPT with AdamW.

    Tensors of other tests are hidden from the recording. pytest makes this fixture before `_memwatch_keeps_nothing`
    freezes the objects of other files, because its scope is wider.
    """
    gc.collect()
    gc.freeze()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = TinyGPT()
    optimizer = torch.optim.AdamW(model.parameters())
    with profile() as prof:
        for _ in range(2):
            tokens = torch.randint(0, 64, (4, 32))
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            prof.step()
    return prof


@pytest.fixture(scope="session")
def planned():
    """Plan one step of a tiny GPT for 45 % of its peak, for other budgets, and replay the plan."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = TinyGPT()
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        tokens = torch.randint(0, 64, (4, 32))
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    step()
    with profile(replay=True) as prof:
        step()
    plan = memwatch.plan(prof, budget="45%")
    others = trade_off(plan, shares=(80, 60, 45, 5), time_limit_s=16)  # enough on a busy machine
    return SimpleNamespace(reading=prof, plan=plan, tradeoff=others, result=memwatch.replay(plan))


@pytest.fixture(scope="session")
def leaked(_fork_server, tmp_path_factory):
    """Find the leaks of a function that leaks in each of the three ways, in a process whose heap is small."""
    folder, outputs = tmp_path_factory.mktemp("leaks"), tmp_path_factory.mktemp("outputs")
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import leaking; leaking.write_leaks()"
    done = run_forked(_fork_server, code, folder=folder, outputs=outputs)
    assert done.returncode == 0, done.stderr
    return pickle.loads((folder / "leaks.pickle").read_bytes())


def find_program(name: str) -> str:
    """Find a browser program, or fail and name its package."""
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is not installed: apt-get install {DEBIAN_PACKAGES[name]}", pytrace=False)
    return found


class Browser:
    """Headless Chromium with the page, its requests and its console errors."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, path, fragment: str = "") -> None:
        """Open a page afresh and wait until all of it is drawn."""
        self.driver.get("about:blank")
        self.forget()
        self.driver.get(f"{path.as_uri()}{fragment}")
        self.wait(lambda: self.js("return document.documentElement.dataset.ready === 'yes'"))

    def forget(self) -> None:
        """Drop what the logs hold so far."""
        self.driver.get_log("browser")
        self.driver.get_log("performance")

    def js(self, code: str, *arguments):
        """Run script in the page."""
        return self.driver.execute_script(code, *arguments)

    def wait(self, condition, seconds: float = 20):
        """Wait for something to become true."""
        return WebDriverWait(self.driver, seconds, poll_frequency=0.02).until(lambda _: condition())

    def act(self, action) -> None:
        """Do something that changes what is shown, and wait until that is drawn."""
        shown = "return Number(document.documentElement.dataset.shown ?? 0)"
        before = self.js(shown)
        action()
        self.wait(lambda: self.js(shown) > before)

    def go(self, fragment: str) -> None:
        """Change the address's fragment as a link would."""
        self.act(lambda: self.js("location.hash = arguments[0]", fragment))

    def click(self, selector: str) -> None:
        """Click an element that changes what is shown."""
        self.act(lambda: self.js("document.querySelector(arguments[0]).click()", selector))

    def text(self, selector: str) -> str:
        """Return the text of an element, shown or not."""
        return self.js("return document.querySelector(arguments[0]).textContent", selector)

    def state(self) -> dict[str, str]:
        """Return the parts of the fragment."""
        fragment = self.js("return location.hash.slice(1)")
        pairs = (each.split("=") for each in fragment.split("&") if each)
        return {key: unquote(value.replace("+", " ")) for key, value in pairs}

    def column(self, number: int) -> list[str]:
        """Return a column of the table shown, from 1."""
        self.drawn()
        cells = f"[...document.querySelectorAll('#panel tbody td:nth-child({number})')]"
        return self.js(f"return {cells}.map((cell) => cell.textContent)")

    def drawn(self) -> None:
        """Wait until the table has all its rows."""
        self.wait(lambda: not self.js("return document.querySelector('#panel [aria-busy=true]')"))

    def row_keys(self) -> list[str]:
        """Return the keys (storage ids, module names) of the rows shown."""
        self.drawn()
        return self.js(
            "return [...document.querySelectorAll('#panel tbody tr[data-key]')].map((row) => row.dataset.key)"
        )

    def live_bytes(self) -> int:
        """Return the sum of the live set shown."""
        return int(self.js("return document.getElementById('live-total').dataset.bytes"))

    def console(self) -> list[str]:
        """Return what the page wrote to the console, and the violations of its policy."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> set[str]:
        """Return the address of every request since the page was opened."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        asked = {
            m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"
        }
        return {url.split("#")[0] for url in asked}


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """Start Chromium."""
    options = webdriver.ChromeOptions()
    options.binary_location = find_program("chromium")
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(find_program("chromedriver")))
    yield Browser(driver)
    driver.quit()
