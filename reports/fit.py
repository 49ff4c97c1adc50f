"""Eight tiny models in four limits, and the folders of thirteen scripts before and after `memwatch fit`.

Run `python reports/fit.py`; it writes `reports/fit.md`. `--limits` writes the first section alone, `--folders` the
second. One CPU thread; the first takes a few minutes, the second about twenty.

For the first section, peaks are all live bytes of the process, by the memory events of torch's own profiler. The lines
that fit() prints are run in a plain script, in a process that does not import memwatch. Times depend on the machine and
are not part of the table.

For the second section, each program of `ways_programs.py` is a script that saves a checkpoint, adds to a log and
deletes an older checkpoint in each step. Its folder is compared before and after `memwatch fit`: the bytes, the mode,
the owner and the time of change of each file and each folder.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import torch

import memwatch
from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = pathlib.Path(__file__).parent
PROGRAMS = HERE.parent / "tests" / "fit"
sys.path.insert(0, str(PROGRAMS))
SHARES_PERCENT = (100, 80, 60, 45)
WAYS = ("foreach", "gradients", "checkpoint", "chain", "policy")
PLAIN = """
import gc, json, sys
sys.path.insert(0, sys.argv[1])
import torch
import fit_programs
torch.set_num_threads(1)
found = []
for name, code in json.load(sys.stdin):
    model, optimizer, step = fit_programs.made(name)
    exec(code, {"model": model, "optimizer": optimizer})
    found.append(fit_programs.peak_of(step))
    del model, optimizer, step
    gc.collect()
assert "memwatch" not in sys.modules
json.dump(found, sys.stdout)
"""


def fitted(name: str, limit_bytes: int) -> dict[str, Any]:
    """Return what fit() found for a model and a limit, checked by three further steps in this process."""
    import fit_programs

    model, _, step = fit_programs.made(name)
    try:
        fit = memwatch.fit(step, model, limit_bytes, ways=WAYS, quiet=True)
    except memwatch.BudgetError as error:
        return {"error": "; ".join(error.reasons[1:]), "lowest_bytes": error.best.peak_bytes}
    torch.manual_seed(1)
    counted = fit_programs.peak_of(step)
    kept = fit.ways[fit.ways["kept"]].iloc[0]
    fit.undo()
    return {
        "way": kept["way"],
        "bitwise": kept["bitwise"],
        "tried": len(fit.ways),
        "fit_bytes": fit.peak_bytes,
        "counted_bytes": counted,
        "code": None if fit.plan is not None else fit.code,
    }


def rows() -> Iterator[dict[str, Any]]:
    """Yield a row for each model and limit."""
    import fit_programs

    for name in fit_programs.PROGRAMS:
        plain_bytes = fit_programs.peak_of(fit_programs.made(name)[2])
        for share in SHARES_PERCENT:
            gc.collect()
            limit_bytes = plain_bytes * share // 100
            row = {"name": name, "share": share, "limit_bytes": limit_bytes, **fitted(name, limit_bytes)}
            sys.stderr.write(f"{row}\n")
            yield row


def without_memwatch(found: list[dict[str, Any]]) -> None:
    """Run the lines of every row in a plain process, and note the peaks there."""
    wanted = [row for row in found if row.get("code") is not None]
    request = json.dumps([(row["name"], row["code"]) for row in wanted])
    command = [sys.executable, "-c", PLAIN, str(PROGRAMS)]
    done = subprocess.run(command, input=request, capture_output=True, text=True, check=True)
    for row, peak_bytes in zip(wanted, json.loads(done.stdout.splitlines()[-1]), strict=True):
        row["pasted_bytes"] = peak_bytes


def table(found: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the first section."""
    yield _LIMITS
    yield ""
    yield f"`python reports/fit.py --limits`, torch {torch.__version__}. Limits are shares of the plain step's own"
    yield "peak: all live bytes of the process. *Counted*: three more steps, by torch's profiler. *Pasted*: the printed"
    yield "lines in a process that never imports memwatch."
    yield ""
    yield "| model | limit | way | tried | fit() | counted | pasted | bitwise |"
    yield "| --- | --- | --- | ---: | ---: | ---: | ---: | --- |"
    for row in found:
        limit = f"{row['share']} % ({format_bytes(row['limit_bytes'])})"
        if "error" in row:
            lowest = format_bytes(row["lowest_bytes"])
            yield f"| {row['name']} | {limit} | BudgetError: {row['error']} | | lowest {lowest} | | | |"
            continue
        sizes = [row.get(key) for key in ("fit_bytes", "counted_bytes", "pasted_bytes")]
        shown = " | ".join("needs memwatch" if size is None else format_bytes(size) for size in sizes)
        yield f"| {row['name']} | {limit} | {row['way']} | {row['tried']} | {shown} | {row['bitwise']} |"
    yield ""
    kept = [row for row in found if "error" not in row]
    under = sum(row["counted_bytes"] <= row["limit_bytes"] for row in kept)
    exact = sum(row["counted_bytes"] == row["fit_bytes"] for row in kept)
    pasted = [row for row in kept if "pasted_bytes" in row]
    same = sum(row["pasted_bytes"] == row["fit_bytes"] for row in pasted)
    bitwise = sum(row["bitwise"] == "yes" for row in kept)
    yield f"{len(kept)} of {len(found)} limits are kept; the others end in a BudgetError that names the lowest peak."
    yield f"{under} of these {len(kept)} stay below the limit in the count, {exact} match the figure of fit() to"
    yield f"the byte, and {bitwise} have bitwise equal results. {same} of {len(pasted)} pasted programs have the"
    yield "same peak to the byte. The mixture of experts routes by its weights, so its sizes change from step to"
    yield "step. fit() reports the highest of the steps that it ran."


