"""The hot path: run one intercepted op, and append rows about the op, its inputs and its results.

An interceptor, see `interception.py`, calls `PythonOpRecorder.run` once for each ATen op below autograd. `run` is
written for speed: it only appends integers to flat lists. Everything else is computed after the block. `run` must cost
less than an empty TorchDispatchMode (reports/overhead.py).

A backward adds gradients to the leaves of its graph, and Python cannot ask autograd's engine which leaves these are. So
`BackwardGraphs` walks the graph from each node that runs an op, and visits each node once.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from memwatch._torch.autograd import (
    NO_TASK,
    AccumulateGrad,
    current_graph_task_id,
    current_node,
    keeps_graph,
    next_sequence_nr,
    sequence_nr_of,
)
from memwatch._torch.dispatch import BELOW_FREE_KEY, FREE_KEY, FREE_KEY_NAME, destroy_library, exclude_key
from memwatch._torch.modes import disable_torch_function, has_torch_function
from memwatch.capture.schema import NONE, PHASES, RECORDED_BY_NAME
from memwatch.errors import MemwatchError
from memwatch.record.clock import ticks
from memwatch.record.interception import (
    READ,
    WRITE,
    KeyInterceptor,
    ModeInterceptor,
    OpKind,
    passes,
    put_kernels,
)
from memwatch.record.tables.operands import OUTPUT, Operands, lies_in
from memwatch.record.tables.rows import Rows
from memwatch.record.tables.storages import BY_OP, NEVER, Storages, WatchedTensor, address_of, is_gone
from memwatch.signal_handlers import pass_on, raised_by_handler

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memwatch.record.backend import Block, CallContext, CaptureStack, Listener
    from memwatch.record.interception import Handler, Interceptor, Libraries


class PythonKernels:
    """The Python kernels on the free dispatch key, see `interception.py`.

    Each overload has its own kernel. Overloads that are defined later share a fallback.
    """

    def __init__(self) -> None:
        self._libraries: Libraries = {}
        self._handler: Handler | None = None
        self._kinds: dict[Any, OpKind] = {}

    def put(self) -> None:
        """Register the kernels."""
        self._libraries = put_kernels(self._kernel_of)
        later = torch.library.Library("_", "IMPL")
        later.fallback(functools.partial(_run_later, self), FREE_KEY_NAME, with_keyset=True)
        self._libraries["_"] = later

    def take_off(self) -> None:
        """Remove the kernels."""
        destroy_library(self._libraries["_"])
        self._libraries.clear()

    def begin(self, handler: Handler) -> None:
        """Let the kernels call a handler, which runs and records each op."""
        self._handler = handler

    def end(self) -> None:
        """Let the kernels only run the op."""
        self._handler = None

    def _kernel_of(self, space: str, overload: Any) -> tuple[Any, bool]:
        kind = self._kinds.get(overload)
        if kind is None:
            # cached, because `put` then takes half the time when it registers the kernels again
            kind = self._kinds[overload] = OpKind(overload)
        if kind.is_view:
            return functools.partial(_run_view, self, kind), True
        if kind.is_lift:
            return functools.partial(_run_lift, self, kind), True
        if space == "aten":
            return functools.partial(_run, self, kind), False
        return functools.partial(_run_below, self, kind), True


def _run(kernels: PythonKernels, kind: OpKind, *args: Any, **kwargs: Any) -> Any:
    try:
        # Inside the try block, because a signal handler may raise right after this line. The key stays excluded while
        # the op runs, so ops inside it are not seen.
        exclude_key(FREE_KEY, True)
        handler = kernels._handler
        return kind.call(*args, **kwargs) if handler is None else handler(kind, args, kwargs)
    finally:
        exclude_key(FREE_KEY, False)


def _run_view(kernels: PythonKernels, kind: OpKind, keyset: Any, *args: Any, **kwargs: Any) -> Any:
    """Let the handler note the autograd node of a view.

    Unlike `_run`, this does not exclude the key. So the handler sees the ops that run inside the view.
    """
    handler = kernels._handler
    kind_below = None if handler is None or not torch.is_grad_enabled() else _kind_below(kind, keyset)
    if handler is None or kind_below is None:
        return kind.overload.redispatch(keyset & BELOW_FREE_KEY, *args, **kwargs)
    return handler(kind_below, args, kwargs)


def _run_lift(kernels: PythonKernels, kind: OpKind, keyset: Any, *args: Any, **kwargs: Any) -> Any:
    """Let the handler note a tensor that torch made from Python's data, see `LIFT`."""
    handler = kernels._handler
    kind_below = None if handler is None else _kind_below(kind, keyset)
    if handler is None or kind_below is None:
        return kind.overload.redispatch(keyset & BELOW_FREE_KEY, *args, **kwargs)
    return handler(kind_below, args, kwargs)


