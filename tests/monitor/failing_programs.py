"""Programs whose memory runs out at a limit on the address space, and their twins that stay below it.

Each has the category and words of the holder that the report must name. `setup` runs before the limit is set. `fails`
is the body of a loop that fails in one of its turns. `twin` does the same work and keeps less.
"""

from __future__ import annotations

from dataclasses import dataclass

TURNS = 40
ROOM_MIB = 200
PROGRAM = """
import asyncio, collections, functools, gc, multiprocessing, queue, resource, sys, threading
import numpy as np, torch
gc.unfreeze()  # a search of objects that gc does not list takes longer
from memwatch.cli.monitored import report_when_memory_runs_out
{start}
MIB = 1 << 18  # numbers of float32
torch.set_num_threads(1)
torch.ones(1, requires_grad=True).sum().backward()  # loads what the first backward loads
def limit_memory(room_mib={room}):
    pages = int(open("/proc/self/statm").read().split()[0])
    used = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (room_mib << 20), resource.RLIM_INFINITY))
{setup}
limit_memory()
def main():
    for turn in range({turns}):
        body(turn)
def body(turn):
{body}
{call}
print("the program ended")
"""
START = 'report_when_memory_runs_out({"output": "run"})'


@dataclass(frozen=True)
class Program:
    category: str
    holder: str
    setup: str
    fails: str
    twin: str
    call: str = "main()"
    error: str = "RuntimeError"


