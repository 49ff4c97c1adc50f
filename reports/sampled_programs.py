"""Run our own programs with a holder sample after every op, and write reports/sampled_programs.md.

A holder sample reads the living program in the middle of an op, and must not change it. The programs are those of the
compatibility matrix (tests/compat), PyTorch's op database, and 17 views x 5 changes in place of their base, in both
ways in which torch tracks views (`_force_original_view_tracking`). Each runs plainly and in a block, with each
interceptor and each recorder. Results, gradients, errors, warnings and random states are compared bit for bit. It
calls `gc.unfreeze`, so that samples search older objects too. `reports/unnoticed.py` does the same with PyTorch's own
tests. Run: python reports/sampled_programs.py [--only PART]
"""

from __future__ import annotations

import argparse
import gc
import os
import pathlib
import sys
import warnings
from collections import Counter
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).parent.parent
sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "compat")]

from compat_harness import INTERCEPTS, check_sampled  # noqa: E402  # found in tests/compat
from compat_opinfo import compare, entries, name_of  # noqa: E402
from compat_programs import all_programs  # noqa: E402
from test_compat_views import CHANGES, VIEWS, check_view  # noqa: E402

from memwatch.profile import build_recorder  # noqa: E402

EQUAL, DIFFERENT = "equal", "different"
Case = tuple[str, "Callable[[], str]"]


def verdict_of(check: Callable[[], object]) -> str:
    """Return whether a check that asserts equality passes."""
    try:
        check()
    except AssertionError as error:
        unclear = "does not repeat" in str(error)
        return "not repeatable" if unclear else DIFFERENT
    return EQUAL


def programs(intercept: str) -> Iterator[Case]:
    """Yield the programs of the compatibility matrix."""
    for each in all_programs():
        yield (
            each.name,
            lambda each=each: verdict_of(
                lambda: check_sampled(each.program, intercept, formula=each.formula, deep_every=25)
            ),
        )


def views(intercept: str) -> Iterator[Case]:
    """Yield every pair of a view and an in-place change of its base."""
    for name in VIEWS:
        for change in CHANGES:
            yield (
                f"{name}, {change.__name__}",
                lambda name=name, change=change: verdict_of(lambda: check_view(name, intercept, change)),
            )


def ops(intercept: str) -> Iterator[Case]:
    """Yield the entries of PyTorch's op database, each with one sample input."""
    for op in entries():
        yield name_of(op), lambda op=op: compare(op, intercept, 1, sampled=True)


PARTS = {"compatibility programs": programs, "views changed in place": views, "op database": ops}


def run(parts: list[str]) -> list[tuple[str, str, Counter[str], list[str]]]:
    """Run the parts in every way; return the counts and the names of what differs."""
    rows = []
    for way in INTERCEPTS:
        intercept, _, recorder = way.partition("-")
        os.environ["MEMWATCH_NATIVE"] = "0" if recorder == "python" else "1"
        for part in parts:
            verdicts = {}
            for name, verdict in PARTS[part](intercept):
                verdicts[name] = verdict()
                if verdicts[name] == DIFFERENT:
                    print(f"{part}, {way}: {name} differs", flush=True)
            different = [name for name, verdict in verdicts.items() if verdict == DIFFERENT]
            rows.append((part, way, Counter(verdicts.values()), different))
            print(part, way, dict(rows[-1][2]), flush=True)
    return rows


def table(rows: list[tuple[str, str, Counter[str], list[str]]]) -> str:
    """Write the counts as Markdown."""
    lines = [
        "# Programs with a holder sample after every op",
        "",
        f"torch {torch.__version__}, CPU. Each program ran plainly and in a block. Results, gradients, errors,",
        "warnings and random states are compared bit for bit.",
        "*As under any mode* means that the program ran as under an empty dispatch mode: torch itself takes another",
        "way there.",
        "",
        "| programs | interceptor | equal | as under any mode | different | not comparable |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for part, way, count, _ in rows:
        name = way.replace("-python", ", Python recorder")
        rest = count["not repeatable"] + count["no sample"]
        lines.append(
            f"| {part} | {name} | {count[EQUAL]} | {count['as under any mode']} | {count[DIFFERENT]} | {rest} |"
        )
    different = sorted({f"{name} ({way})" for _, way, _, names in rows for name in names})
    lines += ["", f"Different: {', '.join(different) or 'none'}.", ""]
    lines += ["To run it again: `python reports/sampled_programs.py`.", ""]
    return "\n".join(lines)


def main() -> int:
    """Run the programs and print the table; return 1 if a program behaved differently in a block."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", choices=[*PARTS], action="append", help="run this part alone, and write nothing"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    build_recorder()
    gc.unfreeze()
    rows = run(options.only or [*PARTS])
    text = table(rows)
    if not options.only:
        (ROOT / "reports" / "sampled_programs.md").write_text(text)
    print(text)
    return int(any(names for *_, names in rows))


if __name__ == "__main__":
    sys.exit(main())
