"""Run small programs with a leak, as users write them, and their corrected twins, through find_leaks and check_leaks.

    python reports/leaks.py [NAME ...]   # all programs, or those with one of these names; writes reports/leaks.md

Each program has a step that leaks. Its twin has the same step with the leak mended, and memwatch must not report it.
The exit code is 1 if a leak is missed, if its holder or its bytes are wrong, or if a twin is reported.
"""

from __future__ import annotations

import gc
import linecache
import sys
import types
import warnings
from pathlib import Path
from typing import NamedTuple

import torch

from memwatch.leaks import TensorLeakError, check_leaks, find_leaks

BEGIN = """
import atexit, asyncio, collections, contextvars, copy, functools, gc, itertools, logging, queue, signal, sys, threading
import weakref
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)
def batch(): return torch.ones(4, 256)
def new(): return torch.ones(1024)
net = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
def loss(): return net(batch()).square().mean()
def train():
    value = loss(); optimizer.zero_grad(); value.backward(); optimizer.step(); return value
"""


class Program(NamedTuple):
    """A program with a leak, and its twin.

    Attributes:
        setup: the code before the first step.
        leaking: the body of the step.
        corrected: the same, mended.
        holder: words of the holder; each of them must be there.
        nbytes: bytes that each step leaks; None if they depend on what torch saves for backward.
    """

    setup: str
    leaking: str
    corrected: str
    holder: tuple[str, ...]
    nbytes: int | None