MODEL = """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(1024, 1024, bias=False) for _ in range({layers}))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x
model = Model()
"""
DEEP = """
def forward(batch, layers):
    hidden = batch
    for _ in range(layers):
        hidden = (hidden * 0).exp()
    return hidden
"""
WORKER = """
def work():
    held = []
    while True:
        held.append(torch.ones(8 * MIB))
def run_thread():
    thread = threading.Thread(target=work, name="loader")
    thread.start()
    thread.join()
"""
LOADED = """
limit_memory.__defaults__ = (600,)  # threads of a worker reserve address space
class Data(torch.utils.data.Dataset):
    def __init__(self):
        self.cache = []
    def __len__(self):
        return 40
    def __getitem__(self, at):
        self.cache.append({item})
        return at
"""
GROUP = """
async def fail():
    kept.append(torch.ones(8 * MIB))
async def fail_together():
    async with asyncio.TaskGroup() as group:
        for _ in range(40):
            group.create_task(fail())
kept = []
"""
PROGRAMS = {
    "tensors in a list": Program(
        "other tensors",
        "global `kept`",
        "kept = []",
        "kept.append(torch.ones(8 * MIB))",
        "kept[:] = [torch.ones(8 * MIB)]",
    ),
    "a cache in an object": Program(
        "other tensors",
        "attribute .cache of Server",
        "class Server:\n    def __init__(self):\n        self.cache = {}\nserver = Server()",
        "server.cache[turn] = torch.ones(8 * MIB)",
        "server.cache[0] = torch.ones(8 * MIB)",
    ),
    "losses with their graphs": Program(
        "saved for backward",
        "global `losses`",
        "losses, weight = [], torch.ones(1024, requires_grad=True)",
        "losses.append((weight * torch.ones(8192, 1024)).exp().sum())",
        "losses.append((weight * torch.ones(8192, 1024)).exp().sum().item())",
    ),
    "activations of a deep model": Program(
        "saved for backward",
        "local `hidden` of forward",
        DEEP,
        "forward(torch.ones(8 * MIB, requires_grad=True), 64)",
        "forward(torch.ones(8 * MIB, requires_grad=True), 1)",
    ),
    "the state of an optimizer": Program(
        "optimizer state",
        "global `optimizer`",
        MODEL.format(layers=32)
        + "optimizer = torch.optim.Adam(model.parameters(), foreach=False)\n"
        "for each in model.parameters():\n    each.grad = torch.zeros_like(each)",
        "optimizer.step()",
        "with torch.no_grad():\n    torch._foreach_add_(list(model.parameters()), 1.0)",
    ),
    "gradients": Program(
        "gradient",
        "global `model`",
        # the parameters are views of one number, so only the gradients are large
        "model = torch.nn.ParameterList(torch.ones(1).expand(2048, 2048) for _ in range(40))",
        "model[turn].sum().backward()",
        "with torch.no_grad():\n    model[turn].sum()",
    ),
    "copies of a model": Program(
        "parameter",
        "global `models`",
        "models = []",
        "models.append(torch.nn.Linear(2048, 2048))",
        "models[:] = [torch.nn.Linear(2048, 2048)]",
    ),
    "numpy arrays": Program(
        "numpy arrays",
        "global `arrays`",
        "arrays = []",
        "arrays.append(np.ones(4 << 20))",
        "arrays[:] = [np.ones(4 << 20)]",
        error="MemoryError",
    ),
    "a log of requests": Program(
        "Python objects",
        "global `log`",
        "log = {}",
        "for each in range(20_000):\n    log[turn, each] = {'text': f'{turn} {each} ' + 'x' * 600}",
        "log.clear()\nfor each in range(20_000):\n    log[turn, each] = {'text': f'{turn} {each} ' + 'x' * 600}",
        error="MemoryError",
    ),
    "a buffer that grows in place": Program(
        "large Python objects",
        "global `connection` of module __main__, attribute .buffer of Connection",
        "class Connection:\n    def __init__(self):\n        self.buffer = bytearray()\nconnection = Connection()",
        "connection.buffer += bytes(16 << 20)",
        "connection.buffer[:] = bytes(16 << 20)",
        error="MemoryError",
    ),
    "a few large pieces of bytes": Program(
        "large Python objects",
        "global `pieces`",
        "pieces = {}",
        "pieces[turn] = bytes(16 << 20)",
        "pieces[0] = bytes(16 << 20)",
        error="MemoryError",
    ),
    # Each is written once: when a `BytesIO` cannot grow, it loses all that it had.
    "texts in files of memory": Program(
        "large Python objects",
        "global `pages`",
        "import io\npages = []",
        "pages.append(io.BytesIO()); pages[-1].write(bytes(16 << 20))",
        "pages[:] = [io.BytesIO()]; pages[0].write(bytes(16 << 20))",
        error="MemoryError",
    ),
    "a thread": Program(
        "other tensors", "local `held` of work", WORKER, "pass", "pass", call="run_thread()"
    ),
    "a cached function": Program(
        "other tensors",
        "kept by lru_cache",
        "@functools.lru_cache(maxsize=None)\ndef table(number):\n    return torch.ones(8 * MIB)",
        "table(turn)",
        "table(0)",
    ),
    "a closure": Program(
        "other tensors",
        "`history`",
        "def make():\n    history = []\n    def add():\n        history.append(torch.ones(8 * MIB))\n"
        "    return add, history\n"
        "add, _ = make()\ndel _",
        "add()",
        "add()\nadd.__closure__[0].cell_contents.clear()",
    ),
    "a class attribute": Program(
        "other tensors",
        "class attribute .seen",
        "class Meter:\n    seen = collections.deque()",
        "Meter.seen.append(torch.ones(8 * MIB))",
        "Meter.seen.append(torch.ones(8 * MIB))\nMeter.seen.popleft()",
    ),
    "a queue": Program(
        "other tensors",
        "global `batches`",
        "batches = queue.Queue()",
        "batches.put(torch.ones(8 * MIB))",
        "batches.put(torch.ones(8 * MIB))\nbatches.get()",
    ),
    "a default argument": Program(
        "other tensors",
        "argument `found` of collect",
        "def collect(found=[]):\n    found.append(torch.ones(8 * MIB))\n    return found",
        "collect()",
        "collect().clear()",
    ),
    "a cache as a buffer": Program(
        "buffer",
        "global `attention`",
        "attention = torch.nn.Module()\nattention.register_buffer('keys', torch.ones(0, 1024))",
        "attention.keys = torch.cat([attention.keys, torch.ones(8192, 1024)])",
        "attention.keys = torch.cat([attention.keys[:0], torch.ones(8192, 1024)])",
    ),
    "outputs of hooks": Program(
        "other tensors",
        "global `outputs`",
        "outputs = []\nlayer = torch.nn.Identity()\n"
        "layer.register_forward_hook(lambda module, inputs, output: outputs.append(output.detach() + 1))",
        "layer(torch.ones(8 * MIB))",
        "layer(torch.ones(8 * MIB))\noutputs.clear()",
    ),
    "an average of weights": Program(
        "other tensors",
        "attribute .shadow of Average",
        "class Average:\n    def __init__(self):\n        self.shadow = []\naverage = Average()\n"
        "weights = torch.nn.Linear(2048, 2048, bias=False)",
        "average.shadow.append(weights.weight.detach().clone())",
        "average.shadow[:] = [weights.weight.detach().clone()]",
    ),
    "one large request": Program(
        "other tensors",
        "local `scores` of attend",
        "def attend(rows):\n    scores = torch.ones(rows, 1024)\n    return scores @ torch.ones(1024, rows)",
        "attend(16 << 10)",
        "attend(1 << 10)",
    ),
    "an error that was raised again": Program(
        "other tensors",
        "global `kept`",
        "kept = []\ndef again(turn):\n    try:\n        kept.append(torch.ones(8 * MIB))\n"
        "    except RuntimeError as error:\n        raise ValueError('the batch is too large') from error",
        "again(turn)",
        "again(turn)\nkept.clear()",
        error="ValueError",
    ),
    "a group of tasks": Program(
        "other tensors",
        "global `kept`",
        GROUP,
        "asyncio.run(fail_together())",
        "kept[:] = [torch.ones(8 * MIB)]",
        error="unhandled errors in a TaskGroup",
    ),
    "a coroutine": Program(
        "other tensors",
        "local `answers` of serve",
        "async def serve():\n    answers = []\n    while True:\n        answers.append(torch.ones(8 * MIB))\n"
        "        await asyncio.sleep(0)",
        "asyncio.run(serve())",
        "torch.ones(8 * MIB)",
    ),
    "a generator": Program(
        "other tensors",
        "local `batch` of body",
        "def batches():\n    window = []\n    while True:\n        window.append(torch.ones(8 * MIB))\n"
        "        yield window\n"
        "def few():\n    window = [torch.ones(8 * MIB)]\n    yield window",
        "for batch in batches():\n    pass",
        "for batch in few():\n    pass",
    ),
    "a child process": Program(
        "other tensors",
        "local `held` of work",
        WORKER + "def run_child():\n    child = multiprocessing.get_context('fork').Process(target=work)\n"
        "    child.start()\n    child.join()\n",
        "pass",
        "pass",
        call="run_child()",
    ),
    "a worker of a DataLoader": Program(
        "other tensors",
        "attribute .cache of Data",
        LOADED.format(item="torch.ones(32 * MIB)"),
        "list(torch.utils.data.DataLoader(Data(), num_workers=1))",
        "Data.__getitem__ = lambda self, at: torch.ones(32 * MIB)[0].item()\n"
        "turn or list(torch.utils.data.DataLoader(Data(), num_workers=1))",
    ),
    "arrays in a worker of a DataLoader": Program(
        "numpy arrays",
        "attribute .cache of Data",
        LOADED.format(item="np.ones((2048, 2048))"),
        "list(torch.utils.data.DataLoader(Data(), num_workers=1))",
        "Data.__getitem__ = lambda self, at: np.ones((2048, 2048))[0, 0]\n"
        "turn or list(torch.utils.data.DataLoader(Data(), num_workers=1))",
        error="RuntimeError: Caught MemoryError in DataLoader worker process 0",
    ),
    "a hook of the program for errors": Program(
        "other tensors",
        "global `kept`",
        "kept = []\nsys.excepthook = lambda kind, error, trace: print(kind.__name__, file=sys.stderr)",
        "kept.append(torch.ones(8 * MIB))",
        "kept[:] = [torch.ones(8 * MIB)]",
    ),
    "a set of sums": Program(
        "saved for backward",
        "global `total`",
        "total, scale = torch.zeros(()), torch.ones(1024, requires_grad=True)",
        "global total\ntotal = total + (scale * torch.ones(8192, 1024)).exp().sum()",
        "global total\ntotal = total + (scale * torch.ones(8192, 1024)).exp().sum().detach()",
    ),
    "tensors in a nested dictionary": Program(
        "other tensors",
        "global `state`",
        "state = {'layers': {}}",
        "state['layers'][turn] = {'keys': torch.ones(4 * MIB), 'values': torch.ones(4 * MIB)}",
        "state['layers'][0] = {'keys': torch.ones(4 * MIB), 'values': torch.ones(4 * MIB)}",
    ),
    "a list of texts": Program(
        "Python objects",
        "global `lines`",
        "lines = []",
        "lines.extend('x' * 1000 + str(each) for each in range(10_000))",
        "lines[:] = ['x' * 1000 + str(each) for each in range(10_000)]",
        error="MemoryError",
    ),
    "a retained graph": Program(
        "saved for backward",
        "local `logits` of step",
        "weight = torch.ones(1024, requires_grad=True)\nhistory = []\ndef step(turn):\n"
        "    logits = torch.ones(8192, 1024)\n    for _ in range({rounds}):\n        logits = (logits * weight).exp()\n"
        "    return logits".replace("{rounds}", "40 if turn else 1"),
        "step(turn)",
        "step(0)",
    ),
    # A small tensor kept from each turn could keep the large freed blocks in the heap, and memory would run out.
    "views of large tensors": Program(
        "other tensors",
        "global `firsts`",
        "firsts = []",
        "firsts.append(torch.ones(8 * MIB)[:1])",
        "firsts.append(torch.ones(8 * MIB)[:1].item())",
    ),
    "a linked list": Program(
        "other tensors",
        "global `head`",
        "class Node:\n    __slots__ = ('value', 'next')\n    def __init__(self, value, next):\n"
        "        self.value, self.next = value, next\nhead = None",
        "global head\nhead = Node(torch.ones(8 * MIB), head)",
        "global head\nhead = Node(torch.ones(8 * MIB), None)",
    ),
    "arguments of callbacks": Program(
        "other tensors",
        "global `callbacks`",
        "callbacks = []",
        "callbacks.append(functools.partial(print, torch.ones(8 * MIB)))",
        "callbacks[:] = [functools.partial(print, torch.ones(8 * MIB))]",
    ),
}  # fmt: skip


def code_of(program: Program, *, twin: bool = False, start: str = START) -> str:
    """Return the code of a program, or of its twin."""
    body = program.twin if twin else program.fails
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    call = "main()" if twin else program.call
    return PROGRAM.format(start=start, room=ROOM_MIB, setup=program.setup, turns=TURNS, body=lines, call=call)


def is_named(program: Program, record: dict) -> bool:
    """Return whether a report names the category and the holder of a program first."""
    if program.category == "Python objects":
        return bool(record["containers"]) and program.holder in record["containers"][0]["holder"]
    first = record["live"][0] if record["live"] else {"category": "", "holder": ""}
    return first["category"] == program.category and program.holder in first["holder"]
