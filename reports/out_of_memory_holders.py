"""Compare the holders in the reports of programs that ran out of memory with those in full recordings.

`python reports/out_of_memory.py recordings` writes the table to `reports/out_of_memory.md`.

A program first runs with `MEMWATCH=oom` and `RLIMIT_AS`. A preloaded library counts the blocks of torch's allocator and
notes the number of the block that failed. Then `memwatch run --children` records the same program, and the library lets
the block with this number fail, because the recorder itself needs address space.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import failing_programs
from failing_programs import PROGRAMS, Program

import memwatch

HERE = Path(__file__).parent
LEAST_SHARE = 0.9
"""The share of the memory for which both name the same holder, where the holders count as the same."""
NOT_RECORDED = {
    "numpy arrays": "a recording has tensors only",
    "Python objects": "a recording has tensors only",
    "large Python objects": "a recording has tensors only",
}
OF_THREADS = {"a thread": "a recording has no holders of tensors that another thread made"}

START = """
import ctypes
_place = ctypes.CDLL(None)
"""
LIMIT = "    resource.setrlimit("
# without the error's variables, a DataLoader ends its workers, which then write the rest of their recordings
ENDING_WORKERS = """
import traceback
try:
    main()
except RuntimeError as error:
    traceback.clear_frames(error.__traceback__)
    raise
"""

_VARIABLE = re.compile(r"(?:global|local|argument) `(?P<name>\w+)` of (?:module )?(?P<owner>[\w.<>]+)")
_RECORDED_GLOBAL = re.compile(r"global `(?P<name>\w+)` of module `(?P<owner>[\w.]+)`")
_RECORDED_LOCAL = re.compile(r"`(?P<name>\w+)`, (?:local variable|argument) of `(?P<owner>[\w.<>]+)`")
_ATTRIBUTE = re.compile(r"attribute \.(?P<name>\w+) of (?:class )?(?P<owner>\w+)")
_CATEGORIES = {"activation": "saved for backward"}
"""Categories of a recording that have another name in the reports."""


def build(folder: Path) -> Path:
    """Compile the library that counts blocks."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise SystemExit("no C compiler: install gcc or clang")
    library = folder / "place.so"
    source = HERE / "out_of_memory_place.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", str(source), "-o", str(library), "-ldl"], check=True)
    return library


@dataclass(frozen=True)
class Compared:
    """The comparison of one program.

    Attributes:
        reported_bytes: of the tensors in the report.
        recorded_bytes: of the tensors that the recording has at the end.
        same_bytes: the bytes for which both name the same holder.
        rest: the largest holders of the recording that the report does not name, with their bytes.
    """

    reported_bytes: int
    recorded_bytes: int
    same_bytes: int
    rest: list[tuple[str, int]]

    @property
    def share(self) -> float:
        """The share of the memory with the same holder."""
        return self.same_bytes / max(self.reported_bytes, self.recorded_bytes, 1)


def compared(name: str, folder: Path, library: Path) -> Compared:
    """Run a program until memory runs out, record it until the same block fails, and compare the holders."""
    program = PROGRAMS[name]
    environment = {**os.environ, "LD_PRELOAD": str(library), "FAILING_PLACE": str(folder / "place")}
    file = folder / "program.py"
    code = failing_programs.code_of(program, start=START + failing_programs.START)
    file.write_text(code.replace(LIMIT, f"    _place.place_start(0)\n{LIMIT}"))
    quiet: dict[str, Any] = {"cwd": folder, "env": environment, "capture_output": True}
    subprocess.run([sys.executable, file.name], check=False, **quiet)
    number = int((folder / "place").read_text().split()[0])
    (report,) = (json.loads(path.read_text()) for path in folder.glob("*.oom.json"))

    code = failing_programs.code_of(_ending(program), start=START)
    file.write_text(code.replace(LIMIT, f"    return _place.place_start({number})\n{LIMIT}"))
    command = ["-m", "memwatch", "run", "-q", "--children", "-o", "recorded.memwatch", file.name]
    subprocess.run([sys.executable, *command], check=False, **quiet)
    return compare(report["live"], _recorded(folder))


def _ending(program: Program) -> Program:
    if "DataLoader" not in program.fails:
        return program
    return dataclasses.replace(program, call=textwrap.dedent(ENDING_WORKERS))


@dataclass(frozen=True)
class Held:
    """A tensor of a recording: its bytes, its category and holder, and the names of its holders.

    Attributes:
        names: pairs of a variable and its function or module, or of an attribute and its class, of all paths that
            the recorder found for it.
    """

    nbytes: int
    category: str
    holder: str
    names: frozenset[tuple[str, str]]
    is_of_torch: bool


