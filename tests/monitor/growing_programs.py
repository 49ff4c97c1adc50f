"""Programs that grow, and their twins that do not: the zoo of the monitor.

Each has a row that must be named, words of the holder (empty where nobody can know it), the code before the loop, the
body of the loop, which makes about 1 MiB, and the body of the twin, which makes as much and drops it. A program whose
memory a native library allocates has the library's name too: the monitor knows it if malloc is sampled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass

from memwatch.monitor.malloc_sampler import build_sampler

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
from memwatch.monitor import process
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
    library: str = ""


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
COMPILED = """
import subprocess
source = r'''
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>
static std::vector<char*> blocks;
static std::vector<std::string> texts;
extern "C" void keep(int number) {
  for (int at = 0; at < number; ++at) {
    char* block = static_cast<char*>(std::malloc(1000));
    std::memset(block, 1, 1000);
    blocks.push_back(block);
  }
}
extern "C" void keep_texts(int number) {
  std::string text = "x";
  for (int at = 0; at < number; ++at) {
    text.assign(1000, 'x');
    texts.push_back(text);
  }
}
extern "C" void drop() {
  for (char* block : blocks) std::free(block);
  std::vector<char*>().swap(blocks);
  std::vector<std::string>().swap(texts);
}
'''
with open('keeper.cpp', 'w') as file:
    file.write(source)