SCRIPT = """
import os, pathlib, shutil, sys
sys.path.insert(0, sys.argv[1])
import torch
import ways_programs

torch.set_num_threads(1)
torch.manual_seed(0)
program = ways_programs.PROGRAMS[sys.argv[2]]()
for number in range(1_000_000):
    program.step()
    with open("log.txt", "a") as log:
        log.write(f"step {number}\\n")
    states = [each.state_dict() for each in (program.model, *program.optimizers)]
    torch.save(states, "last.pt")
    folder = pathlib.Path(f"checkpoint-{number + 1}")
    folder.mkdir()
    torch.save(states, folder / "model.pt")
    os.chmod("run.json", 0o600)
    shutil.rmtree(f"checkpoint-{number}")  # as Trainer does with save_total_limit
"""
"""A training that finds the files of an earlier run in its folder."""

EARLIER = ("log.txt", "last.pt", "run.json", "checkpoint-0/model.pt", "checkpoint-0/optimizer.pt")
_LIMITS = "## Eight models, four limits"
_FOLDERS = "## The folders of thirteen scripts"
_SHARE_PERCENT = 80
_OPTIONS = ("--steps", "2")


def contents(folder: pathlib.Path) -> dict[str, tuple[object, ...]]:
    """Return the bytes, mode, owner and time of change of a folder and of everything in it."""
    found: dict[str, tuple[object, ...]] = {}
    for path in (folder, *folder.rglob("*")):
        stat = path.lstat()
        inside = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else sorted(os.listdir(path))
        name = str(path.relative_to(folder))
        found[name] = stat.st_mode, stat.st_uid, stat.st_gid, stat.st_mtime_ns, repr(inside)
    return found


