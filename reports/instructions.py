"""Count the instructions that recording adds to a step, at this commit and at another one.

CPU times of one commit differ by some per cent from process to process, and by more where the clock changes; counts of
instructions, by valgrind's callgrind, repeat to a few per mille. They leave out what caches and the kernel cost: see
side_by_side.md for times. Each sample is a process: steps outside a block, then in it, after some to warm up; what is
added is the difference. Garbage is not collected meanwhile, as a collection falls into one of the two.
Writes reports/instructions.md; needs valgrind and a C compiler: `python reports/instructions.py COMMIT`.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from side_by_side import HERE, beside, environment, small_programs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEPS, WARM_STEPS = 20, 5
REPEATABLE = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
PROFILES = {"without holders": {"holders": False}, "with holders": {}}
PROGRAMS = ("50 x.exp()", "50 x.mul_(1)", "AdamW step", "chain of 25", "chain, updated", "MLP", "small GPT")
_REQUESTS = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(const char* what) { CALLGRIND_DUMP_STATS_AT(what); CALLGRIND_STOP_INSTRUMENTATION; }
"""


def program(name: str) -> Callable[[], None]:
    """Return a step. The GPT has the layers of the one in workloads.py, and small tensors: kernels cancel out."""
    import workloads

    if name == "small GPT":
        return workloads.gpt(vocabulary=64, width=32, length=16, batch_size=2)
    return {**workloads.WORKLOADS, **small_programs()}[name]()


def run(name: str, profile: str, library: str) -> None:
    """Run a program in this process, under callgrind; the counts of `plain` and `inside` are in its dumps."""
    import torch

    import memwatch
    from memwatch.profile import build_recorder

    torch.set_num_threads(1)
    build_recorder()
    requests = ctypes.CDLL(library)
    step = program(name)
    gc.disable()

    def count(what: bytes) -> None:
        for _ in range(WARM_STEPS):
            step()
        requests.begin()
        for _ in range(STEPS):
            step()
        requests.end(what)

    count(b"plain")
    with memwatch.profile(**PROFILES[profile]):
        count(b"inside")


def added(sample: tuple[str, str, str], tops: dict[str, pathlib.Path], library: pathlib.Path) -> float:
    """Return the instructions that a block adds to a step of a program, at one of two commits."""
    name, profile, side = sample
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out"
        valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
        command = [*valgrind, sys.executable, __file__, "--child", name, profile, str(library)]
        subprocess.run(
            command, env=environment(tops[side]) | REPEATABLE, check=True, stderr=subprocess.DEVNULL
        )
        counts = dict(read(path) for path in out.parent.glob("out.*"))
    return (counts["inside"] - counts["plain"]) / STEPS


def read(dump: pathlib.Path) -> tuple[str, int]:
    """Return what a dump of callgrind is of, and its instructions."""
    text = dump.read_text(encoding="utf-8", errors="replace")
    patterns = (r"Client Request: (\w+)", r"(?m)^totals: (\d+)")
    what, total = (found[1] for pattern in patterns if (found := re.search(pattern, text)))
    return what, int(total)


def measure(tops: dict[str, pathlib.Path], library: pathlib.Path) -> dict[tuple[str, str, str], float]:
    """Count all programs at both commits, as many at a time as there are cores."""
    for top in tops.values():  # before valgrind, in which it takes very long
        build = "from memwatch.profile import build_recorder; build_recorder()"
        subprocess.run([sys.executable, "-c", build], env=environment(top), check=True)
    samples = [(name, profile, side) for name in PROGRAMS for profile in PROFILES for side in tops]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        counts = pool.map(functools.partial(added, tops=tops, library=library), samples)
        return dict(zip(samples, counts, strict=True))


def lines(found: dict[tuple[str, str, str], float], commit: str) -> Iterator[str]:
    """Yield the report."""
    yield f"# Instructions that recording adds, beside {commit}"
    yield ""
    yield f"Written by `python reports/instructions.py {commit}`: thousands of instructions that a block adds to a"
    yield f"step, counted by callgrind over {STEPS} steps; the ratio is now to before. With holders, looks fall into"
    yield "these steps by the clock, which runs far ahead of a program under callgrind: what looking costs is in"
    yield "holders.md and side_by_side.md."
    yield ""
    yield "| program | profile | before | now | ratio |"
    yield "| --- | --- | --- | --- | --- |"
    for name in PROGRAMS:
        for profile in PROFILES:
            before, now = (found[name, profile, side] for side in ("before", "now"))
            yield f"| {name} | {profile} | {before / 1e3:,.0f} | {now / 1e3:,.0f} | {now / before:.2f} |"


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        run(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", help="the commit to count beside this one")
    commit = parser.parse_args().commit
    with beside(commit) as tops, tempfile.TemporaryDirectory() as folder:
        source, library = (pathlib.Path(folder) / name for name in ("requests.c", "requests.so"))
        source.write_text(_REQUESTS, encoding="utf-8")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        text = "\n".join(lines(measure(tops, library), commit)) + "\n"
    (HERE / "instructions.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