def _recorded(folder: Path) -> list[Held]:
    """Return the tensors at the end of the recording of the process that ran out, which has most memory then."""
    best: list[Held] = []
    for path in folder.glob("*.memwatch"):
        reading = memwatch.load(path)
        if not len(reading.timeline):
            continue
        rows, names = reading.held_at(len(reading.timeline) - 1), _names_by_storage(reading.capture)
        found = [
            Held(
                int(row.nbytes),
                _CATEGORIES.get(str(row.category), str(row.category)),
                str(row.holder),
                frozenset(names.get(int(number), set()) | _names_in(str(row.path))),
                not row.path,
            )
            for number, row in zip(rows.index, rows.itertuples(), strict=True)
        ]
        best = max(best, found, key=lambda held: sum(each.nbytes for each in held))
    return best


def _names_by_storage(capture: Any) -> dict[int, set[tuple[str, str]]]:
    """Return the names in all paths that the recorder found for each storage."""
    edges, vertices, holders = (capture.tables[table] for table in ("edges", "vertices", "holders"))
    by_path: dict[int, set[tuple[str, str]]] = {}
    for path, name, owner in zip(edges["path"], edges["name"], edges["owner"], strict=True):
        if name >= 0 and owner >= 0 and vertices["name"][owner] >= 0:
            pair = (
                str(capture.strings[name]),
                str(capture.strings[vertices["name"][owner]]).rpartition(".")[2],
            )
            by_path.setdefault(int(path), set()).add(pair)
    found: dict[int, set[tuple[str, str]]] = {}
    for storage, path in zip(holders["storage"], holders["path"], strict=True):
        found.setdefault(int(storage), set()).update(by_path.get(int(path), ()))
    return found


def _names_in(path: str) -> set[tuple[str, str]]:
    matches = [each for find in (_RECORDED_GLOBAL, _RECORDED_LOCAL) for each in find.finditer(path)]
    return {
        (each["name"], each["owner"].rpartition(".")[2]) for each in [*matches, *_ATTRIBUTE.finditer(path)]
    }


def _names_of_report(holder: str) -> set[tuple[str, str]]:
    """Return the variable where a holder begins and the attribute where it ends."""
    ends = [*_VARIABLE.finditer(holder), *list(_ATTRIBUTE.finditer(holder))[-1:]]
    return {(each["name"], each["owner"].rpartition(".")[2]) for each in ends}


def compare(live: list[dict[str, Any]], recorded: list[Held]) -> Compared:
    """Compare the groups of a report with the tensors of a recording."""
    left = Counter(
        {(group["category"], group["holder"]): int(group["nbytes"]) for group in live
         if group["category"] not in NOT_RECORDED}
    )  # fmt: skip
    reported_bytes, same_bytes, rest = sum(left.values()), 0, Counter[str]()
    # a tensor whose variable is known fits few groups, and one of torch's records fits all groups of its category
    for each in sorted(recorded, key=lambda held: (held.is_of_torch, -held.nbytes)):
        missing = each.nbytes
        for category, holder in sorted(left, key=lambda group: group[0] != each.category):
            is_same = bool(_names_of_report(holder) & each.names) or (
                each.is_of_torch and category == each.category
            )
            if is_same:
                taken = min(missing, left[category, holder])
                left[category, holder] -= taken
                missing -= taken
        same_bytes += each.nbytes - missing
        rest[each.holder] += missing
    return Compared(
        reported_bytes,
        sum(each.nbytes for each in recorded),
        same_bytes,
        [(holder, nbytes) for holder, nbytes in rest.most_common(2) if nbytes],
    )


def table(folder: Path) -> list[str]:
    """Return the rows of the table, and the sentence on the whole before them."""
    library = build(folder)
    lines = [
        "| program | tensors in the report | in the recording | the same holder |",
        "| --- | ---: | ---: | --- |",
    ]
    number = same = 0
    for name, program in PROGRAMS.items():
        why = NOT_RECORDED.get(program.category) or OF_THREADS.get(name)
        if why:
            lines.append(f"| {name} | | | {why} |")
            continue
        place = folder / name.replace(" ", "_")
        place.mkdir()
        found = compared(name, place, library)
        is_same = found.share >= LEAST_SHARE
        number, same = number + 1, same + is_same
        lines.append(
            f"| {name} | {found.reported_bytes / (1 << 20):.0f} MiB | {found.recorded_bytes / (1 << 20):.0f} MiB | "
            f"{'yes' if is_same else 'no'}, {found.share:.1%} |"
        )
        print(lines[-1], "" if is_same else found.rest, flush=True)
    rule = (
        f"{same} of {number} reports name the same holders as a full recording. Two holders are the same if both name "
        "the same variable, or the same attribute of the same class. Several references may hold a tensor; the "
        "recording then counts with all that it found. Where it has torch's own records instead of a variable "
        "(`saved by exp`), the category must be the same. The figure is the share of the memory with the same holder, "
        f"compared with the larger of both sums. The answer is yes from {LEAST_SHARE:.0%} on."
    )
    return [rule, "", *lines]
