"""The hot path: run one intercepted op and append what it was, what it touched and what it made.

`OpRecorder.run` is called once per ATen op below autograd, by either interceptor. It is written for
speed: no pytree, no object per op, flat lists of integers; everything else is computed after the block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from memwatch.capture.schema import ACCESSES, NONE, PHASES
from memwatch.record.clock import ticks
from memwatch.record.storages import BASELINE, BY_OP, Storages, plain_parts

if TYPE_CHECKING:
    from memwatch.record.context import Context
    from memwatch.record.stacks import Stacks
    from memwatch.record.strings import Strings

READ, WRITE, OUTPUT = (ACCESSES.index(access) for access in ("read", "write", "output"))
FORWARD, BACKWARD, OPTIMIZER = (PHASES.index(phase) for phase in ("forward", "backward", "optimizer"))

_graph_task = torch._C._current_graph_task_id
_current_node = torch._C._current_autograd_node
_MAX_SEQUENCE: Final = (1 << 63) - 1
_overrides = torch._C._has_torch_function
_next_sequence = torch._C._autograd._get_sequence_nr  # type: ignore[attr-defined]  # missing from the stubs


class OpKind:
    """What the recorder needs to know of an overload, computed once."""

    __slots__ = ("call", "name", "resizes", "takes_lists", "write_names", "writes")

    def __init__(self, overload: Any) -> None:
        schema = overload._schema
        self.name = str(overload)
        self.call: Callable[..., Any] = overload._op
        self.takes_lists = any("[]" in str(argument.type) for argument in schema.arguments)
        arguments = [
            (position, argument.name)
            for position, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        self.writes: Final = frozenset(position for position, _ in arguments)
        self.write_names: Final = frozenset(name for _, name in arguments)
        self.resizes = bool(arguments) and (
            "out" in overload._overloadname or overload._opname in {"resize_", "resize_as_", "set_", "_resize_output_"}
        )


class OpRecorder:
    """Append the rows of `ops`, `uses` and `births` for every intercepted op."""

    def __init__(self, storages: Storages, stacks: Stacks, context: Context, strings: Strings, ops_started: list[int]) -> None:
        self.ops: list[int] = []
        self.uses: list[int] = []
        self.after_op: Callable[[], None] | None = None
        self.flush_at = 0
        self.on_flush: Callable[[], None] = lambda: None
        self.flush_ops = 1 << 62
        self._storages = storages
        self._stacks = stacks
        self._context = context
        self._strings = strings
        self._ops_started = ops_started
        self._was_backward = False

    def run(self, kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the op and record it; the op's result or exception is passed on as it is."""
        if _overrides(args) or (kind.takes_lists and any(_overrides(item) for item in args if item.__class__ is list)):
            with torch._C.DisableTorchFunction():  # neither a subclass nor a mode of the program may see our look
                return self._run(kind, args, kwargs)
        return self._run(kind, args, kwargs)

    def _run(self, kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        started = self._ops_started
        number = started[0]
        context = self._context
        task = _graph_task()
        if task != NONE:
            phase, sequence = BACKWARD, _current_node()._sequence_nr()  # type: ignore[union-attr]
            if sequence > _MAX_SEQUENCE:  # AccumulateGrad has the largest unsigned number, so that it runs first
                sequence = NONE
            self._was_backward = True
        else:
            if self._was_backward:
                self._was_backward = False
                context.backward_ended()
            phase = OPTIMIZER if context.optimizing and not torch.is_grad_enabled() else FORWARD
            sequence = _next_sequence() - 1
        module, outer = context.top
        stack = self._stacks.capture(outer, task, 4)
        started[0] = number + 1
        start = ticks()
        try:
            result = kind.call(*args, **kwargs)
        except BaseException:
            self.ops += (number, self._strings(kind.name), stack, module, phase, sequence, start, ticks(), 1)
            raise
        end = ticks()
        self.ops += (number, self._strings(kind.name), stack, module, phase, sequence, start, end, 0)
        self._touch(number, kind, args, kwargs, result)
        if number >= self.flush_ops or end > self.flush_at:
            self.on_flush()
        return result

    def _touch(self, number: int, kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        writes = kind.writes
        live = self._storages.live
        uses = self.uses
        for position, argument in enumerate(args):
            access = WRITE if writes and position in writes else READ
            if isinstance(argument, Tensor):
                try:
                    uses += (number, live[id(argument.untyped_storage())].number, access)
                except (KeyError, NotImplementedError, RuntimeError):
                    self._use(number, argument, access)
            elif argument.__class__ is list or argument.__class__ is tuple:
                for item in argument:
                    if isinstance(item, Tensor):
                        self._use(number, item, access)
        if kwargs:
            for name, argument in kwargs.items():
                access = WRITE if writes and name in kind.write_names else READ
                for item in argument if argument.__class__ in (list, tuple) else (argument,):
                    if isinstance(item, Tensor):
                        self._use(number, item, access)
        if kind.resizes:
            for item in (*args, *kwargs.values()):
                if isinstance(item, Tensor):
                    self._storages.resized(item)
        if isinstance(result, Tensor):
            self._made(number, result)
        elif result.__class__ is tuple or result.__class__ is list:
            for item in result:
                if isinstance(item, Tensor):
                    self._made(number, item)
                elif item.__class__ is list:
                    for inner in item:
                        if isinstance(inner, Tensor):
                            self._made(number, inner)

    def _use(self, number: int, tensor: Tensor, access: int) -> None:
        for part in _parts(tensor):
            storage = self._storages.number_of(part, NONE, BASELINE)
            if storage != NONE:
                self.uses += (number, storage, access)

    def _made(self, number: int, tensor: Tensor) -> None:
        storages = self._storages
        for part in _parts(tensor):
            try:
                storage = part.untyped_storage()
            except (NotImplementedError, RuntimeError):
                storages.number_of(part, number, BY_OP)
                continue
            if id(storage) not in storages.live:
                self.uses += (number, storages.born(part, storage, number, BY_OP), OUTPUT)


def _parts(tensor: Tensor) -> Any:
    """Give the tensors that own the bytes; a plain tensor is its own only part."""
    if tensor.__class__ is Tensor or tensor.__class__ is torch.nn.Parameter:
        return (tensor,) if tensor.layout is torch.strided else plain_parts(tensor)
    return plain_parts(tensor)