KIB = 1024
PROGRAMS = {
    "closure": Program(
        "def make(kept):\n    def call(value): kept.append(value)\n    return call\ncall = make([])",
        "call(new())", "call.__closure__[0].cell_contents.clear(); call(new())", ("call", "kept"), 4 * KIB),
    "default argument": Program(
        "def keep(value, kept=[]): kept.append(value)", "keep(new())", "keep(new(), [])", ("keep", "default"), 4 * KIB),
    "lru_cache on a method": Program(
        "class Model:\n    @functools.lru_cache(maxsize=None)\n    def mask(self, n): return torch.ones(n)\n",
        "Model().mask(1024)", "Model.mask.__wrapped__(Model(), 1024)", ("mask",), 4 * KIB),
    "functools.cache on a function": Program(
        "@functools.cache\ndef positions(n): return torch.ones(1024)\nnumbers = itertools.count()",
        "positions(next(numbers))", "positions(0)", ("positions",), 4 * KIB),
    "class attribute": Program(
        "class Trainer:\n    history = []\n    def run(self): self.history.append(new())\n    def once(self):\n"
        "        self.history = [new()]\n",
        "Trainer().run()", "Trainer().once()", ("history", "Trainer"), 4 * KIB),
    "list of losses": Program(
        "losses = []", "losses.append(loss())", "losses.append(loss().item())", ("losses",), None),
    "dictionary of losses by step": Program(
        "logs = {}\nnumbers = itertools.count()", "logs[next(numbers)] = {'loss': loss()}",
        "logs[next(numbers)] = {'loss': loss().item()}", ("logs",), None),
    "sum of losses": Program(
        "class Meter:\n    total = 0\nmeter = Meter()", "meter.total = meter.total + train()",
        "meter.total = meter.total + train().detach()", ("total",), None),
    "sum of losses in place": Program(
        "class Meter: pass\nmeter = Meter(); meter.total = torch.zeros(())", "meter.total += train()",
        "meter.total += train().detach()", ("total",), None),
    "moving average with its graph": Program(
        "class Meter: pass\nmeter = Meter(); meter.average = torch.zeros(())",
        "meter.average = 0.9 * meter.average + 0.1 * train()",
        "meter.average = 0.9 * meter.average + 0.1 * train().detach()", ("average",), None),
    "exceptions kept": Program(
        "errors = []\ndef fails():\n    local = new()\n    raise ValueError(local.numel())",
        "try: fails()\n    except ValueError as error: errors.append(error)",
        "try: fails()\n    except ValueError as error: errors.append(error.with_traceback(None))",
        ("errors",), 4 * KIB),
    "forward hooks never removed": Program(
        "", "net[0].register_forward_hook(lambda *a: None); train()",
        "handle = net[0].register_forward_hook(lambda *a: None); train(); handle.remove()", ("_forward_hooks",), 0),
    "forward hook that stores activations": Program(
        "seen = []\nnet[0].register_forward_hook(lambda m, i, o: seen.append(o.detach()))", "net(batch())",
        "net(batch()); seen.clear()", ("seen",), 4 * 64 * 4),
    "full backward hook that stores gradients": Program(
        "seen = []\nnet[0].register_full_backward_hook(lambda m, i, o: seen.append(o[0]))", "train()",
        "train(); seen.clear()", ("seen",), 4 * 64 * 4),
    "tensor hook with its tensor": Program(
        "", "x = net(batch()).exp(); x.register_hook(lambda grad: grad * x.mean())",
        "x = net(batch()).exp(); mean = x.mean().item(); x.register_hook(lambda grad: grad * mean)", ("x",), None),
    "predictions of a metric": Program(
        "class Metric:\n    def __init__(self): self.preds = []\n    def update(self, p): self.preds.append(p)\n"
        "    def reset(self): self.preds = []\nmetric = Metric()",
        "metric.update(net(batch()).detach())", "metric.reset(); metric.update(net(batch()).detach())", ("preds",), 16),
    "replay buffer without a bound": Program(
        "buffer = collections.deque(); window = collections.deque(maxlen=3)", "buffer.append((new(), 0.5))",
        "window.append((new(), 0.5))", ("buffer",), 4 * KIB),
    "suspended generators": Program(
        "readers = []\ndef read():\n    chunk = new()\n    yield chunk.sum()\n",
        "readers.append(read()); next(readers[-1])", "reader = read(); next(reader); reader.close()",
        ("readers", "chunk"), 4 * KIB),
    "thread-local list": Program(
        "local = threading.local(); local.kept = []", "local.kept.append(new())", "local.kept = [new()]",
        ("kept",), 4 * KIB),
    "queue that nobody reads": Program(
        "results = queue.Queue()", "results.put(new())", "results.put(new()); results.get()", ("results",), 4 * KIB),
    "weak keys whose values hold the key": Program(
        "class Key: pass\ntable = weakref.WeakKeyDictionary()",
        "key = Key(); table[key] = (key, new())", "key = Key(); table[key] = new()", ("table",), 4 * KIB),
    "context of a Function": Program(
        "class Square(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        ctx.y = x * x\n        return ctx.y\n    @staticmethod\n    def backward(ctx, g): return g\n"
        "class Saved(Square):\n    @staticmethod\n    def forward(ctx, x):\n        y = x * x\n"
        "        ctx.save_for_backward(y)\n        return y\nw = torch.ones(1024, requires_grad=True)",
        "Square.apply(w)", "Saved.apply(w)", ("ctx",) , 4 * KIB),
    "backward with create_graph": Program(
        "def part():\n    layer = nn.Linear(64, 64, bias=False)\n"
        "    return layer, layer(torch.ones(4, 64)).square().sum()",
        "layer, value = part(); value.backward(create_graph=True)",
        "layer, value = part(); torch.autograd.grad(value, layer.weight, create_graph=True)", ("grad",), None),
    "retain_graph with outputs kept": Program(
        "outputs = []", "value = loss(); value.backward(retain_graph=True); outputs.append(value)",
        "value = loss(); value.backward(); outputs.append(value.item())", ("outputs",), None),
    "partials in a list": Program(
        "todo = []", "todo.append(functools.partial(print, new()))", "functools.partial(print, new())",
        ("todo", "partial"), 4 * KIB),
    "context variable": Program(
        "trace = contextvars.ContextVar('trace', default=())", "trace.set((*trace.get(), new()))",
        "trace.set((new(),))", ("trace",), 4 * KIB),
    "logging handler with arguments": Program(
        "class Memory(logging.Handler):\n    def __init__(self): super().__init__(); self.records = []\n"
        "    def emit(self, record): self.records.append(record)\n"
        "log = logging.getLogger('report.leaks'); log.propagate = False; log.setLevel('INFO')\n"
        "log.addHandler(Memory())",
        "log.info('loss %s', new())", "log.info('loss %s', new().sum().item())", ("records", "args"), 4 * KIB),
    "parameters of a replaced head": Program(
        "class Task(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.body, self.head = nn.Linear(16, 32), nn.Linear(32, 32)\n"
        "task = Task(); steps = torch.optim.SGD(task.parameters(), lr=0.1)\n"
        "def replace():\n    task.head = nn.Linear(32, 32)\n    return list(task.head.parameters())",
        "steps.add_param_group({'params': replace()})",
        "new_ones = replace(); steps.param_groups[:] = [{**steps.param_groups[0], 'params': "
        "[*task.body.parameters(), *new_ones]}]", ("param",), 4 * (32 * 32 + 32)),
    "copies for an average": Program(
        "averages = []\nbest = {}", "averages.append(copy.deepcopy(net.state_dict()))",
        "best['state'] = copy.deepcopy(net.state_dict())", ("averages",), 4 * (256 * 64 + 64 + 64 + 1)),
    "scheduler with a lambda over a batch": Program(
        "schedulers = []",
        "x = new(); schedulers.append(torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.5 + 0 * x[0].item()))",
        "first = new()[0].item(); schedulers[:] = [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: first)]",
        ("schedulers",), 4 * KIB),
    "finalizer with arguments": Program(
        "class Owner: pass\nowner = Owner()\ndef say(value): pass",
        "weakref.finalize(owner, say, new())", "weakref.finalize(owner, say, 1024)", ("finalize",), 4 * KIB),
    "callback at exit": Program(
        "def save(value): pass\ndef nothing(): pass", "atexit.register(save, new())",
        "atexit.register(nothing); new()", ("tuple",), 4 * KIB),
    "signal handler that chains": Program(
        "def chain(before, value):\n    def handler(*a): return before, value\n    return handler\n"
        "signal.signal(signal.SIGUSR1, lambda *a: None)",
        "signal.signal(signal.SIGUSR1, chain(signal.getsignal(signal.SIGUSR1), new()))",
        "signal.signal(signal.SIGUSR1, chain(None, new()))", ("SIGUSR1",), 4 * KIB),
    "children with their parent": Program(
        "class Node:\n    def __init__(self, parent=None): self.parent, self.value, self.children = parent, new(), []\n"
        "class Weak(Node):\n    def __init__(self, parent): super().__init__(weakref.ref(parent))\n",
        "root = Node(); root.children.append(Node(root))", "root = Node(); root.children.append(Weak(root))",
        ("parent",), 8 * KIB),
    "bound method kept by its object": Program(
        "class Model:\n    def __init__(self): self.weight = new(); self.call = self.forward\n"
        "    def forward(self): return self.weight\n"
        "class Mended:\n    def __init__(self): self.weight = new()\n    def forward(self): return self.weight\n",
        "Model()", "Mended()", ("call",), 4 * KIB),
    "observers that nobody removes": Program(
        "class Bus:\n    def __init__(self): self.listeners = []\nbus = Bus()\n"
        "class Listener:\n    def __init__(self): self.state = new(); bus.listeners.append(self.on)\n"
        "    def on(self): pass\n    def close(self): bus.listeners.remove(self.on)\n",
        "Listener()", "Listener().close()", ("listeners",), 4 * KIB),
    "cache by the tensor's id": Program(
        "cache = {}\ndef cached(x, table):\n    table[id(x)] = (x, x * 2)\n    return table[id(x)][1]",
        "cached(new(), cache)", "cached(new(), {})", ("cache",), 8 * KIB),
    "key and value cache that grows": Program(
        "class Attention: pass\nlayer = Attention(); layer.keys = torch.ones(0, 256)",
        "layer.keys = torch.cat([layer.keys, torch.ones(4, 256)])",
        "layer.keys = torch.cat([layer.keys, torch.ones(4, 256)])[-4:].clone()", ("keys",), 4 * KIB),
    "view of a large batch": Program(
        "firsts = []", "big = torch.ones(64, 1024); firsts.append(big[0])",
        "big = torch.ones(64, 1024); firsts[:] = [big[0].clone()]", ("firsts",), 256 * KIB),
    "array over a tensor": Program(
        "rows = []", "rows.append(new().numpy())", "rows.append(float(new().numpy()[0]))", ("rows",), 4 * KIB),
    "DLPack of a slice": Program(
        "parts = []", "parts.append(torch.from_dlpack(new()[512:]))", "parts[:] = [torch.from_dlpack(new()[512:])]",
        ("parts",), 4 * KIB),
    "thread that each step starts": Program(
        "def work(value, stop): stop.wait()\n",
        "threading.Thread(target=work, args=(new(), threading.Event()), daemon=True).start()",
        "stop = threading.Event(); each = threading.Thread(target=work, args=(new(), stop)); each.start(); stop.set()\n"
        "    each.join()",
        ("work",), 4 * KIB),
    "tasks of an event loop": Program(
        "loop = asyncio.new_event_loop(); tasks = set()\nasync def serve():\n    value = new()\n"
        "    await asyncio.Event().wait()\nasync def ends():\n    value = new()\n    await asyncio.sleep(0)\n"
        "async def start(coroutine): tasks.add(asyncio.ensure_future(coroutine)); await asyncio.sleep(0)\n"
        "async def finish(coroutine): await asyncio.ensure_future(coroutine)\n",
        "loop.run_until_complete(start(serve()))", "loop.run_until_complete(finish(ends()))", ("value",), 4 * KIB),
    "modules added per call": Program(
        "heads = nn.ModuleList()", "heads.append(nn.Linear(32, 32))", "heads = nn.ModuleList([nn.Linear(32, 32)])",
        ("heads",), 4 * (32 * 32 + 32)),
    "buffers registered per call": Program(
        "numbers = itertools.count()", "net.register_buffer(f'mask_{next(numbers)}', new())",
        "net.register_buffer('mask', new())", ("mask_",), 4 * KIB),
    "wrapped forward": Program(
        "def wrap(forward, scale):\n    def call(x): return forward(x) * scale[0]\n    return call\n"
        "original = net.forward",
        "net.forward = wrap(net.forward, new())", "net.forward = wrap(original, new())", ("forward",), 4 * KIB),
    "outputs of checkpoints": Program(
        "outputs = []", "outputs.append(checkpoint(net, batch().requires_grad_(), use_reentrant=False))",
        "outputs[:] = [checkpoint(net, batch().requires_grad_(), use_reentrant=False).detach()]", ("outputs",), None),
    "scripted function's results": Program(
        "results = {}\nnumbers = itertools.count()\n@torch.jit.script\ndef double(x): return x * 2",
        "results[next(numbers)] = double(new())", "results[0] = double(new())", ("results",), 4 * KIB),
    "compiled function's results": Program(
        "results = []\ndouble = torch.compile(lambda x: x * 2, backend='eager')", "results.append(double(new()))",
        "results[:] = [double(new())]", ("results",), 4 * KIB),
    "registry of instances": Program(
        "class Run:\n    all = {}\n    def __init__(self): self.data = new(); Run.all[id(self)] = self\n"
        "class Weak:\n    all = weakref.WeakValueDictionary()\n"
        "    def __init__(self): self.data = new(); Weak.all[id(self)] = self\n",
        "Run()", "Weak()", ("all",), 4 * KIB),
    "branch of a tee that nobody reads": Program(
        "def stream():\n    while True: yield new()\ntraining, checking = itertools.tee(stream())",
        "next(training)", "next(training); next(checking)", ("_tee",), 4 * KIB),
    "iterators chained to each other": Program(
        "class Feed:\n    def __init__(self): self.pending = iter(())\nfeed = Feed()",
        "feed.pending = itertools.chain(feed.pending, [new()])", "feed.pending = itertools.chain([new()])",
        ("pending", "chain"), 4 * KIB),
    "pickler whose memo keeps what it sends": Program(
        "import io, pickle\nclass Message:\n    def __init__(self): self.payload = new()\n"
        "    def __getstate__(self): return {}\npickler = pickle.Pickler(io.BytesIO())",
        "pickler.dump(Message())", "pickler.dump(Message()); pickler.clear_memo()", ("Pickler", "payload"), 4 * KIB),
    "masks of repeated pruning": Program(
        "from torch.nn.utils import prune\nlayer = nn.Linear(32, 32)",
        "prune.custom_from_mask(layer, 'weight', torch.ones(32, 32))",
        "prune.custom_from_mask(layer, 'weight', torch.ones(32, 32)); prune.remove(layer, 'weight')",
        ("_forward_pre_hooks", "mask"), 4 * KIB),
    "hook of a partial with a table": Program(
        "def save(table, module, args, out): table[len(table)] = out.detach()\n"
        "def last(table, module, args, out): table[0] = out.detach()\n"
        "def probe(save):\n    if not net[0]._forward_hooks:\n"
        "        net[0].register_forward_hook(functools.partial(save, {}))\n    net(batch())",
        "probe(save)", "probe(last)", ("_forward_hooks", "partial"), 4 * 64 * 4),
    "partial of a partial": Program(
        "class Trainer: pass\ntrainer = Trainer(); trainer.on_end = print",
        "trainer.on_end = functools.partial(trainer.on_end, new())", "trainer.on_end = functools.partial(print, new())",
        ("on_end", "partial"), 4 * KIB),
    "connections that nobody unregisters": Program(
        "import selectors, socket\nselector = selectors.DefaultSelector(); pairs = []\n"
        "def accept():\n    pairs.append(socket.socketpair())\n"
        "    selector.register(pairs[-1][0], selectors.EVENT_READ, new())\n",
        "accept()", "accept(); selector.unregister(pairs[-1][0])", ("_fd_to_key", "data"), 4 * KIB),
    "finders of imports": Program(
        "class Finder:\n    def __init__(self): self.weights = new()\n"
        "    def find_spec(self, *a): return None\n",
        "sys.meta_path.append(Finder())", "sys.meta_path.append(Finder()); sys.meta_path.pop()",
        ("meta_path", "weights"), 4 * KIB),
    "queue of log records with extras": Program(
        "import logging.handlers\nrecords = queue.SimpleQueue()\nlog = logging.Logger('extras')\n"
        "log.addHandler(logging.handlers.QueueHandler(records))",
        "log.info('step', extra={'batch': new()})", "log.info('step', extra={'batch': new()}); records.get()",
        ("batch", "LogRecord"), 4 * KIB),
    "tokens of a context variable": Program(
        "current = contextvars.ContextVar('current', default=None); tokens = []",
        "tokens.append(current.set(new()))", "current.reset(current.set(new()))", ("tokens",), 4 * KIB),
    "object as a default of a dataclass": Program(
        "import dataclasses\nclass Log:\n    def __init__(self): self.items = []\n"
        "@dataclasses.dataclass\nclass Shared:\n    log: Log = Log()\n"
        "@dataclasses.dataclass\nclass Own:\n    log: Log = dataclasses.field(default_factory=Log)\n",
        "Shared().log.items.append(new())", "Own().log.items.append(new())", ("Shared", "items"), 4 * KIB),
    "attribute of a function": Program(
        "def evaluate(value): evaluate.outputs.append(value)\nevaluate.outputs = []\n"
        "def mended(value): evaluate.outputs = [value]\n",
        "evaluate(new())", "mended(new())", ("outputs", "evaluate"), 4 * KIB),
    "member of an enumeration": Program(
        "import enum\nclass Mode(enum.Enum):\n    TRAIN = 1\n    def __init__(self, number): self.history = []\n",
        "Mode.TRAIN.history.append(new())", "Mode.TRAIN.history[:] = [new()]", ("TRAIN", "history"), 4 * KIB),
    "shelf that writes back": Program(
        "import shelve\nshelf = shelve.Shelf({}, writeback=True); numbers = itertools.count()",
        "shelf[str(next(numbers))] = new()", "shelf[str(next(numbers))] = new(); shelf.sync()",
        ("cache", "Shelf"), 4 * KIB),
    "subscribers that left": Program(
        "loop = asyncio.new_event_loop(); subscribers = set()\nasync def connect():\n"
        "    inbox = asyncio.Queue(); subscribers.add(inbox); inbox.put_nowait(new()); return inbox\n",
        "loop.run_until_complete(connect())", "subscribers.discard(loop.run_until_complete(connect()))",
        ("subscribers", "_queue"), 4 * KIB),
    "errors of an event loop": Program(
        "loop = asyncio.new_event_loop(); errors = []\n"
        "loop.set_exception_handler(lambda loop, context: errors.append(context['exception']))\n"
        "def fails():\n    value = new()\n    raise ValueError\n",
        "loop.call_soon(fails); loop.run_until_complete(asyncio.sleep(0))",
        "loop.call_soon(fails); loop.run_until_complete(asyncio.sleep(0)); errors.pop().with_traceback(None)",
        ("errors", "value"), 4 * KIB),
    "thread local of a worker of a pool": Program(
        "import concurrent.futures\npool = concurrent.futures.ThreadPoolExecutor(1); local = threading.local()\n"
        "def keep(): local.__dict__.setdefault('kept', []).append(new())\ndef last(): local.last = new()\n",
        "pool.submit(keep).result()", "pool.submit(last).result()", ("kept",), 4 * KIB),
    "readers of an iterable dataset": Program(
        "class Stream(torch.utils.data.IterableDataset):\n    def __iter__(self):\n        chunk = new()\n"
        "        while True: yield chunk[:4]\n"
        "loader = torch.utils.data.DataLoader(Stream(), batch_size=None); readers = []",
        "readers.append(iter(loader)); next(readers[-1])", "next(iter(loader))", ("readers", "chunk"), 4 * KIB),
    "datasets nested by active learning": Program(
        "from torch.utils.data import ConcatDataset, TensorDataset\nclass Learner: pass\n"
        "learner = Learner(); learner.pool = TensorDataset(batch())",
        "learner.pool = ConcatDataset([learner.pool, TensorDataset(batch())])",
        "learner.pool = ConcatDataset([TensorDataset(batch())])", ("pool", "datasets"), 4 * KIB),
    "closure on the context of a Function": Program(
        "class Exp(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        y = x.exp()\n"
        "        ctx.run = lambda grad: grad * y\n        return y\n"
        "    @staticmethod\n    def backward(ctx, grad): return ctx.run(grad)\n"
        "class Saved(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        y = x.exp()\n        ctx.save_for_backward(y)\n        return y\n"
        "    @staticmethod\n    def backward(ctx, grad): return grad * ctx.saved_tensors[0]\n"
        "w = torch.ones(1024, requires_grad=True)",
        "Exp.apply(w).sum().backward()", "Saved.apply(w).sum().backward()", ("run", "ctx"), 4 * KIB),
    "gradients that a node's hook collects": Program(
        "w = torch.ones(1024, requires_grad=True); seen = []\ndef watched(note):\n    y = w * 2\n"
        "    y.grad_fn.register_hook(lambda inputs, outputs: seen.append(note(inputs[0])))\n"
        "    y.sum().backward()\n",
        "watched(lambda grad: grad)", "watched(lambda grad: grad.norm().item())", ("seen",), 4 * KIB),
    "fast weights that are never reset": Program(
        "class Learner: pass\nlearner = Learner(); learner.fast = torch.ones(32, 32, requires_grad=True)\n"
        "def adapt():\n    value = (torch.ones(4, 32) @ learner.fast).square().mean()\n"
        "    [grad] = torch.autograd.grad(value, [learner.fast])\n    learner.fast = learner.fast - 0.1 * grad\n",
        "adapt()", "adapt(); learner.fast = learner.fast.detach().requires_grad_()", ("fast",), None),
    "tangents of a linearized function": Program(
        "tangents = []", "tangents.append(torch.func.jvp(torch.exp, (new(),), (new(),)))",
        "tangents[:] = [torch.func.jvp(torch.exp, (new(),), (new(),))]", ("tangents",), 8 * KIB),
    "outputs on the nodes of a traced graph": Program(
        "import torch.fx\ntraced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(256, 64)))\n"
        "class Record(torch.fx.Interpreter):\n    def run_node(self, node):\n        out = super().run_node(node)\n"
        "        if node.op == 'call_module': node.meta.setdefault('outputs', []).append(out.detach())\n"
        "        return out\n"
        "class Last(torch.fx.Interpreter):\n    def run_node(self, node):\n        out = super().run_node(node)\n"
        "        node.meta['outputs'] = [out.detach()]\n        return out\n",
        "Record(traced).run(batch())", "Last(traced).run(batch())", ("meta", "outputs"), 4 * 64 * 4),
    "inputs that a backend of the compiler keeps": Program(
        "import torch._dynamo\ngraphs = []\ndef keeping(graph, inputs):\n    graphs.append(inputs)\n"
        "    return graph.forward\ndef plain(graph, inputs): return graph.forward\n"
        "def compiled(backend):\n    torch._dynamo.reset()\n"
        "    return torch.compile(lambda x: x * 2, backend=backend)(new())\n",
        "compiled(keeping)", "compiled(plain)", ("graphs",), 4 * KIB),
    "adapters that nobody deletes": Program(
        "adapters = nn.ModuleDict(); numbers = itertools.count()\ndef add():\n    name = f'user_{next(numbers)}'\n"
        "    adapters[name] = nn.Linear(32, 4, bias=False)\n    return name\n",
        "add()", "del adapters[add()]", ("adapters", "user_"), 4 * 32 * 4),
}  # fmt: skip


