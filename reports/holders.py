"""Measure who holds what on the GPT workload: what looking costs, and what the peak is made of and held by.

Writes reports/holders.md. Run it on an idle machine: `python reports/holders.py [--rounds N]`.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import statistics
import sys
import time
from typing import TYPE_CHECKING

import torch
from torch.nn import functional
from workloads import GPT, gpt

import memwatch
from memwatch.sizes import format_bytes

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "examples"))
import gpt as example  # noqa: E402  # the demo is no package

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd


def demo() -> Callable[[], object]:
    """Return a step of the demo, as `make demo` runs it: examples/gpt.py with its own model and data."""
    torch.manual_seed(0)
    text = example.library_text()
    number = {character: index for index, character in enumerate(sorted(set(text)))}
    data = torch.tensor([number[character] for character in text])
    model = example.GPT(len(number))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return functools.partial(example.train_step, model, optimizer, data)


def timed(
    make: Callable[[], Callable[[], object]],
    steps: int,
    *,
    holders: bool,
    mark: bool = True,
    warm: bool = True,
) -> tuple[float, memwatch.profile]:
    """Run some steps in a block; give the thread time in seconds, enter and exit included, and the block."""
    step = make()
    if warm:
        step()
    start = time.thread_time()
    with memwatch.profile(holders=holders) as prof:
        for _ in range(steps):
            step()
            if mark:
                prof.step()
    return time.thread_time() - start, prof


def cost(rounds: int) -> list[str]:
    """Compare blocks with and without holders, in turn."""
    lines = [
        f"Medians of {rounds} rounds, thread time of blocks, holders off and on in turn; added: median of the pairs",
        "",
        "| program | without holders | with holders | added | looks |",
        "| --- | --- | --- | --- | --- |",
    ]
    programs = {
        "the demo, examples/gpt.py: 20 steps": (demo, 20, True, False),
        "the GPT workload, 2 steps": (gpt, 2, False, True),
        "the GPT workload, 5 steps": (gpt, 5, False, True),
        "the GPT workload, 10 steps with `prof.step()`": (gpt, 10, True, True),
        "the GPT workload, 30 steps with `prof.step()`": (gpt, 30, True, True),
    }
    for name, (make, steps, mark, warm) in programs.items():
        off, on = [], []
        prof = None
        for _ in range(rounds):
            off.append(timed(make, steps, holders=False, mark=mark, warm=warm)[0])
            seconds, prof = timed(make, steps, holders=True, mark=mark, warm=warm)
            on.append(seconds)
        assert prof is not None
        ratio = statistics.median(one / other - 1 for one, other in zip(on, off, strict=True))
        looks = prof.capture.meta["holder_samples"]
        lines.append(
            f"| {name} | {statistics.median(off):.2f} s | {statistics.median(on):.2f} s | {ratio:.1%} | {looks} |"
        )
    return lines


def table(rows: pd.Series[int], names: tuple[str, ...], total: int) -> list[str]:
    """Write bytes by name as a table."""
    lines = [f"| {' | '.join(names)} | bytes | share |", "| --- " * (len(names) + 2) + "|"]
    for key, nbytes in rows.sort_values(ascending=False).items():
        parts = key if isinstance(key, tuple) else (key,)
        lines.append(
            f"| {' | '.join(map(str, parts))} | {format_bytes(int(nbytes))} | {nbytes / total:.1%} |"
        )
    return lines


def held(steps: int) -> list[str]:
    """Return the section on who holds the peak, and on the saved tensors by module and op."""
    _, prof = timed(gpt, steps, holders=True)
    peak = prof.at_peak
    total = int(peak["nbytes"].sum())
    lines = [
        "## Who holds the peak",
        "",
        *table(peak.groupby("holder_kind")["nbytes"].sum(), ("holder",), total),
        "",
        *table(peak.groupby("holder_evidence")["nbytes"].sum(), ("how it is known",), total),
        "",
    ]
    only = peak[peak["holder_kind"] == "C++ only"]
    lines += ["What C++ alone holds:", "", *[f"- {text}" for text in dict.fromkeys(only["holder"])], ""]
    saved = prof.saved[prof.saved["at_peak"] & (prof.saved["storage"] >= 0)].drop_duplicates("storage")
    kept = saved[~saved["storage"].map(prof.storages["category"]).isin(["parameter", "buffer"])].copy()
    kept["nbytes"] = kept["storage"].map(prof.storages["nbytes"])
    by_module = kept.groupby([kept["module"].replace("", "(outside any module)"), "op_name"])["nbytes"].sum()
    nbytes = int(kept["nbytes"].sum())
    heading = f"## Saved for backward at the peak: {format_bytes(nbytes)}, {nbytes / total:.1%}"
    return [*lines, heading, "", *table(by_module, ("module", "op"), total), ""]


def growth() -> list[str]:
    """Return the section on how the share saved for backward grows with the layers, in a step with AdamW."""
    lines = [
        "## Growth with the number of layers",
        "",
        "| layers | peak | saved for backward | share |",
        "| --- | --- | --- | --- |",
    ]
    for layers in (1, 2, 4, 8, 16):
        torch.manual_seed(0)
        model = GPT(layers=layers)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        tokens = torch.randint(0, 512, (16, 129))
        with memwatch.profile() as prof:
            for _ in range(2):
                optimizer.zero_grad()
                functional.cross_entropy(
                    model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
                ).backward()
                optimizer.step()
        rows = prof.saved[prof.saved["at_peak"] & (prof.saved["storage"] >= 0)].drop_duplicates("storage")
        rows = rows[~rows["storage"].map(prof.storages["category"]).isin(["parameter", "buffer"])]
        nbytes = int(rows["storage"].map(prof.storages["nbytes"]).sum())
        share = nbytes / int(prof.at_peak["nbytes"].sum())
        lines.append(f"| {layers} | {format_bytes(prof.peak_bytes)} | {format_bytes(nbytes)} | {share:.1%} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "# Holders on the GPT workload",
        "",
        "Written by `python reports/holders.py`: a 4-layer GPT, d=256, T=128, B=4, AdamW, one thread.",
        "",
        "## What looking costs",
        "",
        *cost(options.rounds),
        "",
        *held(3),
        *growth(),
        "",
        "The growth is measured with a batch of 16.",
    ]
    (HERE / "holders.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
