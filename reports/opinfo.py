"""Run PyTorch's whole op database with and without memwatch and write reports/opinfo.md.

For every entry with float32 samples on the CPU: forward and backward of several samples, plainly twice and
under `memwatch.profile()` with the key and with the mode, compared bit for bit (results, gradients, version
counters, warnings, errors). `--formulas` also finds again which autograd nodes run other ops under a mode.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import sys
import warnings
from collections import Counter

import torch

_BY_CTC_LOSS = {"div"}  # its reduction divides by the lengths that it copied into tensors
_ANY_MODE = "as under any mode"
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "compat"))

from compat_formulas import changed_nodes  # noqa: E402  # found in tests/compat
from compat_opinfo import compare, entries, name_of, programs  # noqa: E402

from memwatch.analysis.observer import BACKWARD  # noqa: E402
from memwatch.profile import build_recorder  # noqa: E402


def run_all(samples: int) -> dict[str, dict[str, str]]:
    """Return, per interceptor, with the native recorder and with Python's, and per entry the verdict."""
    verdicts: dict[str, dict[str, str]] = {}
    build_recorder()
    for native, told in (("1", ""), ("0", ", Python recorder")):
        os.environ["MEMWATCH_NATIVE"] = native
        ways = {intercept: verdicts.setdefault(intercept + told, {}) for intercept in ("key", "mode")}
        for op in entries():
            for intercept, found in ways.items():
                found[name_of(op)] = compare(op, intercept, samples)
    return verdicts


def table(verdicts: dict[str, dict[str, str]], samples: int) -> str:
    """Write the verdicts as Markdown."""
    lines = [
        "# The op database with and without memwatch",
        "",
        f"torch {torch.__version__}, float32 on the CPU, up to {samples} samples per entry, forward and backward.",
        "",
        "| interceptor | equal | as under any mode | different | not repeatable plainly | no sample |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for intercept, found in verdicts.items():
        count = Counter(found.values())
        columns = (count[name] for name in ("equal", _ANY_MODE, "different", "not repeatable", "no sample"))
        lines.append(f"| {intercept} | " + " | ".join(str(column) for column in columns) + " |")
    listed = {f"Different under the {each}": (each, "different") for each in verdicts}
    listed[
        "Different under the mode, and in the same way under an empty TorchDispatchMode, so ATen causes it"
    ] = (
        "mode",
        _ANY_MODE,
    )
    listed["Random without memwatch too, so these cannot be compared"] = ("key", "not repeatable")
    for title, (intercept, wanted) in listed.items():
        names = [name for name, verdict in verdicts[intercept].items() if verdict == wanted]
        lines += ["", f"{title}: {', '.join(names) or 'none'}."]
    return "\n".join([*lines, ""])


def formulas() -> list[str]:
    """List the nodes that change under a mode and are not in the data, and the other way round."""
    changed: set[str] = set()
    for op in entries():
        for program in programs(op, 40):
            try:
                changed |= changed_nodes(program)
            except RuntimeError:  # an entry whose samples cannot be copied
                break
    known = {re.sub(r"[^a-z0-9]", "", packet.removeprefix("aten.")) for packet in BACKWARD}
    names = {re.sub(r"Backward\d*$", "", node).lower() for node in changed} - _BY_CTC_LOSS
    return [f"not in the data: {name}" for name in sorted(names - known)] + [
        f"in the data only: {name}" for name in sorted(known - names)
    ]


def main() -> int:
    """Run, print and write the table; fail if the key changed any result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=8, help="samples per entry")
    parser.add_argument("--formulas", action="store_true", help="find the mode-dependent formulas again")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.formulas:
        print("\n".join(formulas()) or "the data holds exactly the formulas that change")
        return 0
    verdicts = run_all(options.samples)
    text = table(verdicts, options.samples)
    (ROOT / "reports" / "opinfo.md").write_text(text)
    print(text)
    return int(any("different" in found.values() for found in verdicts.values()))


if __name__ == "__main__":
    sys.exit(main())
