"""Which module, which optimizer step is running, and which storages are parameters, gradients and state.

Module calls are seen by replacing the function that every call runs through while the block is open: a global
forward hook would make torch.compile warn and trace it. Nothing of the user's is held but by weak reference.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.optim import optimizer as torch_optimizer

from memwatch._torch.autograd import NO_TASK, current_graph_task_id
from memwatch._torch.modules import BUFFERS, PARAMETERS, module_call, set_module_call
from memwatch._torch.overrides import disable_torch_function
from memwatch.capture.schema import NONE, ROLES
from memwatch.own_code import CodeOwner
from memwatch.record.clock import ticks
from memwatch.record.gradients import Gradients
from memwatch.record.interception.tracing import is_tracing
from memwatch.record.module_registry import ModuleRegistry
from memwatch.record.patches import Patches
from memwatch.record.recompute import NOTHING, Recomputes, recomputes_by_hand
from memwatch.record.tables.parts import plain_parts, tensors_in
from memwatch.record.tables.rows import Rows
from memwatch.record.tables.storages import BASELINE, Storages, address_of
from memwatch.record.tables.watched import WatchedStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType, FrameType

    from memwatch.record.backend import CaptureStack
    from memwatch.record.tables.op_counter import OpCounter
    from memwatch.record.tables.strings import Strings

(
    PARAMETER, BUFFER, GRADIENT, STATE, INPUT, UNSHARDED, UNSHARDED_GRADIENT, BUCKET, COMMUNICATION,
    AUTOCAST_COPY,
) = range(len(ROLES))  # fmt: skip
_OUTSIDE: Final = (NONE, NONE)
_thread: Final = threading.get_ident
_active: list[Context] = []


def _observed(beneath: Callable[..., Any], block: object) -> Any:
    """Return what every module call of one block runs through; another tool may keep it beyond that."""

    def call_impl(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        context = _active[0] if _active else None
        if context is None or context.block is not block or is_tracing() or _thread() != context.thread:
            return beneath(self, *args, **kwargs)
        if context.optimizing:
            context.forget_failed_steps(sys._getframe(1))
        depth = len(context.running)
        try:
            context.enter(self, args, kwargs)
            return beneath(self, *args, **kwargs)
        finally:
            context.leave(depth)

    return call_impl


CALL_CODE: Final[CodeType] = _observed(module_call(), None).__code__
"""The code of our own frame around a module call, which bounds the call stacks."""


class Context:
    """The module and optimizer calls that are running, and the roles of the storages they own."""

    def __init__(
        self, storages: Storages, capture_stack: CaptureStack, strings: Strings, op_counter: OpCounter
    ) -> None:
        self.top: tuple[int, int] = _OUTSIDE
        self.optimizing = False
        self.in_backward = False
        self.recomputing = NOTHING
        self.recomputes_by_hand = recomputes_by_hand
        self.saves_inputs = False
        self.thread = _thread()
        self.modules = Rows()
        self.calls = Rows()
        self.roles = Rows()
        self.steps = Rows()
        self._storages = storages
        self._capture_stack = capture_stack
        self._strings = strings
        self._op_counter = op_counter
        self.running: list[tuple[tuple[int, int], bool, int, int]] = []
        self._registry = ModuleRegistry(self.modules, strings, self._own)
        self._parameters: dict[int, tuple[weakref.ref[Tensor], str, int]] = {}
        self.gradients = Gradients(self.note_watched, storages, op_counter, self._parameters)
        self._stepped: set[int] = set()
        self._ends = False
        self._handles: list[Any] = []
        self._patches = Patches()
        self.recomputes = Recomputes(self, storages, capture_stack, op_counter)
        self._born_before_step = 0
        self._step_code: CodeType | None = None
        self.before_forward: Callable[[], None] | None = None
        self._on_step_end: Callable[[object], None] | None = None
        self.python_functions: tuple[Callable[..., Any], ...] = (
            *self.recomputes.python_functions,
            *self.gradients.python_functions,
        )
        self.block = object()
        self._beneath: Any = module_call()
        self._call_impl = _observed(self._beneath, self.block)

    def start(self) -> None:
        """Begin to see module calls and optimizer steps."""
        _active.insert(0, self)
        self._patches.put(torch.utils, "swap_tensors", self._swap)
        self.recomputes.start()
        self.resume()

    def stop(self) -> None:
        """Leave torch as it was before `start`."""
        _active.remove(self)
        self.gradients.stop()
        self.recomputes.stop()
        self._patches.take_off()
        self.pause()

    def tell_of_steps(self, on_step_end: Callable[[object], None] | None = None) -> None:
        """Call this with each optimizer whose step has ended; without an argument call nobody any more."""
        self._on_step_end = on_step_end

    def resume(self) -> None:
        """Resume seeing module calls and optimizer steps."""
        if module_call() is self._beneath:  # else another tool's is above it
            set_module_call(self._call_impl)
        self._handles = [
            torch_optimizer.register_optimizer_step_pre_hook(self._step_starts),
            torch_optimizer.register_optimizer_step_post_hook(self._step_ended),
        ]

    def pause(self) -> None:
        """Stop seeing module calls and optimizer steps: at the end, or while compiled code runs.

        dynamo guards on the function that every module call runs through, so ours would make it compile again.
        """
        if module_call() is self._call_impl:
            set_module_call(self._beneath)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _swap(self, swap_tensors: Callable[..., Any], t1: Tensor, t2: Tensor) -> Any:
        """Let go of parameters while torch swaps them: it refuses tensors that anybody refers to weakly."""
        tensors = t1, t2
        known = {id(tensor): self._parameters.pop(id(tensor), (None,))[1:] for tensor in tensors}
        try:
            return swap_tensors(t1, t2)
        finally:
            for tensor in tensors:
                before = known[id(tensor)]
                if before:
                    self._parameters[id(tensor)] = (weakref.ref(tensor), *before)

    def place(self) -> tuple[int, int, int]:
        """Return how many ops have started, the running module and the running call stack."""
        module, outer = self.top
        return self._op_counter[0], module, self._capture_stack(outer, NONE)

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that a module call starts."""
        known = self._registry.known.get(id(module))
        if known is not None and known[0]() is module:
            number = known[1]
        else:
            number = self._registry.meet(module, self.top[0], sys._getframe(2))
        if self.top is _OUTSIDE:
            if self.before_forward is not None:
                self.before_forward()
            # what a module gets in backward, from a hook or a recomputation, is no input of the program's
            if current_graph_task_id() == NO_TASK:
                self._note_inputs(module, (*args, *kwargs.values()))
        stack = self._capture_stack(self.top[1], NONE, 3)
        self.running.append((self.top, self.optimizing, number, self._op_counter[0]))
        self.top = (number, stack)
        self.optimizing = False

    def leave(self, depth: int) -> None:
        """Note that the module call at `depth` ended, and with it whatever an exception left above it."""
        if len(self.running) <= depth:
            return
        top, optimizing, module, start_op = self.running[depth]
        del self.running[depth:]
        self.top, self.optimizing = top, optimizing
        if module != NONE:
            self.calls += (module, start_op, self._op_counter[0], depth)

    def _step_starts(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if _thread() != self.thread or is_tracing():
            return
        caller = sys._getframe(1)
        self._step_code = caller.f_code
        self.forget_failed_steps(caller.f_back)
        self.learn_parameters(optimizer, caller.f_back)
        self.backward_ended()
        self._born_before_step = self._storages.count
        self.running.append((self.top, self.optimizing, NONE, self._op_counter[0]))
        self.top = (self.top[0], self._capture_stack(self.top[1], NONE, 3))
        self.optimizing = True

    def _step_ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if _thread() != self.thread or is_tracing():
            return
        self.forget_failed_steps(sys._getframe(1))
        while self.running:
            top, optimizing, module, start_op = self.running.pop()
            if module == NONE:
                self.top, self.optimizing = top, optimizing
                name = self._strings(f"{type(optimizer).__name__}.step")
                self.steps += (start_op, ticks(), name, self._op_counter[0])
                break
        self._storages.record_deaths()  # the step's own temporaries
        if self._storages.any_born_since(self._born_before_step):
            self.learn_state(optimizer)
        if self._on_step_end is not None:
            self._on_step_end(optimizer)

    def forget_failed_steps(self, frame: FrameType | None) -> None:
        """Drop optimizer steps that are not running any more: no hook runs at the end of one that raised."""
        begun = [place for place, call in enumerate(self.running) if call[2] == NONE]
        while begun and frame is not None:
            if frame.f_code is self._step_code:
                begun.pop(0)
            frame = frame.f_back
        if begun:
            self.top, self.optimizing = self.running[begun[0]][:2]
            del self.running[begun[0] :]

    def learn_modules(self, modules: Iterable[nn.Module], frame: FrameType | None) -> None:
        """Number and name the trees of modules, and note the roles of their parameters and buffers.

        Args:
            modules: modules that are alive.
            frame: the innermost call whose variables may name them.
        """
        self._registry.learn(modules, frame)

    def own(self, parameter: Tensor, name: str) -> None:
        """Note that a tensor is a parameter, so that its gradient and its optimizer's state get its name."""
        if not self._is_known(parameter):
            self._parameters[id(parameter)] = (weakref.ref(parameter), name, NONE)
        self.note_role(parameter, PARAMETER, *self.name_of(parameter))

    def name_of(self, parameter: Tensor) -> tuple[str, int]:
        """Return the name of a parameter and the number of its module, empty and -1 if it has none."""
        return self._parameters[id(parameter)][1:] if self._is_known(parameter) else ("", NONE)

    def look_again(self) -> None:
        """Look at the end for modules that were never called, and for parameters whose memory is new.

        After `module.half()` a parameter lies in other memory. What is not known by now was not made by an op: to
        number it would count it as alive at entry.
        """
        self._ends = True
        self._registry.learn((), sys._getframe())
        live, roles = self._storages.live, self._storages.roles
        for module, number in self._registry.alive():
            for role, table in ((PARAMETER, PARAMETERS), (BUFFER, BUFFERS)):
                for key, tensor in (module.__dict__.get(table) or {}).items():
                    try:
                        watched = None if tensor is None else live.get(address_of(tensor))
                    except (RuntimeError, NotImplementedError):
                        continue
                    if watched is not None and not roles.get(watched.number, 0) >> role & 1:
                        self.add_role(watched.number, role, key, number)

    def _own(self, module: nn.Module, number: int) -> None:
        """Note the roles of a module's own parameters and buffers."""
        if self._ends:
            return
        for key, tensor in (module.__dict__.get(PARAMETERS) or {}).items():
            if tensor is not None:
                self.note_role(tensor, PARAMETER, key, number)
                known = self._parameters.get(id(tensor))
                if known is None or known[0]() is not tensor or known[2] == NONE:  # an id may be in use again
                    self._parameters[id(tensor)] = (weakref.ref(tensor), key, number)
        for key, tensor in (module.__dict__.get(BUFFERS) or {}).items():
            if tensor is not None:
                self.note_role(tensor, BUFFER, key, number)

    def learn_parameters(self, optimizer: Any, frame: FrameType | None = None) -> None:
        """Note what an optimizer steps.

        Args:
            optimizer: the optimizer.
            frame: the call that steps it, whose variables may lead to modules that are not known.
        """
        tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        if id(optimizer) in self._stepped and all(map(self._is_known, tensors)):
            return
        if frame is not None:
            self._stepped.add(id(optimizer))
        for owner in (CodeOwner.PROGRAM, CodeOwner.INSTALLED):
            if frame is not None and not all(map(self._is_known, tensors)):
                self._registry.learn((), frame, owner)
        if frame is not None and not all(map(self._is_known, tensors)):
            self._registry.learn_from_heap()
        for group, settings in enumerate(optimizer.param_groups):
            for index, tensor in enumerate(settings["params"]):
                # also what is known: its memory may be new, as after `module.half()`
                self.own(tensor, f"group{group}.param{index}")

    def _is_known(self, parameter: Tensor) -> bool:
        known = self._parameters.get(id(parameter))
        return known is not None and known[0]() is parameter

    def learn_state(self, optimizer: Any) -> None:
        """Note the role of every tensor in the optimizer's state, named as ``adamw.exp_avg[layers.0.weight]``."""
        self._storages.record_deaths()
        kind = type(optimizer).__name__.lower()
        for parameter, state in list(optimizer.state.items()):
            if not isinstance(state, dict):
                continue
            owner, module = self.name_of(parameter) if self._is_known(parameter) else ("?", NONE)
            for slot, value in state.items():
                for tensor in value if isinstance(value, (list, tuple)) else (value,):
                    if isinstance(tensor, Tensor):
                        self.note_watched(tensor, STATE, module, "{}.{}[{}]", kind, slot, owner)

    def backward_ended(self) -> None:
        """Note the gradients, if there may be others by now, and watch what backward left by Python objects."""
        self.in_backward = False
        self.gradients.note_others()
        if current_graph_task_id() == NO_TASK:
            self._storages.rewatch()

    def owns(self, storage: int) -> bool:
        """Return True for a storage known as a parameter, a buffer, a gradient or optimizer state."""
        return bool(self._storages.roles.get(storage, 0) & ~(1 << INPUT))

    @property
    def is_its_thread(self) -> bool:
        """Whether the running thread is the one that entered the block."""
        return _thread() == self.thread

    def _note_inputs(self, module: nn.Module, values: tuple[Any, ...]) -> None:
        for tensor in tensors_in(values):
            self.note_role(tensor, INPUT, f"input of {type(module).__name__}")

    def note_watched(
        self, tensor: Tensor, role: int, module: int, name: str, *words: str, op: int = NONE
    ) -> bool:
        """Note the role of a tensor, cheaply where it is plain and its storage is watched; return if it may be new.

        Its name is put together from `words` only where the role is new.
        """
        try:
            watched = self._storages.live.get(address_of(tensor)) if tensor.__class__ is Tensor else None
        except (RuntimeError, NotImplementedError):
            watched = None
        if watched.__class__ is not WatchedStorage:
            self.note_role(tensor, role, name.format(*words), module, op)
        elif not self._storages.roles.get(watched.number, 0) >> role & 1:
            self.add_role(watched.number, role, name.format(*words), module, op=op)
        else:
            return False
        return True

    def note_role(self, tensor: Tensor, role: int, name: str, module: int = NONE, op: int = NONE) -> None:
        """Note the role of the storages that hold the bytes of a tensor, if it is new."""
        with disable_torch_function():
            try:
                parts = list(plain_parts(tensor))
            except (RuntimeError, NotImplementedError):
                return
            for part in parts:
                storage = self._storages.number_of(part, NONE, BASELINE)
                if storage != NONE and not self._storages.roles.get(storage, 0) >> role & 1:
                    self.add_role(storage, role, name, module, op=op)

    def add_role(
        self, storage: int, role: int, name: str, module: int = NONE, *, lives: bool = True, op: int = NONE
    ) -> None:
        """Note the role of a storage by its number, as of an op or of now; one that has died has no more to come."""
        if lives:
            known = self._storages.roles
            known[storage] = known.get(storage, 0) | 1 << role
        self.roles += (storage, role, self._strings(name), self._op_counter[0] if op == NONE else op, module)
