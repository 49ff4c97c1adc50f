"""Who holds what near the peak: looks from the running calls at the tensors their variables reach.

A look is taken when the live bytes set a new high, or are near it and much was born since the last look.
It starts at the frames of the thread, innermost first, and follows containers, closures, partials, bound
methods, generators, iterators and plain attributes; it never runs code of the program. Looks are bounded
in objects and in time (a share of the time the block has been open); what they cost is reported.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections import deque
from inspect import CO_VARARGS, CO_VARKEYWORDS
from itertools import islice
from types import CodeType, FrameType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from memwatch.heap.edge_names import name_edge
from memwatch.heap.frames import is_own_code, is_test_runner_code, read_locals
from memwatch.heap.names import instance_dict
from memwatch.record.clock import ticks
from memwatch.record.stacks import is_user
from memwatch.record.storages import NEVER, Storages, address_of, plain_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memwatch.record.strings import Strings

_GROWTH_RATIO: Final = 1.02
_NEAR_RATIO: Final = 0.9
_FRESH_RATIO: Final = 0.1
_MAX_AGAIN: Final = 32
_TIME_RATIO: Final = 0.05
_ALLOWED_S: Final = 0.25
_MAX_OBJECTS: Final = 400
_MAX_DEPTH: Final = 8
_MAX_FRAMES: Final = 200
_MAX_HOLDERS: Final = 6
_SMALL_RATIO: Final = 0.001
_CONTAINERS: Final = (list, tuple, dict, set, frozenset, deque)
_LEAVES: Final = (
    str,
    bytes,
    int,
    float,
    bool,
    type(None),
    type,
    ModuleType,
    CodeType,
    torch.dtype,
    torch.device,
    torch.Size,
)

Chain = tuple[Any, ...]


class HolderLooks:
    """Append rows of `holders` for the storages that running calls can reach."""

    def __init__(
        self, storages: Storages, strings: Strings, ops_started: list[int], ticks_per_s: float
    ) -> None:
        self.rows: list[int] = []
        self.count = 0
        self.cost_ticks = 0
        self._storages = storages
        self._strings = strings
        self._ops_started = ops_started
        self._start_ticks = ticks()
        self._allowed_ticks = int(_ALLOWED_S * ticks_per_s)
        self._base_bytes = storages.live_bytes
        self._high_bytes = storages.live_bytes
        self._count_at_look = storages.count
        self._born_bytes = 0
        self._again = _MAX_AGAIN
        self._looking = False
        self._paths: dict[tuple[int, int], int] = {}
        self.due_op = -1
        self._iteration_start = 0
        self._iteration_high = (0, -1)

    def start(self) -> None:
        """Begin to look at new highs."""
        self._storages.watch(self._near(), self.born)

    def stop(self) -> None:
        """Look no more."""
        self._storages.watch(NEVER, self.born)

    def iteration_starts(self) -> None:
        """Plan a look at the op, in the new iteration, at which the last one had its peak."""
        _, op = self._iteration_high
        start = self._ops_started[0]
        self.due_op = start + op - self._iteration_start if op >= 0 else -1
        self._iteration_start, self._iteration_high = start, (0, -1)
        self._storages.watch(0 if self.due_op >= 0 else self._near(), self.born)

    def _near(self) -> int:
        """Give the live bytes from which on a birth may be worth a look: only a new high once enough was seen."""
        ratio = _NEAR_RATIO if self._again > 0 else _GROWTH_RATIO
        return self._base_bytes + int((self._high_bytes - self._base_bytes) * ratio)

    def born(self, nbytes: int) -> None:
        """Look, if this birth makes it worth while."""
        self._born_bytes += nbytes
        if self._storages.live_bytes > self._iteration_high[0]:
            self._iteration_high = (self._storages.live_bytes, self._ops_started[0])
        increase = self._storages.live_bytes - self._base_bytes
        high = self._high_bytes - self._base_bytes
        due = self.due_op >= 0 and self._ops_started[0] >= self.due_op
        grown = increase > high * _GROWTH_RATIO
        fresh = increase >= high * _NEAR_RATIO and self._born_bytes >= high * _FRESH_RATIO
        if (grown or fresh or due) and not self._looking and (due or self._affordable(increase > 2 * high)):
            self.due_op = -1
            self._again = _MAX_AGAIN if grown else self._again - 1
            self._high_bytes = max(self._high_bytes, self._storages.live_bytes)
            self._born_bytes = 0
            self._storages.watch(self._near(), self.born)
            self.look()

    def _affordable(self, doubled: bool) -> bool:
        return doubled or self.cost_ticks <= self._allowed_ticks + _TIME_RATIO * (ticks() - self._start_ticks)

    def look(self) -> None:
        """Find the holders now."""
        self._looking = True
        start = ticks()
        enabled = gc.isenabled()
        gc.disable()  # a collection now would run the program's finalizers inside an op
        try:
            with torch._C.DisableTorchFunction():
                self._look(sys._getframe(1))
        finally:
            if enabled:
                gc.enable()
            self.cost_ticks += ticks() - start
            self._looking = False

    def _look(self, frame: FrameType | None) -> None:
        found: dict[int, int] = {}
        smallest = max(int((self._storages.live_bytes - self._base_bytes) * _SMALL_RATIO), 1)
        seen: set[int] = set(map(id, _running(frame)))
        for running in _frames(frame):
            words: dict[int, tuple[int, int, int]] = {}
            for chain in islice(_reach(running, seen), _MAX_OBJECTS):
                if isinstance(chain[-1], Tensor):
                    self._held(chain, found, smallest, words)
        self.count += 1

    def _held(
        self, chain: Chain, found: dict[int, int], smallest: int, words: dict[int, tuple[int, int, int]]
    ) -> None:
        try:
            keys = [address_of(part) for part in plain_parts(chain[-1])]
        except (NotImplementedError, RuntimeError, AttributeError):
            return
        for key in keys:
            alive = self._storages.live.get(key)
            if alive is None or alive.nbytes < smallest or found.get(alive.number, 0) >= _MAX_HOLDERS:
                continue
            found[alive.number] = found.get(alive.number, 0) + 1
            variable = self._variable(chain, words)
            place = (alive.number, variable[1])
            if place not in self._paths:  # an item's path is named once: naming costs more than finding
                self._paths[place] = self._strings("\n".join(_edges(chain)))
            self.rows += (self.count, self._ops_started[0], alive.number, *variable, self._paths[place])

    def _variable(self, chain: Chain, known: dict[int, tuple[int, int, int]]) -> tuple[int, int, int]:
        """Name the variable at the head of a chain: its kind, itself, the `file:line` that its call has reached."""
        head = id(chain[1])
        if head in known:
            return known[head]
        frame: FrameType = chain[0]
        strings = self._strings
        site = strings(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        kind, edges = _kind(frame, chain[1]), list(_edges(chain))
        words = edges[0] if edges else ""
        if kind == "argument":
            words = words.replace("local `", "argument `", 1)
        if isinstance(chain[1], (Tensor, *_CONTAINERS)) or len(edges) < 2:  # no second edge to tell of
            known[head] = strings(kind), strings(words), site
            return known[head]
        return strings("attribute"), strings(f"{edges[1]}, {words}"), site


_is_plumbing: Final = functools.cache(is_test_runner_code)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Give the program's running calls, innermost first.

    Of torch's own calls only those are given that run the program's code: their variables, like the `args` of
    `nn.Module.__call__`, are why a `del` inside frees nothing; all others are no business of the program.
    """
    inside_user = False
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return
        if not is_own_code(frame.f_code):
            user = is_user(frame.f_code.co_filename)
            if (user or inside_user) and not _is_plumbing(frame.f_code.co_filename):
                yield frame
            inside_user = user
        frame = frame.f_back