subprocess.run(['c++', '-shared', '-fPIC', '-o', 'libkeeper.so', 'keeper.cpp'], check=True)
library = ctypes.CDLL('./libkeeper.so')
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
        "libffi",  # it makes the calls of ctypes
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
    "a server's log": Program(
        "Python objects",
        "attribute .log",
        "class Request:\n    def __init__(self, text):\n        self.text, self.tags = text, [text[:20]]\n"
        "class Server:\n    def __init__(self):\n        self.log = []\nserver = Server()",
        "server.log += [Request(f'{turn} {each} ' + 'x' * 300) for each in range(1500)]",
        "server.log = [Request(f'{turn} {each} ' + 'x' * 300) for each in range(1500)]",
    ),
    "a cache without bound": Program(
        "Python objects",
        "answer",
        "@functools.lru_cache(maxsize=None)\ndef answer(number):\n    return [str(number) * 50]",
        "for each in range(2500):\n    answer(turn * 2500 + each)",
        "answer.cache_clear()\nfor each in range(2500):\n    answer(turn * 2500 + each)",
    ),
    "frames of pandas": Program(
        "Python objects",
        "`frames`",
        "import pandas as pd\nframes = []",
        "frames.append(pd.DataFrame({name: np.random.rand(1 << 14) for name in 'abcdefgh'}))",
        "frames[:] = [pd.DataFrame({name: np.random.rand(1 << 14) for name in 'abcdefgh'})]",
    ),
    "columns of text": Program(
        "Arrow buffers",
        "",
        "import pandas as pd\nframes = []\ndef texts(turn):\n"
        "    return pd.DataFrame({'text': [f'text {each} of turn {turn}, ' * 3 for each in range(12_000)]})",
        "frames.append(texts(turn))",
        "frames[:] = [texts(turn)]",
    ),
    "pickled blobs": Program(
        "Python objects",
        "`blobs`",
        "import pickle\nblobs = {}",
        "for each in range(100):\n    blobs[turn, each] = pickle.dumps(list(range(4000)))",
        "for each in range(100):\n    blobs[each] = pickle.dumps(list(range(4000)))",
    ),
    "a leak of mixed sizes": Program(
        "native",
        "no tensor",
        "import random\nsizes = random.Random(0)\ndef blocks(turn):\n"
        "    small = 1500 * turn\n    number = (6 << 20) // (850 + small)\n"
        "    return [malloc(sizes.randrange(200, 1500) + small) for _ in range(number)]",
        # one block of twelve stays
        "for at, block in enumerate(blocks(turn)):\n    if at % 12:\n        libc.free(block)",
        "for block in blocks(turn):\n    libc.free(block)",
        "libffi",
    ),
    "a database in memory": Program(
        "native",
        "no tensor",
        "import sqlite3\ndatabase = sqlite3.connect(':memory:')\ndatabase.execute('CREATE TABLE answers (text)')",
        "database.executemany('INSERT INTO answers VALUES (?)', [('x' * 1000,)] * 1000)",
        "database.execute('DELETE FROM answers')\n"
        "database.executemany('INSERT INTO answers VALUES (?)', [('x' * 1000,)] * 1000)",
        "sqlite3",
    ),
    "a tokenizer's vocabulary": Program(
        "native",
        "no tensor",
        "import tokenizers\ntokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())\n"
        "def tokens(turn):\n    return [f'token {turn} {each} ' + 'x' * 100 for each in range(2000)]",
        "tokenizer.add_tokens(tokens(turn))",
        "tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())\ntokenizer.add_tokens(tokens(turn))",
        "tokenizers",
    ),
    "compiled patterns": Program(
        "Python objects",
        "`patterns`",
        "import re\npatterns = {}\ndef compiled(turn, each):\n    re.purge()\n"
        "    return re.compile(f'{turn}-{each}-' + 'abc[def]+' * 300)",
        "for each in range(40):\n    patterns[turn, each] = compiled(turn, each)",
        "for each in range(40):\n    patterns[each] = compiled(turn, each)",
    ),
    "a logger's buffer": Program(
        "Python objects",
        "attribute .buffer",
        "import logging, logging.handlers\nlogger = logging.getLogger('server')\nlogger.propagate = False\n"
        "logger.setLevel(10)\nhandler = logging.handlers.MemoryHandler(10**9, 100)\nlogger.addHandler(handler)",
        "for each in range(1000):\n    logger.info('request %s', 'x' * 300 + str(each))",
        "for each in range(1000):\n    logger.info('request %s', 'x' * 300 + str(each))\nhandler.buffer.clear()",
    ),
    "tasks that nobody awaits": Program(
        "Python objects",
        "`tasks`",
        "import asyncio\ntasks, loop = [], asyncio.new_event_loop()\n"
        "async def serve(body, seconds):\n    await asyncio.sleep(seconds)\n    return len(body)\n"
        "async def start(seconds):\n"
        "    tasks.extend(asyncio.ensure_future(serve(bytes(8000), seconds)) for _ in range(128))\n"
        "    await asyncio.sleep(0)",
        "loop.run_until_complete(start(10**6))",
        "loop.run_until_complete(start(0))\nloop.run_until_complete(asyncio.gather(*tasks))\ntasks.clear()",
    ),
    "anonymous mappings": Program(
        "Python objects",
        "`kept`",
        "kept = []\ndef mapped():\n    found = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "    found[:] = bytes([1]) * (1 << 20)\n    return found",
        "kept.append(mapped())",
        "kept[:] = [mapped()]",
    ),
    "a pool's queue": Program(
        "Python objects",
        "_work_queue",
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\nbusy = threading.Event()",
        "pool.submit(busy.wait)\nfor each in range(128):\n    pool.submit(len, bytes(8000))",
        "for each in range(128):\n    last = pool.submit(len, bytes(8000))\nlast.result()",
    ),
    "large blocks of a library": Program(
        "native",
        "no tensor",
        "kept = []",
        "kept.append(malloc(1 << 20))",
        "libc.free(malloc(1 << 20))",
        "libffi",
    ),
    "a compiled library": Program(
        "native",
        "no tensor",
        COMPILED,
        "library.keep(1000)",
        "library.keep(1000)\nlibrary.drop()",
        "libkeeper.so",
    ),
    "strings of a C++ library": Program(
        "native",
        "no tensor",
        COMPILED,
        "library.keep_texts(1000)",
        "library.keep_texts(1000)\nlibrary.drop()",
        "libkeeper.so",  # not libstdc++, which allocates them
    ),
    "segments of shared memory": Program(
        "shared memory",
        "",
        "from multiprocessing import shared_memory\nkept = []\ndef segment():\n"
        "    found = shared_memory.SharedMemory(create=True, size=1 << 20)\n    found.buf[:] = bytes([1]) * (1 << 20)\n"
        "    found.unlink()\n    return found",
        "kept.append(segment())",
        "segment().close()",
    ),
    "a leak after much native memory was freed": Program(
        "native",
        "no tensor",
        "boot, kept = [malloc(2_000_000) for _ in range(60)], []\n"
        "def free_boot(turn):\n    if turn == 2:\n        while boot:\n            libc.free(boot.pop())",
        "free_boot(turn)\nkept.append(malloc(1_000_000))",
        "free_boot(turn)\nlibc.free(malloc(1_000_000))",
        "libffi",
    ),
    "cycles without gc": Program(
        "Python objects",
        "`__main__.Node`",
        "import gc\ngc.disable()\nclass Node:\n    def __init__(self):\n"
        "        self.me, self.text = self, 'x' * 1000 + str(id(self))",
        "for each in range(1000):\n    Node()",
        "for each in range(1000):\n    Node().me = None",
    ),
    "a sum of losses": Program(
        "tensors",
        "`total`",
        "total, weight = torch.zeros(()), torch.ones(1 << 16, requires_grad=True)",
        "global total\ntotal = total + (weight * turn).exp().sin().mean()",
        "global total\ntotal = total + (weight * turn).exp().sin().mean().item()",
    ),
}
TWIN_SETUPS = {"workers of a DataLoader": DATA.format(most=4)}


def run(name: str, *, twin: bool, folder: str, sampled: bool = False) -> tuple[list[str], float, str]:
    """Run a program; return the rows that the monitor says grow, the coverage and the report.

    Args:
        name: of the program.
        twin: whether to run its twin.
        folder: where to run it.
        sampled: whether to sample malloc.
    """
    program = PROGRAMS[name]
    setup = TWIN_SETUPS.get(name, program.setup) if twin else program.setup
    body = program.twin or program.grows if twin else program.grows
    code = PROGRAM.format(setup=setup, body=textwrap.indent(body, "    "), rounds=ROUNDS)
    environment = dict(os.environ)
    if sampled:
        environment["LD_PRELOAD"] = str(build_sampler()[0])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    rows, coverage, report = json.loads(done.stdout)
    return rows, coverage, report
