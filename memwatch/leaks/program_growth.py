"""Find growth from one round of a program's work to the next, while the program runs.

At the end of a program the variables of its functions are gone, and a list at its top level may be its result. Only
the rounds in between show growth. A round is a step of the program's optimizer, or a pass of one of its loops.

A holder leaks if each round, or one round in up to four, adds a tensor with its graph. If many rounds were measured, a
longer distance from one such round to the next is enough: up to a quarter of them. A holder also leaks if rounds add a
hook as often, or if each round adds more nodes of a graph. A holder that keeps a tensor without a graph may collect
results. memwatch names it and does not judge it. Likewise for a tensor that becomes larger with each round, as
`torch.cat` makes it.

Each thread has rounds of its own, and so has each coroutine that an event loop runs. What others make meanwhile does
not count for them. In the thread of a pool, as of `concurrent.futures`, each task is a round.

A backward may need the graphs that a loop collects: unrolled steps, micro-batches whose losses are added up, inner
steps of meta-learning. So memwatch excuses a graph in two cases. The graph is alive when a backward runs, after the
loop or in a loop where some pass had no backward. Or it is gone when its function is called again.
"""

from __future__ import annotations

import dis
import gc
import itertools
import sys
import threading
import time
import weakref
from array import array
from bisect import bisect_right
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from inspect import CO_COROUTINE
from itertools import pairwise
from statistics import median_low
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from torch.optim.optimizer import register_optimizer_step_post_hook

from memwatch._torch.autograd import NO_TASK, current_graph_task_id, next_sequence_nr
from memwatch._torch.autograd_state import autograd_state
from memwatch._torch.modules import MODULE_CALL_CODE
from memwatch.gc_pause import objects_since
from memwatch.heap.classes import identities, is_a, without_identities
from memwatch.heap.frames import FrameMark
from memwatch.heap.paths import Step
from memwatch.heap.tensors import is_node, is_tensor, quiet, storage_of
from memwatch.kinds.edges import Edge, EdgeKind, Vertex, VertexKind
from memwatch.kinds.leaks import LeakKind, RoundPlace
from memwatch.leaks.cause import is_hook_number, is_registration, series_of
from memwatch.leaks.diagnose import diagnose
from memwatch.leaks.excuses import Exemptions
from memwatch.leaks.find import PERIOD
from memwatch.leaks.groups import FEWEST_ADDED, goes_on, leaks_of, merge_and_sort
from memwatch.leaks.in_use import Updates, storages_beside
from memwatch.leaks.ledger import Threads
from memwatch.leaks.new_storages import (
    NODE_BYTES,
    RUNS_A_THREAD,
    NewStorageMode,
    behind,
    runs_in_import,
    storages_behind,
    tensors_among,
)
from memwatch.leaks.without_tensors import (
    are_registered,
    holders_of_growing_graphs,
    holders_of_kept_nodes,
    leak_of_graph,
    leak_of_kept_nodes,
    leaks_of_hooks,
    next_hook_number,
)
from memwatch.own_code import CodeOwner, OwnThread, code_owner, is_memwatch_code, line_at
from memwatch.patches import Patches
from memwatch.signal_handlers import suppress
from memwatch.words.leaks import repeat_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
    from types import CodeType, FrameType

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from memwatch.leaks.leak import Leak, Survivor
    from memwatch.leaks.new_storages import NewStorage, NewStorages, Site

# Count the passes of the program's own loops from the call stacks of its ops.
#
# A program without an optimizer has no mark for the end of a round. Its loops show it. An op shows the instruction that
# each running call has reached. If a call has gone back to an earlier instruction, or calls a function again from the
# same instruction, a loop of that call has begun another pass.
#
# Python may reuse the memory of a frame for a later call, and frames have no weak references. So memwatch puts a mark
# of its own into `f_trace`, which only a debugger reads, and which dies with the frame. While a debugger or a coverage
# tool is active, memwatch counts no passes.

_WAITS: Final = "JUMP_BACKWARD_NO_INTERRUPT"
"""The jump with which `await` and `yield from` wait: no loop of the program."""


class _Call(NamedTuple):
    """One running call: the mark in its frame, its code, and the offset that it has reached."""

    mark: FrameMark
    code: CodeType
    offset: int


class _Range(NamedTuple):
    """The instructions of a loop, by their offsets: the first one, to which it jumps back, and the last."""

    start: int
    end: int


@dataclass(eq=False)
class Loop:
    """One run of a loop of the program, or of the loop of a thread pool that runs the program's tasks.

    Attributes:
        code: the function or module with the loop.
        range: its instructions.
        depth: number of running calls around the call with the loop.
        task: for the loop of a thread pool, the function of the first task.
        passes: number of passes that have begun after the first.
        is_over: True once the call has left it.
    """

    code: CodeType
    range: _Range
    depth: int
    task: CodeType | None = None
    passes: int = 0
    is_over: bool = False

    @property
    def place(self) -> RoundPlace:
        """The line at which the loop begins, or the function of the first task."""
        if self.task is not None:
            return RoundPlace(
                self.task.co_filename, self.task.co_firstlineno, self.task.co_name, is_task=True
            )
        return RoundPlace(self.code.co_filename, line_at(self.code, self.range.start), self.code.co_name)