def step_of(name: str, body: str) -> types.FunctionType:
    """Return the step of a program, in a module of its own."""
    setup = PROGRAMS[name].setup
    names = "cache", "heads", "value"
    outer = "".join(f"    global {each}\n" for each in names if f"\n{each} = " in f"\n{setup}")
    source = f"{BEGIN}{setup}\ndef step():\n{outer}    {body}\n"
    file = f"{name.replace(' ', '_')}.py"
    module = types.ModuleType("program")
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    sys.modules["program"] = module
    exec(compile(source, file, "exec"), vars(module))
    step: types.FunctionType = module.step
    return step


def leaks_of_one_pass(step: types.FunctionType) -> list[object]:
    """Return the leaks that one checked pass shows, after three others."""
    for _ in range(3):
        step()
    try:
        with check_leaks():
            step()
    except TensorLeakError as error:
        return list(error.leaks)
    return []


def faults_of(name: str) -> list[str]:
    """Return what is wrong with the answers about a program and its twin."""
    program = PROGRAMS[name]
    faults = []
    found = find_leaks(step_of(name, program.leaking))
    if len(found) != 1:
        told = "; ".join(leak.headline() for leak in found)
        faults.append(f"find_leaks reports {len(found)} causes instead of 1: {told}")
    for leak in found[:1]:
        missing = [word for word in program.holder if word not in f"{leak.holder} {' '.join(leak.path)}"]
        if missing:
            faults.append(f"the holder does not name {', '.join(missing)}: {leak.holder}")
        if program.nbytes is not None and leak.nbytes != program.nbytes:
            faults.append(f"{leak.nbytes} bytes instead of {program.nbytes}")
    one_pass = leaks_of_one_pass(step_of(name, program.leaking))
    if not one_pass:
        faults.append("check_leaks misses it")
    faults += [
        f"find_leaks accuses the twin: {leak}" for leak in find_leaks(step_of(name, program.corrected))
    ]
    faults += [
        f"check_leaks accuses the twin: {leak}"
        for leak in leaks_of_one_pass(step_of(name, program.corrected))
    ]
    sys.modules.pop("program", None)
    gc.collect()
    return faults


def main() -> int:
    """Judge the programs, and write the table."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    wanted = [name for name in PROGRAMS if not sys.argv[1:] or name in sys.argv[1:]]
    rows = []
    for name in wanted:
        faults = faults_of(name)
        rows.append((name, faults))
        print(f"{name}: {'right' if not faults else '; '.join(faults)}", flush=True)
    right = sum(not faults for _, faults in rows)
    print(f"{right} of {len(rows)} programs and their twins are right")
    if not sys.argv[1:]:
        table = "\n".join(f"| {name} | {'right' if not faults else 'wrong'} |" for name, faults in rows)
        text = f"""# Leaks as users write them

`python reports/leaks.py` wrote this file. Each program leaks in a step. Its twin is the same program, mended. "Right"
means four things. `find_leaks` reports one cause, with the right holder and bytes. `check_leaks` reports a single step.
Both are silent about the twin.
{right} of {len(rows)} programs are right.

| program | answers |
| --- | --- |
{table}
"""
        Path(__file__).with_suffix(".md").write_text(text)
    return int(right < len(rows))


if __name__ == "__main__":
    sys.exit(main())
