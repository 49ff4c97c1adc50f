"""Programs that grow, and their twins that do not: the zoo of the monitor.

Each has a row that must be named, words of the holder (empty where nobody can know it), the code before the loop, the
body of the loop, which makes about 1 MiB, and the body of the twin, which makes as much and drops it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from dataclasses import dataclass

ROUNDS = 24
PROGRAM = """
import ctypes, functools, json, mmap, os, sys, threading
import numpy as np, torch, memwatch
sys.setrecursionlimit(100_000)
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
def malloc(nbytes):
    address = libc.malloc(nbytes)
    ctypes.memset(address, 1, nbytes)
    return address
{setup}
def body(turn):
{body}
body(0)
watch = memwatch.monitor(interval_s=1000)
for turn in range(1, {rounds}):
    body(turn)
    watch.tick()
    watch.sample()
from memwatch.monitor import text
print(json.dumps([[growth.row for growth in watch.growth], watch.metrics()["memwatch_coverage_ratio"], watch.report()]))
sys.stdout.flush()
os._exit(0)  # threads may be waiting
"""


@dataclass(frozen=True)
class Program:
    row: str
    holder: str
    setup: str
    grows: str
    twin: str


REQUESTS = "{'number': turn * 2500 + each, 'text': f'{turn} {each} ' + 'x' * 200}"
STACKS = """
kept, free, done = [], threading.Semaphore(0), threading.Event()
def use_stack(levels, wait):
    if levels:
        return sorted([0], key=lambda _: use_stack(levels - 1, wait))
    free.release()
    if wait:
        done.wait()
"""
DATA = """
class Data(torch.utils.data.Dataset):
    def __init__(self, most):
        self.kept, self.most = [], most
    def __len__(self):
        return 4
    def __getitem__(self, at):
        self.kept.append(np.ones(1 << 15))
        del self.kept[: -self.most]
        return torch.ones(1)
loader = torch.utils.data.DataLoader(Data({most}), num_workers=1, persistent_workers=True)
"""
PROGRAMS = {
    "a dictionary of requests": Program(
        "Python objects",
        "`log`",
        "log = {}",
        f"for each in range(2500):\n    log[turn * 2500 + each] = {REQUESTS}",
        f"log.clear()\nfor each in range(2500):\n    log[turn * 2500 + each] = {REQUESTS}",
    ),
    "tensors in a list": Program(
        "tensors",
        "`kept`",
        "kept = []",
        "kept.append(torch.ones(1 << 18))",
        "kept[:] = [torch.ones(1 << 18)]",
    ),
    "an autograd graph": Program(
        "tensors",
        "`losses`",
        "losses, x = [], torch.ones(1 << 16, requires_grad=True)",
        "losses.append((x * 2).exp().sin().sum())",
        "losses.append((x * 2).exp().sin().sum().item())",
    ),
    "mapped files": Program(
        "file mappings",
        "data",
        "kept = []\nwith open('data', 'wb') as file:\n    file.write(bytes(1 << 20))\n"
        "def read():\n    with open('data', 'rb') as file:\n"
        "        found = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
        "    sum(found[::4096])\n    return found",
        "kept.append(read())",
        "kept[:] = [read()]",
    ),
    "stacks of threads": Program(
        "thread stacks",
        "",
        STACKS,
        "threading.Thread(target=use_stack, args=(500, True), daemon=True).start()\nfree.acquire()",
        "thread = threading.Thread(target=use_stack, args=(500, False))\nthread.start()\nthread.join()",
    ),
    "tensors in shared memory": Program(
        "shared memory",
        "",
        "kept = []",
        "kept.append(torch.ones(1 << 18).share_memory_())",
        "kept[:] = [torch.ones(1 << 18).share_memory_()]",
    ),
    "fragmented malloc": Program(
        "malloc, free",
        "",
        "libc.realloc.restype, libc.realloc.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]\n"
        "def blocks(turn):\n    size = 1100 + 64 * turn\n    return [malloc(size) for _ in range((4 << 20) // size)]",
        # what is cut off each block is too small for the blocks of the next turn
        "for block in blocks(turn):\n    libc.realloc(block, 24)",
        "for block in blocks(turn):\n    libc.free(block)",
    ),
    "a native library": Program(
        "native",
        "no tensor",
        "kept = []",
        "kept.extend(malloc(1000) for _ in range(1024))",
        "for block in [malloc(1000) for _ in range(1024)]:\n    libc.free(block)",
    ),
    "numpy arrays": Program(
        "Python objects",
        "`kept`",
        "kept = []",
        "kept.extend(np.ones(1 << 10) for _ in range(128))",
        "kept[:] = [np.ones(1 << 10) for _ in range(128)]",
    ),
    "texts in a set": Program(
        "Python objects",
        "`seen`",
        "seen = set()",
        "seen.update('x' * 1000 + str(turn * 1000 + each) for each in range(1000))",
        "seen.clear()\nseen.update('x' * 1000 + str(turn * 1000 + each) for each in range(1000))",
    ),
    "a cache of results": Program(
        "Python objects",
        "attribute .tokens",
        "class Tokenizer:\n    def __init__(self):\n        self.tokens = {}\ntokenizer = Tokenizer()",
        "for each in range(100):\n    tokenizer.tokens[turn * 100 + each] = list(range(1000, 1300))",
        "for each in range(100):\n    tokenizer.tokens[each] = list(range(1000, 1300))",
    ),
    "workers of a DataLoader": Program(
        "child processes",
        "python",
        DATA.format(most=1_000_000),
        "list(loader)",
        "",
    ),
}
TWIN_SETUPS = {"workers of a DataLoader": DATA.format(most=4)}


def run(name: str, *, twin: bool, folder: str) -> tuple[list[str], float, str]:
    """Run a program; return the rows that the monitor says grow, the coverage and the report."""
    program = PROGRAMS[name]
    setup = TWIN_SETUPS.get(name, program.setup) if twin else program.setup
    body = program.twin or program.grows if twin else program.grows
    code = PROGRAM.format(setup=setup, body=textwrap.indent(body, "    "), rounds=ROUNDS)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    rows, coverage, report = json.loads(done.stdout)
    return rows, coverage, report
