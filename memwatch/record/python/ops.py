"""The hot path: run one intercepted op and append what it was, what it touched and what it made.

`OpRecorder.run` is called once per ATen op below autograd, by either interceptor. It is written for
speed: no pytree, no object per op, flat lists of integers; everything else is computed after the block.
Budget: less than an empty TorchDispatchMode costs (reports/overhead.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from memwatch.capture.schema import ACCESSES, NONE, PHASES
from memwatch.errors import MemwatchError
from memwatch.record.clock import ticks
from memwatch.record.interception.kinds import READ, WRITE, OpKind
from memwatch.record.tables.rows import Rows
from memwatch.record.tables.storages import (
    BASELINE,
    BY_OP,
    Passing,
    Storages,
    address_of,
    is_gone,
    plain_parts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from memwatch.record.context import Context
    from memwatch.record.tables.stacks import Stacks
    from memwatch.record.tables.strings import Strings

OUTPUT: Final = ACCESSES.index("output")
FORWARD, BACKWARD, OPTIMIZER = (PHASES.index(phase) for phase in ("forward", "backward", "optimizer"))

_MAX_SEQUENCE: Final = (1 << 63) - 1
_NEVER: Final = 1 << 62
_overrides = torch._C._has_torch_function
_graph_task = torch._C._current_graph_task_id
_current_node = torch._C._current_autograd_node
_next_sequence = torch._C._autograd._get_sequence_nr
_grad_enabled = torch.is_grad_enabled
_Parameter: Final = torch.nn.Parameter
_strided: Final = torch.strided


class OpRecorder:
    """Append the rows of `ops`, `uses` and `births` for every intercepted op."""

    def __init__(
        self, storages: Storages, stacks: Stacks, context: Context, strings: Strings, ops_started: list[int],
        *, rows: Callable[[], Rows] = Rows,
    ) -> None:  # fmt: skip
        self.ops = rows()
        self.uses = rows()
        self.on_flush: Callable[[], None] = lambda: None
        self.holds: Callable[[], bool] = lambda: True
        self.on_error: Callable[[str, Exception], None] = lambda name, error: None
        self._flush_op = self._flush_ticks = _NEVER
        self._storages = storages
        self._live = storages.live
        self._dead = storages.dead
        self._capture_stack = stacks.capture
        self._context = context
        self._strings = strings
        self._names: dict[OpKind, int] = {}
        self._ops_started = ops_started

    def run(  # noqa: C901, PLR0912, PLR0915  # the hot path is one function: every call in it is paid per op
        self, kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run the op and record it; the op's result or exception is passed on as it is."""
        if _overrides(args) or (
            kind.takes_lists and any(_overrides(item) for item in args if item.__class__ is list)
        ):
            with torch._C.DisableTorchFunction():  # no subclass nor mode of the program may see our look
                return self.run(kind.seeing(), args, kwargs)
        try:
            if self._dead:
                self._storages.bury()
            context = self._context
            module, outer = context.top
            task = _graph_task()
            if task == NONE:
                if context.in_backward:
                    context.backward_ended()
                grad = _grad_enabled()
                phase = OPTIMIZER if context.optimizing and not grad else FORWARD
                sequence = _next_sequence() - 1 if grad else NONE
            else:
                if not context.in_backward:
                    context.in_backward = True
                    self._storages.hold = self.holds()
                phase = BACKWARD
                node = _current_node()  # none in the callbacks that run when backward is done, as FSDP's
                sequence = NONE if node is None else node._sequence_nr()
                if sequence > _MAX_SEQUENCE:  # AccumulateGrad's: the largest unsigned number
                    sequence = NONE
            stack = self._capture_stack(outer, task)
        except MemwatchError:  # the limit that the program asked for
            raise
        except Exception as error:
            self.on_error(kind.name, error)
            return kind.call(*args, **kwargs)
        name = self._names.get(kind)
        if name is None:
            name = self._names[kind] = self._strings(kind.name)
        start = ticks()
        started = self._ops_started
        number = started[0]
        started[0] = number + 1
        try:  # no call out of it until the row is written: a signal's handler may raise at any
            result = kind.call(*args, **kwargs)
            end = ticks()
        except BaseException as error:
            if error.__class__ is RuntimeError and (restored := kind.numbers_as_tensors(args)) is not None:
                started[0] = number  # nothing ran
                return self.run(kind, restored, kwargs)
            self.ops += (number, name, stack, module, phase, sequence, start, ticks(), 1)
            raise
        self.ops += (number, name, stack, module, phase, sequence, start, end, 0)
        try:
            if self._dead:  # an address may be in use again
                self._storages.bury()
            live, uses = self._live, self.uses
            for argument, access in zip(args, kind.accesses):  # noqa: B905  # trailing ones may be left out
                cls = argument.__class__
                if cls is Tensor or cls is _Parameter:
                    try:
                        uses += (number, live[address_of(argument)].number, access)
                    except (KeyError, NotImplementedError, RuntimeError):
                        self._touch_slowly(number, argument, access)
                elif cls is list or cls is tuple or isinstance(argument, Tensor):
                    self._touch(number, (argument,), (access,))
            if kwargs:
                self._touch(
                    number, kwargs.values(), [WRITE if name in kind.write_names else READ for name in kwargs]
                )
            if kind.resizes:
                self._resized(args, kwargs)
            if result.__class__ is Tensor and result.layout is _strided:
                key = address_of(result)
                known = live.get(key)
                if (
                    known is None
                    or is_gone(known)
                    or (known.__class__ is Passing and not _lies_in(key, (args, kwargs)))
                ):
                    uses += (number, self._storages.born(result, key, number, BY_OP, end), OUTPUT)
            elif result is not None:
                self._made(number, result, (args, kwargs))
        except MemwatchError:  # the limit that the program asked for
            raise
        except Exception as error:  # a tensor we cannot look into is no reason to stop the program
            self.on_error(kind.name, error)
        if number >= self._flush_op or end > self._flush_ticks:
            self.on_flush()
        return result

    def close(self) -> None:
        """Let go of what is not needed when the block has ended."""

    def flush_at(self, op: int, at: int) -> None:
        """Call `on_flush` after an op of that number, or that ended later than `at` ticks."""
        self._flush_op, self._flush_ticks = op, at

    def _touch(self, number: int, arguments: Iterable[Any], accesses: Iterable[int]) -> None:
        live, uses = self._live, self.uses
        for argument, access in zip(arguments, accesses):  # noqa: B905  # trailing arguments may be left out
            kind = argument.__class__
            if kind is Tensor or kind is _Parameter:
                try:
                    uses += (number, live[address_of(argument)].number, access)
                except (KeyError, NotImplementedError, RuntimeError):
                    self._touch_slowly(number, argument, access)
            elif kind is list or kind is tuple:
                self._touch(number, argument, (access,) * len(argument))
            elif isinstance(argument, Tensor):
                self._touch_slowly(number, argument, access)

    def _touch_slowly(self, number: int, tensor: Tensor, access: int) -> None:
        for part in plain_parts(tensor):
            storage = self._storages.number_of(part, NONE, BASELINE)
            if storage != NONE:
                self.uses += (number, storage, access)

    def _resized(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for item in (*args, *kwargs.values()):
            if isinstance(item, Tensor):
                self._storages.resized(item)

    def _made(self, number: int, result: Any, given: Any) -> None:
        if isinstance(result, Tensor):
            for part in plain_parts(result):
                try:
                    key = address_of(part)
                except (NotImplementedError, RuntimeError):
                    self._storages.number_of(part, number, BY_OP)
                    continue
                known = self._live.get(key)
                if (
                    known is None
                    or is_gone(known)
                    or (known.__class__ is Passing and not _lies_in(key, given))
                ):
                    self.uses += (number, self._storages.born(part, key, number, BY_OP, ticks()), OUTPUT)
        elif result.__class__ is tuple or result.__class__ is list:
            for item in result:
                self._made(number, item, given)


def _lies_in(key: int, given: Any) -> bool:
    """Tell whether the storage at an address belongs to an argument; if not, its address was used before."""
    if isinstance(given, Tensor):
        try:
            return any(address_of(part) == key for part in plain_parts(given))
        except (NotImplementedError, RuntimeError):
            return False
    if given.__class__ is int:
        return key == given
    if given.__class__ is dict:
        given = given.values()
    elif given.__class__ is not list and given.__class__ is not tuple:
        return False
    return any(_lies_in(key, item) for item in given)