def _run_below(kernels: PythonKernels, kind: OpKind, keyset: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an op that may have Python kernels on the keys above ours.

    Calling the overload again would start at the top key. These kernels would run twice, and count each change of a
    tensor twice in its version. So this goes on with the keys below ours.
    """
    kind_below = _kind_below(kind, keyset)
    if kind_below is None:
        return kind.overload.redispatch(keyset & BELOW_FREE_KEY, *args, **kwargs)
    return _run(kernels, kind_below, *args, **kwargs)


def _kind_below(kind: OpKind, keyset: Any) -> OpKind | None:
    """Return the kind of an op with a call that runs only the keys below ours; None if memory is too short for it."""
    try:
        return kind.with_call(functools.partial(kind.overload.redispatch, keyset & BELOW_FREE_KEY))
    except MemoryError:
        return None


_later_kinds: Final[dict[Any, OpKind]] = {}


def _run_later(kernels: PythonKernels, keyset: Any, overload: Any, *args: Any, **kwargs: Any) -> Any:
    kind = _later_kinds.get(overload)
    if kind is None:
        kind = _later_kinds[overload] = OpKind(overload)
    return _run_below(kernels, kind, keyset, *args, **kwargs)


PYTHON_KERNELS: Final = PythonKernels()


@functools.cache
def key_works() -> bool:
    """Return True if the kernels on the key see ops and change nothing. The probe runs once per process."""
    seen: set[str] = set()

    def see(kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        seen.add(kind.name)
        return kind.call(*args, **kwargs)

    interceptor = KeyInterceptor(PYTHON_KERNELS, PYTHON_KERNELS)
    works = passes(functools.partial(interceptor.start, see), interceptor.stop)
    return works and {"aten.mul.Tensor", "aten.sum.default"} <= seen


class BackwardGraphs:
    """Remember the visited nodes of each running backward.

    Attributes:
        visited: the numbers of the visited nodes of the backward that was entered last. It contains -1, the number of
            "no node".
    """

    def __init__(self) -> None:
        self.visited: set[int] = {NONE}
        self._visited_of: dict[int, set[int]] = {}

    def enter(self, task: int, *, within: int) -> bool:
        """Switch to the nodes of a backward that runs an op. Return True if this is its first op.

        Args:
            task: the number of the backward.
            within: the number of the backward that ran the op before; `NO_TASK` if none did.
        """
        if within == NO_TASK:  # all earlier backwards have ended
            self._visited_of.clear()
        is_new = task not in self._visited_of
        self.visited = self._visited_of.setdefault(task, {NONE})
        return is_new

    def leaves_from(self, node: Any) -> list[Tensor]:
        """Return the leaves behind a node, except those behind nodes that were visited before."""
        leaves, waiting = [], [node]
        while waiting:
            here = waiting.pop()
            if isinstance(here, AccumulateGrad):
                leaves.append(here.variable)
                continue
            number = sequence_nr_of(here)
            if number in self.visited:
                continue
            self.visited.add(number)
            waiting += [following for following, _ in here.next_functions if following is not None]
        return leaves


FORWARD, BACKWARD, OPTIMIZER, RECOMPUTE = map(PHASES.index, ("forward", "backward", "optimizer", "recompute"))

_PHASES_WITH_NUMBERS: Final = (FORWARD, RECOMPUTE)
_OPS_WIDTH: Final = len(RECORDED_BY_NAME["ops"].columns)
_MAX_SEQUENCE: Final = (1 << 63) - 1  # larger numbers do not fit into the column `sequence`
_grad_enabled = torch.is_grad_enabled
_Parameter: Final = torch.nn.Parameter
_strided: Final = torch.strided
_thread: Final = threading.get_ident


class PythonOpRecorder:
    """Run every intercepted op, and append its rows: to `ops`, `uses`, `births`, `deaths`, `nodes` and `numbers`.

    Views and lifts have rows only in `views` and `lifts`. A `task` is the number of a running backward, -1 outside. A
    `sequence` is the number of an autograd node; the nodes of forward are numbered in the order of their ops.
    """

    def __init__(
        self,
        block: Block,
        storages: Storages,
        capture_stack: CaptureStack,
        context: CallContext,
        listener: Listener,
    ) -> None:
        self.ops = Rows()
        self.uses = Rows()
        self.nodes = Rows()
        self.views = Rows()
        self.lifts = Rows()
        self.numbers = Rows()
        self._newest_recorded = next_sequence_nr() - 1
        self.views += (0, self._newest_recorded, NONE, NONE, NONE)  # for all nodes from before the block
        self._listener = listener
        self._flush_op = self._flush_ticks = NEVER
        self._storages = storages
        self._ledger = storages.ledger
        self._record_deaths = storages.ledger.record_deaths
        self._operands = Operands(storages, self.uses)
        self._live = storages.live
        self._dead = storages.dead
        self._capture_stack = capture_stack
        self._context = context
        self._strings = block.strings
        self._names: dict[OpKind, int] = {}
        self._op_counter = block.op_counter
        self._graphs = BackwardGraphs()
        self._losses = 0

    @property
    def losses(self) -> int:
        """How many records were lost because memory had run out."""
        return self._losses

    def interceptor(self, *, by_mode: bool) -> Interceptor:
        """Return the interceptor that passes every op to this recorder."""
        return ModeInterceptor() if by_mode else KeyInterceptor(PYTHON_KERNELS, PYTHON_KERNELS)

    def run(  # one long function, because each call of a helper would slow every op
        self, kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run the op, record it, and return its result. An exception of the op passes unchanged."""
        if kind.has_no_row:
            return (self._run_view if kind.is_view else self._run_lift)(kind, args, kwargs)
        try:
            is_seen_by_others = has_torch_function(args) or (kind.takes_lists and _is_in_lists(args))
        except MemoryError as error:
            self._could_not_record(kind, error)
            return kind.call(*args, **kwargs)
        if is_seen_by_others:
            return self._run_unseen(kind, args, kwargs)
        try:
            if self._dead:
                self._record_deaths(self._op_counter[0])
            context = self._context
            module, outer = context.top
            task = current_graph_task_id()
            if task == NO_TASK:
                if context.graph_task != NO_TASK:
                    context.backward_ended()
                grad = _grad_enabled()
                phase = OPTIMIZER if context.optimizing and not grad else FORWARD
                sequence = next_sequence_nr() - 1 if grad else NONE
                self._newest_recorded = sequence if grad else self._newest_recorded
            else:
                phase, sequence = self._op_in_backward(task)
            stack = self._capture_stack(outer, task)
            name = self._names.get(kind) or self._name_of(kind)
            start = ticks()
            started = self._op_counter
            number = started[0]
            started[0] = number + 1
        except MemwatchError:  # the limit that the program asked for
            raise
        except Exception as error:
            pass_on(error)
            self._could_not_record(kind, error)
            return kind.call(*args, **kwargs)
        # A signal handler may raise at any call. So until the row is written, every call is inside a try block.
        try:
            result = kind.call(*args, **kwargs)
            try:
                end = ticks()
            except MemoryError:  # the op has run, so return its result
                end = start
        except BaseException as error:
            if (restored := self._with_tensors(kind, args, error)) is not None:
                started[0] = number  # nothing ran
                return self.run(kind, restored, kwargs)
            self._failed(kind, number, name, stack, module, phase, sequence, start)
            raise
        try:
            self.ops += (number, name, stack, module, phase, sequence, start, end, 0)
            self._ran(number, kind, args, kwargs, phase=phase, result=result, end=end)
            if number >= self._flush_op or end > self._flush_ticks:
                self._listener.flush_due()
        except MemoryError as own:
            self._without_memory(kind, own, (number, name, stack, module, phase, sequence, start, end, 0))
        return result

    def _run_unseen(self, kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op, and hide the recorder's own reads of tensors from subclasses and modes of the program."""
        try:
            seeing, unseen = kind.with_torch_function(), disable_torch_function()
        except MemoryError as error:
            self._could_not_record(kind, error)
            return kind.call(*args, **kwargs)
        with unseen:
            return self.run(seeing, args, kwargs)

    def _failed(self, kind: OpKind, *begun: int) -> None:
        """Append the row of an op that raised. `begun` is the row without its last two columns."""
        try:
            self.ops += (*begun, ticks(), 1)
            self._listener.op_failed()
        except MemoryError as error:
            self._without_memory(kind, error, (*begun, begun[-1], 1))

    def _without_memory(self, kind: OpKind, error: MemoryError, row: tuple[int, ...]) -> None:
        """Note that an op could not be fully recorded, and append its row if it is missing."""
        try:
            self._could_not_record(kind, error)  # the listener also frees some memory
            rows = self.ops
            # the op has started, and the last row is of an earlier op
            if self._op_counter[0] == row[0] + 1 and (len(rows) < _OPS_WIDTH or rows[-_OPS_WIDTH] < row[0]):
                rows += row
        except MemoryError:
            self._losses += 1

    def _could_not_record(self, kind: OpKind, error: Exception) -> None:
        try:
            self._listener.could_not_record(kind.name, error)
        except MemoryError:
            self._losses += 1

    def _with_tensors(
        self, kind: OpKind, args: tuple[Any, ...], error: BaseException
    ) -> tuple[Any, ...] | None:
        """Return arguments with tensors in place of numbers if the op refused the numbers; None otherwise."""
        if error.__class__ is not RuntimeError:
            return None
        try:
            return None if raised_by_handler(error) else kind.numbers_as_tensors(args)
        except MemoryError as own:
            self._could_not_record(kind, own)
            return None

    def _name_of(self, kind: OpKind) -> int:
        """Return the string id of the name of a kind of op that runs for the first time."""
        name = self._names[kind] = self._strings(kind.name)
        return name

    def _run_view(self, kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note the node that autograd has made for a view, and then run the view.

        With this row, the report can name the view's line for memory that the node allocates in backward.
        """
        try:
            if _grad_enabled() and (newest := next_sequence_nr() - 1) != self._newest_recorded:
                context = self._context
                module, outer = context.top
                task, node = current_graph_task_id(), NONE
                if task != NO_TASK:
                    _, sequence, made = self._place_in_backward(task)
                    node = NONE if made == NONE else sequence
                elif context.graph_task != NO_TASK:
                    context.backward_ended()
                self._newest_recorded = newest
                stack = self._capture_stack(outer, task, 4)  # one frame deeper than `run`
                self.views += (self._op_counter[0], newest, stack, module, node)
        except MemwatchError:  # the limit that the program asked for
            raise
        except Exception as error:
            pass_on(error)
            self._could_not_record(kind, error)
        return kind.call(*args, **kwargs)

    def _run_lift(self, kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note a tensor that torch made from Python's data, below every op."""
        made = kind.call(*args, **kwargs)
        try:
            with disable_torch_function():
                self._lifted(made)
        except MemwatchError:  # the limit that the program asked for
            raise
        except Exception as error:
            pass_on(error)
            self._could_not_record(kind, error)
        return made

    def _lifted(self, made: Tensor) -> None:
        context = self._context
        module, outer = context.top
        task, newest = current_graph_task_id(), self._newest_recorded
        if task != NO_TASK:
            self._place_in_backward(task)
            self._newest_recorded = newest  # a lift has no row that records the nodes made until now
        elif context.graph_task != NO_TASK:
            context.backward_ended()
        # two frames deeper than `run`
        stack, before = self._capture_stack(outer, task, 5), self._storages.count
        for storage, _ in self._operands.storages_of(made):
            if storage >= before:  # a new storage
                self.lifts += (storage, stack, module)

    def _op_in_backward(self, task: int) -> tuple[int, int]:
        """Return the phase of an op in a backward, and the node that runs it. Append a row to `nodes` if needed."""
        phase, sequence, made = self._place_in_backward(task)
        if made != NONE:  # `create_graph=True`: the op makes a graph for another backward
            self.nodes += (self._op_counter[0], made)
        return phase, sequence

    def _place_in_backward(self, task: int) -> tuple[int, int, int]:
        """Return the phase of an op or view in a backward, the node that runs it, and the node that the op made.

        A node is -1 if there is none. With grad mode on, the newest node is taken for the node that the op made.
        """
        context = self._context
        if context.graph_task != task:
            is_new = self._graphs.enter(task, within=context.graph_task)
            context.graph_task = task
            if is_new:
                self._ledger.hold = self._listener.backward_begins()
        grad = _grad_enabled()
        # a checkpoint, or a Function whose backward computes its forward again
        if (task == context.recomputing and _thread() == context.thread) or (
            grad and not keeps_graph() and context.recomputes_by_hand()
        ):
            if not grad:
                return RECOMPUTE, NONE, NONE
            self._newest_recorded = next_sequence_nr() - 1
            return RECOMPUTE, self._newest_recorded, NONE
        node = current_node()  # None in callbacks at the end of a backward, such as FSDP's
        sequence = NONE if node is None else sequence_nr_of(node)
        if sequence not in self._graphs.visited:
            self._listener.leaves_reached(self._graphs.leaves_from(node))
        made = NONE
        if grad:
            made = self._newest_recorded = next_sequence_nr() - 1
        # the number of an AccumulateGrad node is 2**64 - 1
        return BACKWARD, NONE if sequence > _MAX_SEQUENCE else sequence, made

    def _ran(
        self,
        number: int,
        kind: OpKind,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        phase: int,
        result: Any,
        end: int,
    ) -> None:
        """Append the rows of an op that has run, except its row of `ops`. If a tensor cannot be read, add a note."""
        try:
            if self._dead:  # first, because a result may have the address of a dead storage
                self._record_deaths(self._op_counter[0])
            live, uses = self._live, self.uses
            for argument, access in zip(args, kind.accesses):  # noqa: B905  # trailing ones may be left out
                cls = type(argument)
                if cls is Tensor or cls is _Parameter:
                    try:
                        uses += (number, live[address_of(argument)].number, access)
                    except (KeyError, NotImplementedError, RuntimeError) as error:
                        pass_on(error)
                        self._operands.used(number, argument, access)
                elif cls is list or cls is tuple or isinstance(argument, Tensor):
                    self._touch(number, (argument,), (access,))
            if kind.numbers and phase in _PHASES_WITH_NUMBERS:
                self.numbers += tuple(
                    value for row in kind.numbers_in(args, kwargs) for value in (number, *row)
                )
            if kwargs or kind.resizes:
                self._touch_rest(number, kind, args, kwargs)
            if type(result) is Tensor and result.layout is _strided and (key := address_of(result)):
                known = live.get(key)
                # The result has a new storage if the known storage at its address has died. A WatchedTensor does not
                # show its death, but the storage is still alive only if an argument has it.
                if (
                    known is None
                    or is_gone(known)
                    or (known.__class__ is WatchedTensor and not lies_in(key, (args, kwargs)))
                ):
                    uses += (number, self._storages.born(result, key, number, BY_OP, end), OUTPUT)
            elif result is not None:
                self._operands.made(number, result, (args, kwargs))
        except MemwatchError:  # the limit that the program asked for
            raise
        except Exception as error:
            pass_on(error)
            self._could_not_record(kind, error)

    def close(self) -> None:
        """Do nothing.

        After the block, no interceptor calls `run`. Python's garbage collector frees the recorder and its objects.
        """

    def flush_at(self, op: int, at_ticks: int) -> None:
        """Call `Listener.flush_due` after the op `op`, or after the first op that ends later than `at_ticks`."""
        self._flush_op, self._flush_ticks = op, at_ticks

    def _touch_rest(self, number: int, kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Append the uses of the keyword arguments, and record resized storages."""
        if kwargs:
            writes = kind.write_names
            self._touch(number, kwargs.values(), [WRITE if name in writes else READ for name in kwargs])
        if kind.resizes:
            self._operands.resized(args, kwargs)

    def _touch(self, number: int, arguments: Iterable[Any], accesses: Iterable[int]) -> None:
        live, uses = self._live, self.uses
        for argument, access in zip(arguments, accesses):  # noqa: B905  # trailing arguments may be left out
            kind = type(argument)
            if kind is Tensor or kind is _Parameter:
                try:
                    uses += (number, live[address_of(argument)].number, access)
                except (KeyError, NotImplementedError, RuntimeError) as error:
                    pass_on(error)
                    self._operands.used(number, argument, access)
            elif kind is list or kind is tuple:
                self._touch(number, argument, (access,) * len(argument))
            elif isinstance(argument, Tensor):
                self._operands.used(number, argument, access)


def _is_in_lists(args: tuple[Any, ...]) -> bool:
    """Return True if a list among the arguments holds an object with a `__torch_function__`."""
    try:
        return any(has_torch_function(item) for item in args if type(item) is list)
    except MemoryError:
        return False