class LoopPasses:
    """Compares the stack of each op with the stack of the previous op."""

    def __init__(self) -> None:
        self._stack: list[_Call] = []
        self._op: object = None
        self._running: dict[tuple[int, int], Loop] = {}  # by depth and first instruction
        self._ranges: dict[int, tuple[CodeType, list[_Range]]] = {}  # by the id of a code, which it keeps
        self._owners: dict[int, tuple[CodeType, CodeOwner]] = {}  # likewise

    @property
    def stack(self) -> list[_Call]:
        """The calls around the last op, outermost first."""
        return self._stack

    def note(self, op: object, stack: list[_Call]) -> Loop | None:
        """Note an op, none of a backward. Return the loop that has begun another pass with it.

        Args:
            op: the op.
            stack: the calls around it, outermost first.
        """
        before, self._stack = self._stack, stack
        op_before, self._op = self._op, op
        same = 0  # calls that are still running
        for old, new in zip(before, stack, strict=False):
            if old.mark is not new.mark:
                break
            same += 1
        self._end(same)
        if not same:
            return None
        at, offset_before = same - 1, before[same - 1].offset
        if stack[at].offset > offset_before:
            self._end_left(at, stack[at].offset)
            return None
        if stack[at].offset == offset_before:
            # One instruction may run several ops in C++, but hardly the same op twice in a row. If both stacks go on
            # with a call from here, the instruction has called a function again.
            called_torch = len(before) == len(stack) == same and op is op_before
            called_function = len(before) > same and len(stack) > same
            if not (called_torch or called_function):
                return None
        return self._passed(at, offset_before)

    def _passed(self, depth: int, offset_before: int) -> Loop | None:
        """Count a pass of the innermost loop around both instructions of a call.

        Return the loop if it is the program's.
        """
        call = self._stack[depth]
        found = self._range_of(call.code, call.offset, offset_before)
        task = self._task(depth)
        if found is None or not (task or self._is_of_program(depth)):
            return None
        self._end_left(depth, call.offset)
        loop = self._running.get((depth, found.start))
        if loop is None:
            loop = self._running[depth, found.start] = Loop(call.code, found, depth, task)
        loop.passes += 1
        return loop

    def _end(self, depth: int) -> None:
        """End the loops of the calls from a depth on: those calls have returned."""
        for key in [key for key in self._running if key[0] >= depth]:
            self._running.pop(key).is_over = True

    def _end_left(self, depth: int, offset: int) -> None:
        """End the loops of a call that it has left by moving on."""
        for key, loop in list(self._running.items()):
            if key[0] == depth and offset > loop.range.end:
                self._running.pop(key).is_over = True

    def _range_of(self, code: CodeType, first: int, last: int) -> _Range | None:
        """Return the innermost loop that contains the instructions at two offsets."""
        known = self._ranges.get(id(code))
        if known is None:
            known = self._ranges[id(code)] = code, _loops_of(code)
        around = (each for each in known[1] if each.start <= first and last <= each.end)
        return min(around, key=lambda each: each.end - each.start, default=None)

    def _is_of_program(self, depth: int) -> bool:
        """Return True for a call of the program's own code outside a module's forward.

        A forward that goes through its layers is one round of work. It keeps memory of each layer for the backward.
        """
        is_own = self._owner_at(depth) is CodeOwner.PROGRAM
        return is_own and not any(each.code is MODULE_CALL_CODE for each in self._stack[:depth])

    def _task(self, depth: int) -> CodeType | None:
        """Return the function that a loop of a thread pool runs, or None for another loop.

        All calls of such a thread down to the loop are Python's own. The first call of other code is the task, or the
        wrapper of a decorator of torch around it. An event loop runs coroutines, and each of them has rounds of its
        own.
        """
        if self._stack[0].code is not _THREAD_CODE:
            return None
        wrapper = None
        for at, call in enumerate(self._stack):
            owner = self._owner_at(at)
            if call.code.co_flags & CO_COROUTINE or (owner is not CodeOwner.PYTHON and at <= depth):
                return None
            if owner.calls_torch:
                return call.code
            if owner is not CodeOwner.PYTHON:
                wrapper = wrapper or call.code
        return wrapper

    def _owner_at(self, depth: int) -> CodeOwner:
        code = self._stack[depth].code
        if id(code) not in self._owners:
            self._owners[id(code)] = code, code_owner(code.co_filename)
        return self._owners[id(code)][1]