def folder_after_fit(name: str) -> dict[str, Any]:
    """Return what `memwatch fit` changed in the folder of a program's script."""
    torch.set_num_threads(1)
    sys.path.insert(0, str(HERE))
    import ways_programs

    with memwatch.profile(holders=False) as prof:
        program = ways_programs.PROGRAMS[name]()
        program.step()
        program.step()
    del program
    with tempfile.TemporaryDirectory() as root:
        folder = pathlib.Path(root)
        (folder / "train.py").write_text(SCRIPT)
        for each in EARLIER:
            (folder / each).parent.mkdir(exist_ok=True)
            (folder / each).write_text(f"{each} of an earlier run")
        before = contents(folder)
        limit = f"{prof.peak_bytes * _SHARE_PERCENT // 100}B"
        done = subprocess.run(
            [sys.executable, "-m", "memwatch", "fit", "--limit", limit, *_OPTIONS, "train.py", str(HERE), name],
            cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        sys.stderr.write(done.stderr + done.stdout)
        after = contents(folder)
    said = " ".join(f"{done.stdout} {done.stderr}".split())
    kept = re.search(r"the fastest way that fits is (.*?), with a peak of", said)
    dropped = re.search(r"the script wrote or deleted (\S+)", said)
    changed = {each for each in before if after.get(each) != before[each]}
    new = set(after) - set(before)
    announced = {each for each in new if f"memwatch: wrote {each}, the plan " in said}
    if announced:  # a new file changes its folder
        changed -= {"."}
    return {
        "name": name,
        "way": kept[1] if kept else f"none (exit code {done.returncode})",
        "runs": len(re.findall(r"^memwatch: run \d+:", done.stderr, re.MULTILINE)),
        "dropped": dropped[1] if dropped else "none",
        "compared": len(before),
        "changed": sorted(changed),
        "new": sorted(new - announced),
        "announced": sorted(announced),
    }


def table_of_folders(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the second section."""
    yield _FOLDERS
    yield ""
    yield f"`python reports/fit.py --folders`, torch {torch.__version__}. Each script trains a program of"
    yield "[ways.md](ways.md). In each step it adds to `log.txt`, writes `last.pt` and a new checkpoint, changes the"
    yield "mode of `run.json`, and deletes the older checkpoint. The limit is"
    yield f"{_SHARE_PERCENT} % of the program's peak. *Written in runs*: the files that the script wrote or deleted,"
    yield "as `fit` counts them. *Compared*: files and folders before `fit`. *Changed* and *new*: those with other"
    yield "bytes, another mode, owner or time of change, and those that were not there. *Announced*: new files that"
    yield "`fit` names in its output: the plans of its lines."
    yield ""
    yield "| script | way | runs | written in runs | compared | changed | new | announced |"
    yield "| --- | --- | ---: | ---: | ---: | --- | --- | --- |"
    for row in rows:
        changed, new, announced = (", ".join(row[key]) or "none" for key in ("changed", "new", "announced"))
        yield (
            f"| {row['name']} | {row['way']} | {row['runs']} | {row['dropped']} | {row['compared']} | {changed} | "
            f"{new} | {announced} |"
        )
    yield ""
    untouched = sum(not row["changed"] and not row["new"] for row in rows)
    yield f"{untouched} of {len(rows)} folders are as they were, apart from announced files."


def write_section(title: str, lines: list[str]) -> None:
    """Replace a section of the page, and keep the others."""
    page = HERE / "fit.md"
    text = page.read_text() if page.exists() else ""
    sections = {
        each.partition("\n")[0]: each.rstrip() for each in re.split(r"^(?=## )", text, flags=re.MULTILINE)[1:]
    }
    sections[title] = "\n".join(lines)
    kept = [sections[each] for each in (_LIMITS, _FOLDERS) if each in sections]
    page.write_text("\n\n".join(["# Training within a limit", *kept]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--limits", action="store_true", help="write the first section alone")
    parser.add_argument("--folders", nargs="*", metavar="PROGRAM", help="write the second section alone")
    parser.add_argument("--folder", help=argparse.SUPPRESS)  # of one program, in a process of its own
    options = parser.parse_args()
    if options.folder:
        json.dump(folder_after_fit(options.folder), sys.stdout)
        return
    torch.set_num_threads(1)
    if options.folders is None:
        found = list(rows())
        without_memwatch(found)
        write_section(_LIMITS, list(table(found)))
    if not options.limits:
        sys.path.insert(0, str(HERE))
        from ways_programs import PROGRAMS as SCRIPTS

        found = []
        for name in options.folders or SCRIPTS:
            done = subprocess.run(
                [sys.executable, __file__, "--folder", name], stdout=subprocess.PIPE, text=True, check=True
            )
            found.append(json.loads(done.stdout))
            sys.stderr.write(f"{found[-1]}\n")
        write_section(_FOLDERS, list(table_of_folders(found)))


if __name__ == "__main__":
    main()