def _running(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _reach(frame: FrameType, seen: set[int]) -> Iterator[Chain]:
    """Give a chain of objects to each object that a call's variables reach, nearest first."""
    waiting: deque[Chain] = deque()
    for value in _values_of_frame(frame):
        if not isinstance(value, _LEAVES):
            waiting.append((frame, value))
    while waiting:
        chain = waiting.popleft()
        value = chain[-1]
        if isinstance(value, Tensor):
            yield chain  # a tensor may be reached from several calls: each of them holds it
            continue
        if id(value) in seen and not (
            isinstance(value, _CONTAINERS) and len(chain) == 2
        ):  # a container passed on is held by both calls
            continue
        seen.add(id(value))
        yield chain
        if len(chain) < _MAX_DEPTH:
            waiting.extend((*chain, *steps) for steps in _children(value))


def _values_of_frame(frame: FrameType) -> list[Any]:
    values = read_locals(frame)
    named = list(values.values())
    if frame.f_code.co_name == "<module>":
        return named
    known = {id(value) for value in named}
    # what the frame refers to beyond its variables lies on its evaluation stack: iterators, half-made calls
    return named + [
        value
        for value in gc.get_referents(frame)
        if id(value) not in known and not isinstance(value, (dict, FrameType, FunctionType))
    ]


def _children(value: Any) -> Iterator[tuple[Any, ...]]:
    """Give what an object refers to, with the objects in between, without running its code."""
    for kind, children in _CHILDREN.items():
        if isinstance(value, kind):
            steps = children(value)
            break
    else:
        steps = _of_instance(value)
    return (step for step in steps if not isinstance(step[-1], _LEAVES))


def _of_module(module: nn.Module) -> Iterator[tuple[Any, ...]]:
    names = module.__dict__
    return ((names, held) for name, held in names.items() if name not in ("_parameters", "_buffers"))


def _of_container(container: Any) -> Iterator[tuple[Any, ...]]:
    held: Any = gc.get_referents(container)
    if isinstance(container, dict):
        held = dict.values(container)
    elif type(container) in _CONTAINERS:
        held = iter(container)
    return ((each,) for each in held)


def _of_generator(generator: GeneratorType[Any, Any, Any]) -> Iterator[tuple[Any, ...]]:
    inner = generator.gi_frame
    return iter(()) if inner is None else ((inner, held) for held in _values_of_frame(inner))


def _of_function(function: FunctionType) -> Iterator[tuple[Any, ...]]:
    return ((cell, held) for cell in function.__closure__ or () for held in gc.get_referents(cell))


def _of_exception(error: BaseException) -> Iterator[tuple[Any, ...]]:
    trace = error.__traceback__
    while trace is not None:
        yield trace, trace.tb_frame
        trace = trace.tb_next


def _of_instance(value: Any) -> Iterator[tuple[Any, ...]]:
    attributes = instance_dict(value)
    if attributes is None:
        return ((held,) for held in gc.get_referents(value))
    return ((attributes, held) for held in attributes.values())


_CHILDREN: Final[dict[Any, Callable[[Any], Iterator[tuple[Any, ...]]]]] = {
    nn.Module: _of_module,
    _CONTAINERS: _of_container,
    GeneratorType: _of_generator,
    FunctionType: _of_function,
    MethodType: lambda method: iter([(method.__self__,)]),
    BaseException: _of_exception,
    FrameType: lambda frame: ((held,) for held in _values_of_frame(frame)),
}


def _edges(chain: Chain) -> Iterator[str]:
    """Name the references of a chain, the outermost first."""
    place = 0
    while place < len(chain) - 1:
        words, covered, _ = name_edge(chain, place)
        if words:
            yield words
        place += max(covered, 1)


def _kind(frame: FrameType, value: Any) -> str:
    code = frame.f_code
    arguments = (
        code.co_argcount
        + code.co_kwonlyargcount
        + bool(code.co_flags & CO_VARARGS)
        + bool(code.co_flags & CO_VARKEYWORDS)
    )
    for name, held in read_locals(frame).items():
        if held is value:
            return "argument" if name in code.co_varnames[:arguments] else "local"
    return "evaluation stack"