def _running_calls() -> list[_Call]:
    """Return the running calls of this thread, outermost first, without those of memwatch and its caller.

    The list is empty while a debugger or a coverage tool is active.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_memwatch_code(frame.f_code.co_filename):
        frame = frame.f_back
    calls: list[_Call] = []
    if sys.gettrace() is not None:
        return calls
    while frame is not None and not is_memwatch_code(frame.f_code.co_filename):
        mark = frame.f_trace
        if mark is None:
            mark = frame.f_trace = FrameMark()
        elif type(mark) is not FrameMark:
            return []
        calls.append(_Call(mark, frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return calls[::-1]


def _loops_of(code: CodeType) -> list[_Range]:
    """Return the loops of a function: each jump back ends one."""
    ends: dict[int, int] = {}
    for each in dis.get_instructions(code):
        is_jump = each.opcode in dis.hasjrel or each.opcode in dis.hasjabs
        if is_jump and each.argval <= each.offset and each.opname != _WAITS:
            ends[each.argval] = max(ends.get(each.argval, 0), each.offset)
    return [_Range(start, end) for start, end in ends.items()]


FEWEST_STEPS: Final = 4
"""Steps after which the heap is searched first, and again each time their number has doubled. The first step makes lazy
state, and variables still hold the tensors of the last one. Two are left, as few as can show growth."""
FEWEST_PASSES: Final = 6
"""Likewise for a loop, whose passes are less certain to be rounds: three passes are left. Guess."""
_MOST_S: Final = 30.0
"""No more searches once they took longer: the last one of each loop decides. This is processor time of their thread, so
that a busy machine finds the same leaks. A guess."""
_LONG_S: Final = 1.0
"""The switch interval of Python during a search. Most searches take less time, so that no other thread runs within
them. A guess."""
_MOST_COUNTING_S: Final = 5.0
"""Likewise for counts of autograd nodes. A guess."""
_THREAD_CODE: Final = getattr(getattr(threading.Thread, RUNS_A_THREAD, None), "__code__", None)
_MOST_RUNS: Final = 2
"""Runs of one loop that are followed, a guess. A function that is called again and again is part of a larger round."""


_FEWEST_SIZES: Final = 3
"""Sizes of a tensor, at the ends of as many rounds, that show how it grows. A guess: two always lie on one line."""
_FEWEST_NOTED: Final = 256
"""Rounds whose strands are noted before memwatch forgets those with no storage left. Guess."""


@dataclass(eq=False)
class _Strand:
    """A thread of the program, or a coroutine that an event loop of the thread runs.

    The calls of a coroutine go on after others have run. So its loops are counted from its own ops alone.

    Attributes:
        mode: sees the ops of the thread.
        run: the clock at which the last round began; None for a coroutine before its first round.
        passes: counts the passes of its loops.
    """

    mode: NewStorageMode
    run: int | None
    passes: LoopPasses = field(default_factory=LoopPasses)

    def leave(self) -> None:
        """End with the thread, which calls this last."""
        self.mode.stop()
        self.run = None


class _Larger(NamedTuple):
    """The storages that one line made in a round from smaller ones.

    Attributes:
        nbytes: the bytes of the storages together.
        storages: the storages.
        sources: the smaller storages that are gone.
    """

    nbytes: int
    storages: list[weakref.ref[torch.UntypedStorage]]
    sources: list[weakref.ref[torch.UntypedStorage]]

    def is_from(self, before: _Larger) -> bool:
        """Return True if the line made a storage from its storage of the round before."""
        return any(source is storage for source in self.sources for storage in before.storages)


@dataclass(eq=False)
class Rounds:
    """The steps of the optimizer, or the passes of one run of a loop.

    Attributes:
        loop: the loop; None for steps.
        leaks: memory of each round that no backward needs, per round, from the last search.
        kept: holders that got a tensor without a graph in each round. Also lists and arrays with empty places, if each
            round put a graph into another place: they may be windows that are not full yet.
        freed: such leaks of an earlier search whose memory is gone.
        was_searched: True once the heap was searched for memory of the rounds.
        kept_a_while: True once the rounds left memory that a later backward needed, or that is gone.
        hook_numbers: the number of the next hook, at the end of each round.
        nodes: the number of autograd nodes at the end of each counted round.
        next_nrs: the number of the next autograd node then.
        larger_by_line: likewise, the number of each round and what its lines made from smaller storages that are gone.
        old: identities of the objects from before the second round.
        threads: the threads from before the second round.
        marker: what separates those objects from later ones, which may have the addresses of dead ones.
        backwards: number of rounds after the first with a backward.
        in_backward: True if this round had a backward.
        found: storages of the last search. If they have all died, memwatch excuses the leaks.
        larger_at: lines that made the tensors which became larger, with the bytes of the smallest in the last search.
        storages: the same by the cause of each leak.
        is_judged: True if no further search is needed.
        has_one_step: True if each pass after the first had one optimizer step, so that the searches of steps see the
            same.
        steps: the number of steps at the end of the last pass.
        strand: the thread or coroutine with the rounds; None before the first step.
        calls: the calls that have been running since the end of the first round, outermost first.
        has_unseen: True if the rounds left something whose holder gc does not show, so they may leak.
        unseen_nodes: the autograd nodes that each round added and that no found reference keeps; once the program has
            ended, 0 if they are gone.
        seldom: holders that keep graphs of early and late rounds, of too few to show growth, with their number.
        keeping_nodes: the causes of the leaks of containers that keep autograd nodes themselves.
    """

    loop: Loop | None
    strand: _Strand | None = None
    leaks: list[Leak] = field(default_factory=list)
    kept: list[Leak] = field(default_factory=list)
    freed: list[Leak] = field(default_factory=list)
    was_searched: bool = False
    kept_a_while: bool = False
    hook_numbers: array[int] = field(default_factory=lambda: array("q"))
    nodes: list[int] = field(default_factory=list)
    next_nrs: list[int] = field(default_factory=list)
    larger_by_line: list[tuple[int, dict[Site, _Larger]]] = field(default_factory=list)
    old: NDArray[np.int64] | None = None
    threads: Threads = field(default_factory=Threads)
    marker: list[object] = field(default_factory=list)
    backwards: int = 0
    in_backward: bool = False
    found: list[weakref.ref[torch.UntypedStorage]] = field(default_factory=list)
    larger_at: dict[Site | None, int] = field(default_factory=dict)
    storages: dict[str, list[weakref.ref[torch.UntypedStorage]]] = field(default_factory=dict)
    is_judged: bool = False
    has_one_step: bool = True
    steps: int = 0
    calls: list[_Call] | None = None
    has_unseen: bool = False
    unseen_nodes: int = 0
    keeping_nodes: set[str] = field(default_factory=set)
    seldom: list[tuple[Leak, int]] = field(default_factory=list)
    # the clock at the start of each round after the first; an array, as there may be millions of rounds
    _starts: array[int] = field(default_factory=lambda: array("q"))

    @property
    def number(self) -> int:
        """How many rounds have ended."""
        return len(self._starts)

    @property
    def place(self) -> RoundPlace | None:
        """Where the loop begins; None for steps."""
        return None if self.loop is None else self.loop.place

    @property
    def have_backward(self) -> bool:
        """Whether each round after the first had a backward, or an optimizer's step."""
        return self.loop is None or self.backwards >= self.number - 1

    def begin_next(self, clock: int) -> None:
        """End a round."""
        self.kept = [leak for leak in self.kept if not self._has_moved(leak)]
        self.backwards += self.in_backward and self.number > 0
        self.in_backward = False
        self._starts.append(clock)
        if self.strand is not None:
            self._note_calls(self.strand.passes.stack)
        self.hook_numbers.append(next_hook_number())

    def _note_calls(self, stack: list[_Call]) -> None:
        """Keep the calls that are still running, with the instructions that they have reached."""
        if self.calls is None:
            self.calls = stack
        before = [each.mark for each in self.calls]
        same = itertools.takewhile(lambda pair: pair[0] is pair[1].mark, zip(before, stack, strict=False))
        self.calls = [call for _, call in same]

    def running_call(self) -> Edge:
        """Return the reference from the innermost call that has made all these rounds, by no variable."""
        if not self.calls:
            return Edge(EdgeKind.EVALUATION_STACK)
        code, offset = self.calls[-1].code, self.calls[-1].offset
        owner = Vertex(VertexKind.FRAME, code.co_name, code.co_filename, line_at(code, offset))
        return Edge(EdgeKind.EVALUATION_STACK, owner=owner)

    def round_of(self, made: NewStorage) -> int:
        """Return the number of the round that made a storage."""
        return bisect_right(self._starts, made.run)

    def growth_by_line(self) -> dict[Site, int]:
        """Return the bytes that each round added to the tensors of a line, for lines that go on in the same way.

        The sizes of a program's batches vary too. So three conditions hold: the line makes as many tensors in each
        round, it makes them from its tensors of the round before, and each round adds the same number of bytes.
        """
        if len(self.larger_by_line) < _FEWEST_SIZES:
            return {}
        found = {}
        for site in self.larger_by_line[-1][1]:
            sizes = [(number, made[site]) for number, made in self.larger_by_line if site in made]
            if len(sizes) < len(self.larger_by_line) or len({len(each.storages) for _, each in sizes}) > 1:
                continue
            pairs = list(pairwise(sizes))
            rates = {
                (after.nbytes - before.nbytes) / (second - first)
                for (first, before), (second, after) in pairs
            }
            is_from_itself = all(
                after.is_from(before) for (first, before), (second, after) in pairs if second == first + 1
            )
            if len(rates) == 1 and min(rates) > 0 and is_from_itself:
                found[site] = int(min(rates))
        return found

    def is_alive(self) -> bool:
        """Return True if a storage of the last search is alive."""
        return any(ref() is not None for ref in self.found)

    def leaks_within(
        self, survivors: Sequence[Survivor], measured: range, *, with_graph: bool = False
    ) -> list[Leak]:
        """Return the leaks to which each period of some rounds added, and note their storages."""
        by_cause: dict[tuple[str, str], list[Survivor]] = {}

        def note(leak: Leak, group: list[Survivor]) -> None:
            in_order = sorted(group, key=lambda each: each.storage.run)
            self.storages.setdefault(leak.cause, []).extend(each.storage.ref for each in in_order)
            by_cause.setdefault((leak.cause, leak.device), []).extend(group)

        leaks = leaks_of(
            survivors,
            measured,
            per_call=True,
            periods=periods_of(measured),
            on_leak=note,
            with_graph=with_graph,
            seldom=True,
        )
        causes = Counter((leak.cause, leak.device) for leak in leaks)
        return [
            _of_usual_round(leak, by_cause[leak.cause, leak.device])
            if causes[leak.cause, leak.device] == 1
            else leak
            for leak in leaks
        ]

    def forget_drained(self) -> None:
        """Forget the holders that got a tensor in each round and have dropped it since.

        Call this at the end of the program. A producer may only have run ahead of its consumer, and a window may be
        full by now. The variables of a function may have ended with it, and say nothing.
        """
        self.kept = [leak for leak in self.kept if not self._is_drained(leak)]

    def forget_nodes(self) -> None:
        """Forget the containers of autograd nodes, as the nodes are gone, but for those of variables of functions."""
        self.leaks = [
            leak for leak in self.leaks if leak.cause not in self.keeping_nodes or _is_of_call(leak)
        ]

    def _is_drained(self, leak: Leak) -> bool:
        alive = [ref() is not None for ref in self.storages.get(leak.cause, [])]
        return self._has_moved(leak) or not (_is_of_call(leak) or any(alive) or not alive)

    def _has_moved(self, leak: Leak) -> bool:
        """Return True for a window that was filling and has dropped its oldest tensor since."""
        refs = self.storages.get(leak.cause, [])
        return leak.keeps_graph and bool(refs) and refs[0]() is None and refs[-1]() is not None

    def new_leaks(self, told: set[str], seen: list[weakref.ref[torch.UntypedStorage]]) -> list[Leak]:
        """Return the leaks whose cause or memory no other round has told of, and note both.

        A step of the optimizer may be a pass of a loop too, and the two searches may enter one holder at different
        references.
        """
        known = set(map(id, seen))
        fresh = []
        for leak in self.leaks:
            refs = self.storages.get(leak.cause, [])
            again = sum(id(ref) in known for ref in refs)
            if leak.cause not in told and 2 * again < max(1, len(refs)):
                fresh.append(leak)
            seen += refs
        told |= {leak.cause for leak in self.leaks}
        return fresh

    def acquit(self) -> None:
        """Drop the leaks of memory, and search no more. Hooks that are still registered stay a leak."""
        self.kept_a_while |= bool(self.leaks)
        hooks = [leak for leak in self.leaks if leak.kind is LeakKind.HOOKS]
        is_left = bool(hooks) and are_registered(range(self.hook_numbers[0], self.hook_numbers[-1]))
        self.leaks = hooks if is_left else []
        self.found, self.is_judged = [], True


def _is_of_call(leak: Leak) -> bool:
    """Return True if the path to a leak begins at a variable of a function."""
    owner = leak.edges[0].owner if leak.edges else None
    return owner is not None and owner.kind is VertexKind.FRAME


def periods_of(measured: range) -> list[range]:
    """Return periods of up to `PERIOD` rounds. A leak has something of each period, unless it adds more seldom.

    A program may keep something in every second step. Three periods show that it goes on; where there are too few
    rounds for them, each round is a period.
    """
    length = max(1, min(PERIOD, len(measured) // 3))
    whole = len(measured) // length * length
    return [measured[first : first + length] for first in range(len(measured) - whole, len(measured), length)]


class ProgramGrowth:
    """Follows the rounds of a program, and searches for memory that each round left.

    Args:
        book: the storages that the program made.
        mode: sees each op of the program.
        young: returns the tensors and nodes that the program made.
    """

    def __init__(self, book: NewStorages, mode: NewStorageMode, young: Callable[[], list[object]]) -> None:
        self.steps = Rounds(None)
        self.loops: list[Rounds] = []
        self._book = book
        self._young = young
        self._main = _Strand(mode, 0)
        self._threads = {threading.get_ident(): self._main}  # by their identifiers
        self._clock = itertools.count(1)
        self._strand_at: dict[int, _Strand] = {0: self._main}  # by the clock at which they began a round
        self._most_noted = _FEWEST_NOTED
        self._lock = threading.RLock()
        self._patches = Patches()
        self._runs: dict[object, list[Rounds]] = {}  # of each loop, by its code and range
        self._handle: Any = None
        # the optimizer whose steps are the rounds, and how many optimizers made a step
        self._optimizer: weakref.ref[Any] | None = None
        self.optimizers = self.all_steps = 0
        self.later_optimizers = 0  # that made their first step after the last step of the first one
        self._known_optimizers: dict[int, weakref.ref[Any]] = {}  # by id, which a later one may have again
        self._updates = Updates()
        self._search_s = self._counting_s = 0.0
        self.skipped_places: dict[RoundPlace | None, None] = {}  # where a search was due after too much time
        # by the cause of what is held at the end, the number of rounds of which it has a tensor with a graph
        self.graphs_at_end: dict[str, int] = {}

    def start(self) -> None:
        """Have torch call after each optimizer step, and a mode of each thread at each op."""
        self._handle = register_optimizer_step_post_hook(self._after_step)
        self._main.mode.on_op = self._at_op
        if hasattr(threading.Thread, RUNS_A_THREAD):
            self._patches.put_around(threading.Thread, RUNS_A_THREAD, self._enter_thread)

    def _enter_thread(self, thread: threading.Thread) -> Callable[[], object] | None:
        # an error must not stop the thread, because whoever started it waits until it runs
        with suppress(Exception):
            if not is_a(thread, OwnThread):
                return self._new_thread().leave
        return None

    def _new_thread(self) -> _Strand:
        """Follow the thread that starts to run."""
        mode = NewStorageMode(self._book, next(self._clock))
        mode.on_op = self._at_op
        thread = self._threads[threading.get_ident()] = self._strand_at[mode.run] = _Strand(mode, mode.run)
        self._forget_rounds()
        mode.start()
        return thread

    def stop(self) -> None:
        """End the calls."""
        for thread in list(self._threads.values()):
            thread.mode.on_op = None
        self._patches.take_off()
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    @property
    def rounds(self) -> list[Rounds]:
        """The steps and loops that were searched, the steps first."""
        return [each for each in [self.steps, *self.loops] if each.was_searched]

    def judged_amid(self) -> list[Rounds]:
        """Return the searched rounds whose leaks are leaks although the program failed.

        A backward that the program did not reach may need the graphs of a loop without backwards.
        """
        return [each for each in self.rounds if each.have_backward]

    def forget_drained(self) -> None:
        """Forget the holders that have dropped what rounds added to them; call it before the block ends."""
        nodes = behind(self._young())[1]
        for rounds in self.rounds:
            rounds.forget_drained()
            if rounds.kept or rounds.kept_a_while or not rounds.nodes or nodes < rounds.nodes[-1]:
                rounds.unseen_nodes = 0
            if rounds.nodes and nodes < rounds.nodes[-1]:
                rounds.forget_nodes()

    def has_leak_of(self, leak: Leak, refs: Sequence[weakref.ref[torch.UntypedStorage]]) -> bool:
        """Return True if a search of rounds found a leak of the end, with the same cause or most of its storages.

        A cycle at the end has the cause of a holder if it goes through the reference to cut of the holder.

        Args:
            leak: a leak of the end.
            refs: its storages.
        """
        ids = set(map(id, refs))
        cycle = set(map(series_of, leak.edges[: leak.cycle_length]))
        for rounds in self.rounds:
            for each in rounds.leaks:
                is_in_cycle = each.kind.is_reached and each.cut is not None and series_of(each.cut) in cycle
                if each.kind is not leak.kind and not is_in_cycle:
                    continue
                known = set(map(id, rounds.storages.get(each.cause, [])))
                # rounds after the last search have up to as many again
                has_most = bool(known) and known <= ids and _MOST_OF_ALL * len(known) >= len(ids)
                if each.cause == leak.cause or has_most:
                    return True
        return False

    def kept_by(self, leak: Leak, refs: Sequence[weakref.ref[torch.UntypedStorage]]) -> set[str]:
        """Return the causes of the holders to which rounds added, and which a leak of the end names too.

        Args:
            leak: a leak of the end.
            refs: its storages.
        """
        ids = set(map(id, refs))
        causes = set()
        for rounds in self.rounds:
            for each in rounds.kept:
                alive = {id(ref) for ref in rounds.storages.get(each.cause, []) if ref() is not None}
                if each.cause == leak.cause or (alive and alive <= ids):
                    causes.add(each.cause)
        return causes

    def held_at_end(self) -> list[Leak]:
        """Return who holds what the program made, its top-level names included; call it before the block ends."""
        for storage in behind(self._young())[0]:
            self._book.add(storage, self._main.mode.run)  # threads from before have no mode
        made = [each for each in self._book.alive() if self._book.is_program_imported or not each.is_constant]
        found = diagnose(made, Exemptions(shared_state=True), per_call=False)
        with_graph = _storages_with_graph()

        def note_graphs(leak: Leak, survivors: Sequence[Survivor]) -> None:
            kept = [each for each in survivors if not each.through_graph]
            rounds = {each.storage.run for each in kept if id(each.storage.ref()) in with_graph}
            self.graphs_at_end[leak.cause] = max(len(rounds), self.graphs_at_end.get(leak.cause, 0))

        return leaks_of(found.retained, [0], per_call=False, on_leak=note_graphs)

    def storages_in_use(self) -> list[torch.UntypedStorage]:
        """Return the storages that the program used until it ended; drop the list soon.

        Where steps were too few for a search, only this end shows growth, so what hangs on the models still counts.
        """
        state = self._updates.state()
        if not state or not self.steps.was_searched:
            return storages_behind(state)
        assert self.steps.old is not None
        old = without_identities(self.steps.old, objects_since(self.steps.marker))
        return [*storages_behind(state), *storages_beside(state, old, self._book.alive())]

    def _after_step(self, optimizer: object, _args: Any, _kwargs: Any) -> None:
        self._updates.note(optimizer)
        self.all_steps += 1
        self._book.is_program_imported = self._book.is_program_imported or runs_in_import()
        known = self._known_optimizers.get(id(optimizer))
        if known is None or known() is not optimizer:
            self.optimizers += 1
            self.later_optimizers += 1
            self._known_optimizers[id(optimizer)] = weakref.ref(optimizer)
        if self._optimizer is None:  # one optimizer marks the steps; others, as of a GAN, step within them
            self._optimizer = weakref.ref(optimizer)
        thread = self._threads.get(threading.get_ident())
        if self._optimizer() is optimizer:
            self.later_optimizers = 0
        if self._optimizer() is optimizer and thread is not None:
            self.steps.strand = self.steps.strand or thread
            self._begin_next(self.steps)

    def _at_op(self, op: object) -> None:
        """Note an op that makes storages."""
        if current_graph_task_id() != NO_TASK:
            self._note_backward()
            return
        # torch hands the modes of a thread on to threads of its own, such as those of `torch.jit.fork`
        thread = self._threads.get(threading.get_ident())
        if thread is None:
            return
        stack = _running_calls()
        strand, loop = thread, thread.passes.note(op, stack)
        start = next((at for at, call in enumerate(stack) if call.code.co_flags & CO_COROUTINE), None)
        if start is not None:
            mark = stack[start].mark
            strand = mark.note = mark.note or _Strand(thread.mode, None)
            inner = strand.passes.note(op, stack[start:])
            if loop is None or loop.depth >= start:
                loop = inner
            else:
                strand = thread
        run = thread.run if strand.run is None else strand.run
        thread.mode.run = thread.mode.run if run is None else run
        if loop is None:
            return
        rounds = next((each for each in reversed(self.loops) if each.loop is loop), None)
        if rounds is None and loop.passes == 1:
            rounds = self._follow(loop, strand)
        if rounds is not None:
            self._begin_next(rounds)

    def _follow(self, loop: Loop, strand: _Strand) -> Rounds | None:
        """Follow a run of a loop, unless runs before it have shown what there is to see."""
        runs = self._runs.setdefault((id(loop.code), loop.range), [])
        if runs and (runs[-1].leaks or runs[-1].kept) and not self._is_left(runs[-1]):
            # the memory that a call of the function collects is gone before the next call
            runs[-1].freed = [leak for leak in runs[-1].leaks if leak.kind is not LeakKind.HOOKS]
            runs[-1].acquit()
            runs[-1].kept = []
        if len(runs) == _MOST_RUNS or any(each.is_judged for each in runs):
            return None
        rounds = Rounds(loop, strand)
        runs.append(rounds)
        self.loops.append(rounds)
        return rounds

    def _is_left(self, rounds: Rounds) -> bool:
        """Return True if something that the last search of a run of a loop found is alive, or has become larger since.

        A tensor that another call of the function has begun again is smaller.
        """
        larger_at = rounds.larger_at
        return rounds.is_alive() or any(
            each.nbytes >= larger_at[each.site] for each in self._book.alive() if each.site in larger_at
        )

    def _note_backward(self) -> None:
        """Acquit the loops whose graphs a backward may need."""
        for each in self.loops:
            is_running = each.loop is not None and not each.loop.is_over
            each.in_backward |= is_running
            is_own = is_running and each.have_backward
            if each.leaks and not is_own and each.is_alive():
                each.acquit()

    def _begin_next(self, rounds: Rounds) -> None:
        with self._lock, _undisturbed():
            self._end_round(rounds)

    def _end_round(self, rounds: Rounds) -> None:
        strand = rounds.strand
        assert strand is not None
        now = next(self._clock)
        strand.run = strand.mode.run = now
        self._strand_at[now] = strand
        self._forget_rounds()
        rounds.begin_next(now)
        if rounds.loop is not None:
            rounds.has_one_step &= rounds.number == 1 or self.steps.number == rounds.steps + 1
            rounds.steps = self.steps.number
        fewest = FEWEST_STEPS if rounds.loop is None else FEWEST_PASSES - 1
        if rounds.old is None:
            rounds.old, rounds.marker = identities(gc.get_objects()), []
            rounds.threads = Threads()
        doublings, rest = divmod(rounds.number, fewest)
        is_due = rest == 0 and doublings & (doublings - 1) == 0 and not rounds.is_judged
        if rounds.loop is not None and rounds.has_one_step and self.steps.was_searched:
            is_due = is_due and self.steps.strand is not strand
        if rounds.number <= fewest or is_due:
            self._count_nodes(rounds)
            self._note_sizes(rounds)
        if is_due and self._search_s < _MOST_S:
            start_s = time.thread_time()
            self._search(rounds)
            self._search_s += time.thread_time() - start_s
        elif is_due:
            self.skipped_places[rounds.place] = None

    def _forget_rounds(self) -> None:
        """Forget the strands of rounds of which no storage is alive, each time their number has doubled."""
        if len(self._strand_at) <= self._most_noted:
            return
        with self._lock:
            runs = {each.run for each in self._book.alive()}
            for run, strand in list(self._strand_at.items()):
                if run not in runs and strand.run != run:
                    self._strand_at.pop(run, None)
            self._most_noted = max(_FEWEST_NOTED, 2 * len(self._strand_at))

    def _count_nodes(self, rounds: Rounds) -> None:
        if self._counting_s < _MOST_COUNTING_S:
            start_s = time.thread_time()
            rounds.nodes.append(behind(self._young())[1])
            rounds.next_nrs.append(next_sequence_nr())
            self._counting_s += time.thread_time() - start_s

    def _note_sizes(self, rounds: Rounds) -> None:
        """Note, for the round that has ended, the storages that each line made from smaller ones that are gone."""
        if rounds.number <= 1:
            return  # the first round may set something up
        found: dict[Site, _Larger] = {}
        for each in self._of_last_round(rounds):
            gone = [source for source in each.sources if source() is None]
            if each.site is not None and gone:
                known = found.get(each.site, _Larger(0, [], []))
                found[each.site] = _Larger(
                    known.nbytes + each.nbytes, [*known.storages, each.ref], [*known.sources, *gone]
                )
        rounds.larger_by_line.append((rounds.number, found))

    def _of_last_round(self, rounds: Rounds) -> list[NewStorage]:
        return [
            each
            for each in self._book.alive()
            if self._strand_at.get(each.run) is rounds.strand and rounds.round_of(each) == rounds.number - 1
        ]

    def _larger_tensors(self, rounds: Rounds) -> list[Leak]:
        """Return the holders of tensors that became larger with each round, with the bytes that a round adds."""
        growth = rounds.growth_by_line()
        made = [each for each in self._of_last_round(rounds) if each.site in growth]
        rounds.larger_at = {each.site: each.nbytes for each in sorted(made, key=lambda each: -each.nbytes)}
        if not made:
            return []
        counts = Counter(each.site for each in made)
        grown = [
            replace(each, grew=True, replaced_bytes=each.nbytes - growth[each.site] // counts[each.site])
            for each in made
            if each.site is not None
        ]
        threads = rounds.threads.started()
        look = diagnose(grown, Exemptions(state=False), per_call=True, old=rounds.old, threads=threads)
        return leaks_of(look.retained, [rounds.number - 1], per_call=False)

    def _search(self, rounds: Rounds) -> None:
        """Find the holders to which each period of rounds added, graphs that grow, and hooks.

        The first round and the last do not count: the first may set something up, and the last may still be needed.
        """
        assert rounds.old is not None
        rounds.old = without_identities(rounds.old, objects_since(rounds.marker))
        measured = range(1, rounds.number - 1)
        made = [
            replace(each, run=number)
            for each in self._book.alive()
            if self._strand_at.get(each.run) is rounds.strand
            and (number := rounds.round_of(each)) in measured
        ]
        leaks: list[Leak] = []
        was_alive = rounds.is_alive()
        rounds.was_searched, rounds.kept, rounds.found, rounds.storages = True, [], [], {}
        rounds.has_unseen, rounds.seldom = False, []
        rounds_with_memory = {each.run for each in made}
        is_often = not any(rounds_with_memory.isdisjoint(period) for period in periods_of(measured))
        if is_often or goes_on(rounds_with_memory, measured) or _are_spread(rounds_with_memory, measured):
            threads = rounds.threads.started()
            exempt = Exemptions(state=False, places=False)
            look = diagnose(made, exempt, per_call=True, old=rounds.old, threads=threads)
            placed = [each for each in look.retained if each.in_place]
            look.retained = [each for each in look.retained if not each.in_place]
            look.retained = _with_cuts_of_later(look.retained)
            look.retained = _without_samples(look.retained, made)
            with_graph = _storages_with_graph()
            keeping = [each for each in look.retained if _keeps_graph(each, with_graph)]
            if rounds.have_backward:  # a comprehension without a backward may build the layers of a model
                first = rounds.running_call()
                collected = [_in_call(each, first) for each in look.unreachable if _is_collected(each)]
                keeping += [each for each in collected if _keeps_graph(each, with_graph)]
            # a loop without a backward may build one model, and does not run each part in the pass that makes it
            others = [
                each
                for each in look.retained
                if not _keeps_graph(each, with_graph)
                and (
                    rounds.have_backward
                    or each.storage.is_used
                    or _is_in_cache(each)
                    or not _is_of_module(each)
                )
            ]
            leaks = rounds.leaks_within(keeping, measured, with_graph=True)
            if leaks and leaks[0].every == 1:
                nodes = _nodes_of_each(rounds)
                leaks[0] = replace(leaks[0], graph_nodes=nodes, shares_nodes=len(leaks) > 1)
            leaks, rounds.kept = _joined(leaks, rounds.leaks_within(others, measured))
            rounds.found = [each.storage.ref for each in (keeping if leaks else others)]
            unseen = {each.storage.run for each in look.unreachable if not each.looped}
            rounds.has_unseen = not any(unseen.isdisjoint(period) for period in periods_of(measured))
            placed = [each for each in placed if _keeps_graph(each, with_graph)]
            filling = rounds.leaks_within(placed, measured, with_graph=True)
            if filling and filling[0].every == 1:  # the graphs take most of the memory
                nbytes = filling[0].nbytes + NODE_BYTES * _nodes_of_each(rounds)
                filling[0] = replace(filling[0], nbytes=nbytes)
            rounds.seldom = [] if leaks else _seldom(keeping, measured, is_beside_named=bool(filling))
            rounds.kept += filling
        rounds.kept += self._larger_tensors(rounds)
        leaks = self._with_kept_nodes(rounds, self._with_growing_graphs(rounds, leaks))
        rounds.unseen_nodes = 0 if leaks else _nodes_of_each(rounds)
        rounds.has_unseen = not leaks and (rounds.unseen_nodes > 0 or rounds.has_unseen)
        hooks = leaks_of_hooks(rounds.hook_numbers, (), leaks, period=_period_of_hooks(rounds.hook_numbers))
        rounds.kept = [leak for leak in rounds.kept if not _is_kept_by(hooks, leak)]
        leaks += self._with_their_tensors(rounds, hooks)
        if rounds.leaks and not leaks:
            rounds.kept_a_while = True
            if not was_alive:
                rounds.freed = rounds.leaks
        rounds.leaks = [replace(leak, repeat=repeat_name(rounds.place)) for leak in leaks]

    def _with_their_tensors(self, rounds: Rounds, hooks: list[Leak]) -> list[Leak]:
        """Return leaks of hooks with the bytes that the hooks of a round keep.

        Each round may run all hooks, and each of them may replace its tensor. Then all tensors are of the last round.
        So tensors of all rounds count, by the hook that keeps them.
        """
        if not hooks:
            return hooks
        made = [each for each in self._book.alive() if self._strand_at.get(each.run) is rounds.strand]
        threads = rounds.threads.started()
        look = diagnose(made, Exemptions(state=False), per_call=True, old=rounds.old, threads=threads)
        return [_with_tensors(leak, look.retained) for leak in hooks]

    def _with_growing_graphs(self, rounds: Rounds, leaks: list[Leak]) -> list[Leak]:
        """Add the values to whose graphs rounds add, though backward has freed their tensors.

        Counts of nodes that grow are not enough: sequences that are sorted by length have a longer graph each time,
        and each graph replaces the one before. So a graph must have nodes of all rounds.
        """
        nodes = _nodes_of_each(rounds)
        if not nodes:
            return leaks
        alive, in_place = self._book.alive(), self._book.in_place
        # another coroutine may run one pass with each pass of this loop, so the counts of nodes are not enough
        others = {
            id(each.ref())
            for each in alive
            if self._strand_at.get(each.run, rounds.strand) is not rounds.strand
        }
        with quiet():
            ends: list[Any] = [obj for obj in self._young() if is_tensor(obj)]
            ends = [
                tensor
                for tensor in ends
                if not autograd_state(tensor).is_leaf and id(storage_of(tensor)) not in others
            ]
        found = holders_of_growing_graphs(ends, alive, rounds.next_nrs, in_place=in_place, old=rounds.old)
        told = {series_of(leak.cut) for leak in leaks if leak.cut is not None}
        found = [each for each in found if each[0].cut is None or series_of(each[0].cut.edge) not in told]
        if not found:
            return leaks
        refs = [survivor.storage.ref for survivor, _ in found]
        rounds.found = [*rounds.found, *refs] if leaks else refs
        if len(found) == 1 and not leaks:
            return [leak_of_graph(found[0][0], nodes)]
        graphs = [leak_of_graph(survivor, max(1, own // (rounds.number - 1))) for survivor, own in found]
        if leaks and leaks[0].graph_nodes:  # all nodes were counted as this leak's
            own_nodes = leaks[0].graph_nodes - sum(leak.graph_nodes for leak in graphs)
            leaks[0] = replace(leaks[0], graph_nodes=max(0, own_nodes))
        return merge_and_sort([*leaks, *graphs])

    def _with_kept_nodes(self, rounds: Rounds, leaks: list[Leak]) -> list[Leak]:
        """Add the holders that keep autograd nodes of all rounds themselves, as a list of `ctx` objects does."""
        rounds.keeping_nodes = set()
        if not _nodes_of_each(rounds):
            return leaks
        with quiet():
            nodes: list[Any] = [obj for obj in self._young() if is_node(obj)]
        causes = {leak.cause for leak in leaks}
        found = [
            leak_of_kept_nodes(survivor, max(1, nodes_of_all // (rounds.number - 1)))
            for survivor, nodes_of_all in holders_of_kept_nodes(nodes, rounds.next_nrs, old=rounds.old)
        ]
        found = [leak for leak in found if leak.cause not in causes]
        rounds.keeping_nodes = {leak.cause for leak in found}
        return merge_and_sort([*leaks, *found]) if found else leaks


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Have Python switch to other threads more seldom.

    A search lists all objects. Among them may be the tuple that another thread is making, as in `tuple(iterator)`, and
    Python raises a SystemError in that thread if the tuple has a second reference when it is made larger.
    """
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(max(interval_s, _LONG_S))
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)


def _nodes_of_each(rounds: Rounds) -> int:
    """Return how many autograd nodes each round added, 0 if some counts did not grow."""
    counts = rounds.nodes
    if len(counts) < FEWEST_STEPS or any(before >= after for before, after in pairwise(counts)):
        return 0
    return (counts[-1] - counts[0]) // (rounds.number - 1)


_FEWEST_OF_FEW: Final = 3
"""Rounds of which a holder has graphs, so that it may keep those of all that are alike. Guess."""


def _are_spread(rounds: Collection[int], measured: range) -> bool:
    """Return True if a few rounds have about equal distances, from the first measured round to the last.

    A window of the last few has no early ones.
    """
    if len(rounds) < _FEWEST_OF_FEW:
        return False
    ordered = sorted(rounds)
    distance = max(after - before for before, after in pairwise(ordered))
    return ordered[0] - measured[0] <= distance and measured[-1] - ordered[-1] <= distance


def _seldom(
    survivors: Sequence[Survivor], measured: range, *, is_beside_named: bool
) -> list[tuple[Leak, int]]:
    """Return the holders that keep graphs of a few rounds, early ones included, each with their number.

    Args:
        survivors: the survivors with a graph.
        measured: the measured rounds.
        is_beside_named: True if another holder, which is named, got a graph in each round. Then graphs that other
            tensors keep too do not count.
    """
    groups: dict[object, list[Survivor]] = {}
    for each in survivors:
        groups.setdefault((each.kind, each.key, each.storage.device), []).append(each)
    found = []
    tensors = _all_tensors() if is_beside_named and groups else []
    for all_of_group in groups.values():
        group = all_of_group
        if is_beside_named and _are_spread({each.storage.run for each in group}, measured):
            beside = _storages_beside_group(group, tensors)
            group = [each for each in group if id(each.storage.ref()) not in beside]
        rounds = {each.storage.run for each in group}
        if _are_spread(rounds, measured):
            found += [(leak, len(rounds)) for leak in leaks_of(group, [0], per_call=False)]
    return found


def _all_tensors() -> list[Any]:
    with quiet():
        return [obj for obj in tensors_among(gc.get_objects()) if is_tensor(obj)]


def _storages_beside_group(group: Sequence[Survivor], tensors: Sequence[Any]) -> set[int]:
    """Return the ids of the storages that tensors keep, themselves or in their graphs, other than a holder's own.

    `torch.stack(random.sample(buffer, 8))` has the graphs of several rounds. The buffer's tensors keep them, whatever
    becomes of the variable that has the new tensor.
    """
    own = {id(each.storage.ref()) for each in group if not each.through_graph}
    with quiet():
        others = [tensor for tensor in tensors if id(storage_of(tensor)) not in own]
    return set(map(id, storages_behind(others)))


def _with_cuts_of_later(survivors: Sequence[Survivor]) -> list[Survivor]:
    """Return survivors, those of one way to a container with the same reference to cut: the entry of the container.

    A pass begins with its first op. So an object that the second pass makes before it, such as a request, counts as
    older than the passes. Then the reference to cut is one inside the object, and not the list of requests, as for the
    objects of later passes.
    """
    by_way: dict[Hashable, list[tuple[int, Survivor]]] = {}
    places = []
    for each in survivors:
        edges = [step.edge for step in each.steps]
        # the reference to cut may be the one from an old tensor to its storage, behind these
        at = next((at for at, step in enumerate(each.steps) if step is each.cut), len(edges))
        places.append((tuple(map(series_of, edges)), at))
        if at < len(edges) and edges[at].kind.row.is_entry:
            by_way.setdefault(places[-1][0], []).append((at, each))
    found = []
    for each, (way, at) in zip(survivors, places, strict=True):
        for outer, later in by_way.get(way, ()):
            is_of_earlier = outer < at and each.storage.run < later.storage.run
            above = zip(each.steps[:outer], later.steps[:outer], strict=True)
            if is_of_earlier and each.work is None and all(one.edge == other.edge for one, other in above):
                entry = each.steps[outer]
                found.append(replace(each, cut=entry, key=later.key, is_one_more=later.is_one_more))
                break
        else:
            found.append(each)
    return found


_FEWEST_BESIDE: Final = 2
"""Tensors of a line that are alive beside those of a holder, so that it has only a part. The latest one may have
another holder for a moment."""
_MOST_OF_ALL: Final = 4  # a holder with more than all but a fourth is no sample. Guess.


def _without_samples(survivors: Sequence[Survivor], made: Sequence[NewStorage]) -> list[Survivor]:
    """Return survivors without those in a new container that has only some of what is kept.

    `batch = random.sample(buffer, 8)` makes another list in each round, with tensors of many rounds, so it looks like
    a list that got one tensor in some rounds. But the buffer has more tensors of the same line.
    """
    groups: dict[object, list[Survivor]] = {}
    for each in survivors:
        groups.setdefault((each.kind, each.key), []).append(each)
    left = []
    for group in groups.values():
        edge = None if group[0].cut is None else group[0].cut.edge
        target = None if edge is None else edge.target
        is_new = edge is not None and edge.kind.row.has_one_value
        if is_new and target is not None and target.kind is VertexKind.CONTAINER:
            sites = {each.storage.site for each in group}
            held = {id(each.storage.ref()) for each in group}
            beside = sum(each.site in sites and id(each.ref()) not in held for each in made)
            if beside >= max(_FEWEST_BESIDE, len(held) // _MOST_OF_ALL):
                continue
        left += group
    return left


def _of_usual_round(leak: Leak, survivors: Sequence[Survivor]) -> Leak:
    """Return a leak with the bytes and tensors of a usual round: no round adds the mean of different sizes."""
    by_round: dict[int, list[int]] = {}
    for each in survivors:
        by_round.setdefault(each.storage.run, []).append(each.storage.nbytes)
    sizes = [(sum(each), len(each)) for each in by_round.values()]
    if len(set(sizes)) < _FEWEST_BESIDE:
        return leak  # the mean is exact, less what only replaced an older value
    nbytes, count = median_low(sizes)
    return replace(leak, nbytes=nbytes, count=count)


def _is_kept_by(hooks: Sequence[Leak], kept: Leak) -> bool:
    """Return True if hooks of a leak keep the tensors that rounds added: the same edit ends both."""
    tables = {series_of(cut) for leak in hooks for cut in leak.cuts}
    is_added_with_hook = kept.cut is not None and is_registration(kept.cut, kept.edges)
    return is_added_with_hook and any(series_of(edge) in tables for edge in kept.edges)


def _with_tensors(hooks: Leak, survivors: Sequence[Survivor]) -> Leak:
    """Return a leak of hooks with the bytes that as many hooks keep as it counts, on the device with most of them."""
    tables = set(map(series_of, hooks.cuts))
    by_device: dict[str, dict[str, int]] = {}  # the bytes of each hook, by its number
    for each in survivors:
        for above, below in pairwise(step.edge for step in each.steps):
            if series_of(above) in tables and is_hook_number(below):
                of_hook = by_device.setdefault(each.storage.device, {})
                of_hook[below.name or ""] = of_hook.get(below.name or "", 0) + each.storage.nbytes
    if not by_device:
        return hooks
    device, of_hook = max(by_device.items(), key=lambda item: sum(item[1].values()))
    if len(of_hook) < _FEWEST_KEEPING:
        return hooks
    return replace(hooks, device=device, nbytes=median_low(of_hook.values()) * hooks.count)


_FEWEST_KEEPING: Final = 3
"""Hooks that each keep tensors, so that further hooks will. A guess."""


def _period_of_hooks(numbers: Sequence[int]) -> int:
    """Return the largest distance between two rounds that registered a hook; 1 if it is too large to show growth."""
    rounds = [at for at, (before, after) in enumerate(pairwise(numbers)) if before != after]
    distance = max((after - before for before, after in pairwise([-1, *rounds, len(numbers) - 1])), default=1)
    return distance if FEWEST_ADDED * distance < len(numbers) else 1


def _joined(leaks: list[Leak], kept: list[Leak]) -> tuple[list[Leak], list[Leak]]:
    """Return the leaks with all tensors of their holders, and the tensors of other holders.

    A holder may keep a loss with its graph, and a batch without one. The same edit frees both.
    """
    joined = []
    for leak in leaks:
        same = (leak.cause, leak.device, leak.every)
        beside = [each for each in kept if (each.cause, each.device, each.every) == same]
        kept = [each for each in kept if (each.cause, each.device, each.every) != same]
        nbytes = leak.nbytes + sum(each.nbytes for each in beside)
        count = leak.count + sum(each.count for each in beside)
        joined.append(replace(leak, nbytes=nbytes, count=count))
    return joined, kept


def _keeps_graph(survivor: Survivor, with_graph: set[int]) -> bool:
    return survivor.through_graph or id(survivor.storage.ref()) in with_graph


def _is_collected(survivor: Survivor) -> bool:
    """Return True for an entry of a container that a running call makes and that no variable has yet.

    gc does not show the values of a running call that have no variable: the list of a comprehension, or of
    `list(map(...))`. No reference leads to the container and it is in no loop, but it is alive, so such a call has it.
    """
    if survivor.looped or not survivor.steps:
        return False
    first = survivor.steps[0].edge
    is_container = first.owner is not None and first.owner.kind is VertexKind.CONTAINER
    return first.kind.row.is_entry and is_container


def _in_call(survivor: Survivor, first: Edge) -> Survivor:
    """Return a survivor in such a container, with the reference from the call that makes it."""
    below = survivor.steps[0].edge
    steps = [Step(replace(first, target=below.owner)), *survivor.steps]
    key = (first.kind, first.owner and (first.owner.file, first.owner.line), below.kind)
    return replace(survivor, steps=steps, cut=steps[1], key=key, unreachable=False, cycle_length=0)


def _is_of_module(survivor: Survivor) -> bool:
    """Return True for a parameter or a buffer."""
    return any(step.edge.kind in (EdgeKind.PARAMETER, EdgeKind.BUFFER) for step in survivor.steps)


def _is_in_cache(survivor: Survivor) -> bool:
    """Return True for an object that a cache keeps, such as the model whose cached method was called."""
    return any(step.edge.kind in (EdgeKind.CACHE_RESULT, EdgeKind.CACHE_ARGUMENT) for step in survivor.steps)


def _storages_with_graph() -> set[int]:
    """Return the ids of the storages of tensors that lead to a graph."""
    with quiet():
        tensors: list[Any] = [obj for obj in tensors_among(gc.get_objects()) if is_tensor(obj)]
        ends = (tensor for tensor in tensors if not autograd_state(tensor).is_leaf)
        return {id(storage_of(tensor)) for tensor in ends}
