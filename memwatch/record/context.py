"""Track the running modules and optimizer steps, and note the storages of parameters, gradients and optimizer state.

While the block is open, memwatch replaces torch's function that runs each module call. A global forward hook would
disturb torch.compile, which warns about it and traces it. memwatch holds objects of the program by weak references
only.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from memwatch._torch.autograd import NO_TASK, current_graph_task_id
from memwatch._torch.modes import disable_torch_dispatch, disable_torch_function
from memwatch._torch.modules import BUFFERS, PARAMETERS, module_call, set_module_call
from memwatch.capture.rows import ModeChangesRow, StepsRow
from memwatch.capture.schema import NONE
from memwatch.containers import LISTS
from memwatch.errors import MemwatchError
from memwatch.heap.classes import Classes, class_ids, derives, is_a
from memwatch.heap.module_tables import is_whole, module_dict, table_entries
from memwatch.heap.names import class_name, instance_dict
from memwatch.heap.tensors import type_dict
from memwatch.patches import Patches
from memwatch.record.clock import ticks
from memwatch.record.compilers import is_tracing
from memwatch.record.harmless import Harmless, weak_callback
from memwatch.record.recompute import NOTHING, Recomputes, recomputes_by_hand
from memwatch.record.role_changes import Gradients, RoleEnds
from memwatch.record.roles import INPUT, REFERENCES_OF_OTHERS, STEPPED, Owners, Roles
from memwatch.record.tables.parts import plain_parts, tensors_in
from memwatch.record.tables.rows import Rows
from memwatch.record.tables.storages import BASELINE, Storages
from memwatch.signal_handlers import pass_on, suppress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from memwatch.record.backend import CaptureStack
    from memwatch.record.tables.rows import OpCounter, Strings

_OUTSIDE: Final = (NONE, NONE)
_thread: Final = threading.get_ident
_active: list[Context] = []
_PLAIN: Final = class_ids(
    torch.Tensor,
    nn.Parameter,
    type(None),
    bool,
    int,
    float,
    str,
    tuple,
    list,
    dict,
    torch.dtype,
    torch.device,
    torch.Size,
)
"""Classes of arguments that are not searched.

A recomputation may add a tensor to a list or a dictionary again. This does no harm: programs read, for example, a list
of losses before the backward.
"""
_NOT_STATE: Final = class_ids(FunctionType, BuiltinFunctionType, MethodType, ModuleType, CodeType)
_LISTS: Final = class_ids(*LISTS)
_NUMBERS: Final = class_ids(bool, int, float)
_TENSORS: Final = class_ids(torch.Tensor, nn.Parameter)
_OF_EVERY_MODULE: Final = frozenset(vars(nn.Module()))
"""The attributes that torch gives each module."""
_EXAMINED_CALLS: Final = 2
"""Calls of each module whose arguments are searched. The first call may only prepare the object. A guess."""
_MOST_OBJECTS: Final = 1_000
"""Objects that are searched for one call; beyond them the arguments count as unchanged. A guess."""


def _is_no_state(value: Any) -> bool:
    cls = type(value)
    return id(cls) in _NOT_STATE or derives(cls, type) or derives(cls, nn.Module)


class ChangedArguments:
    """Find modules whose forward changes an argument, a list of the module, or an attribute of the module.

    Examples are a cache of keys and values, a list of losses, a counter of calls, and a running mean that is replaced.
    A checkpoint cannot run such a forward again in the backward. The second run would find the changed argument, add to
    the list twice, or count once too often.

    Attributes:
        classes: for each module that changed an argument, the class of the argument. The key is the module's number.
        lists: for each module with a list that grew, the attribute that leads to the list.
        attributes: for each module with a changed attribute, its name.
    """

    def __init__(self, storages: Storages) -> None:
        self.classes: dict[str, str] = {}
        self.lists: dict[str, str] = {}
        self.attributes: dict[str, str] = {}
        # for each running module: the length of each of its lists before the call, by the id of the list
        self._lengths: dict[int, dict[int, int]] = {}
        # for each running module: the value of each attribute before the call
        self._values: dict[int, dict[str, Any]] = {}
        self._storages = storages
        self._examined: dict[int, int] = {}

    def may_change(self, module: int) -> bool:
        """Return True if a call of this module must be examined: it is one of the first calls that build a graph."""
        return (
            self._examined.get(module, 0) < _EXAMINED_CALLS
            and torch.is_grad_enabled()
            and current_graph_task_id() == NO_TASK
        )

    def note_state(self, module: int, called: nn.Module) -> None:
        """Note the lengths of a module's lists and the values of its attributes before its call."""
        self._lengths[module] = {id(each): len(each) for _, each in _own_lists(called)}
        self._values[module] = self._values_of(called)

    def examine(self, module: int, called: nn.Module, arguments: tuple[Any, ...], born_before: int) -> None:
        """Find the changes that a call of a module made to its arguments, lists and attributes.

        An argument or a list has changed if it leads to a storage that the call made. The result of the last examined
        call replaces earlier results for lists and attributes, because the first call may only set them up.

        Args:
            module: number of the module.
            called: the module.
            arguments: the arguments of the call.
            born_before: how many storages had been seen before the call. Storages from this number on are new.
        """
        self._examined[module] = self._examined.get(module, 0) + 1
        lengths, values = self._lengths.pop(module, {}), self._values.pop(module, {})
        self.lists.pop(str(module), None)
        self.attributes.pop(str(module), None)
        for name, value in self._values_of(called).items():
            if name in values and value is not values[name] and value != values[name]:
                self.attributes[str(module)] = name
                break
        for name, each in _own_lists(called):
            if len(each) > lengths.get(id(each), len(each)) and self._holds_storage_from(born_before, each):
                self.lists[str(module)] = name
                break
        for value in arguments:
            if id(type(value)) not in _PLAIN and self._holds_storage_from(born_before, value):
                self.classes[str(module)] = class_name(type(value))
                self._examined[module] = _EXAMINED_CALLS
                return

    def _values_of(self, module: nn.Module) -> dict[str, Any]:
        """Return the plain numbers in a module's attributes, and the number of each parameter's and buffer's storage.

        Subclasses of `int` and `float` are left out, because comparing them may run code of the program. A module of
        torch, such as DistributedDataParallel, has no values here. Its attributes do not change its result, so its
        forward can run again.
        """
        home = type_dict(type(module)).get("__module__")
        if type(home) is str and home.partition(".")[0] == "torch":
            return {}
        attributes = module_dict(module)
        found = {
            name: value
            for name, value in list(attributes.items())
            if id(type(value)) in _NUMBERS and type(name) is str and name not in _OF_EVERY_MODULE
        }
        for table in (PARAMETERS, BUFFERS):
            for name, tensor in table_entries(attributes, table):
                # not FSDP's shards: FSDP replaces them by plain tensors in the call, and supports checkpoints
                if id(type(tensor)) in _TENSORS:
                    found[name] = self._storages.ledger.watched_number(tensor, False)
        return found

    def _holds_storage_from(self, number: int, value: Any) -> bool:
        waiting, seen = [value], {id(value)}
        number_of = self._storages.ledger.watched_number
        while waiting:
            for each in gc.get_referents(waiting.pop()):
                if id(each) in seen:
                    continue
                if is_a(each, torch.Tensor):
                    if type(each) is torch.Tensor and number_of(each, False) >= number:
                        return True
                elif gc.is_tracked(each) and not _is_no_state(each):
                    seen.add(id(each))
                    waiting.append(each)
            if len(seen) > _MOST_OBJECTS:
                return False
        return False


class Modes:
    """Note modules that change between training mode and evaluation mode after a call that built a graph.

    A checkpoint runs the forward of a module again, in the mode that the module has during the backward. So memwatch
    compares the modes at calls that build a graph and at the beginning of a backward.
    """

    def __init__(self, op_counter: OpCounter) -> None:
        self.rows = Rows()
        self._op_counter = op_counter
        self._is_training: dict[int, bool] = {}  # the last known mode, by the module's number
        self._called: dict[int, weakref.ref[nn.Module]] = {}

    def called(self, module: nn.Module, number: int) -> None:
        """Note the mode of a module that is called."""
        if (
            module_dict(module).get("training") is not self._is_training.get(number)
            and torch.is_grad_enabled()
            and current_graph_task_id() == NO_TASK
        ):
            self._called[number] = weakref.ref(module)
            self._note(module, number)

    def look(self) -> None:
        """Note the modes of all modules that have been called, because a backward begins."""
        for number, reference in list(self._called.items()):
            module = reference()
            if module is None:
                del self._called[number]
            else:
                self._note(module, number)

    def _note(self, module: nn.Module, number: int) -> None:
        is_training = module_dict(module).get("training")
        if type(is_training) is bool and self._is_training.setdefault(number, is_training) != is_training:
            self._is_training[number] = is_training
            self.rows += ModeChangesRow(module=number, op=self._op_counter[0], training=int(is_training))


def _own_lists(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the lists that a module's own attributes lead to. Each comes with the name of the attribute."""
    seen: set[int] = set()
    for name, value in list((instance_dict(module) or {}).items()):
        waiting = [value] if name not in _OF_EVERY_MODULE else []
        left = _MOST_OBJECTS  # this counts numbers and texts too: a list may have a million words
        while waiting and left:
            left -= 1
            each = waiting.pop()
            if id(each) in seen or not gc.is_tracked(each) or is_a(each, torch.Tensor) or _is_no_state(each):
                continue
            seen.add(id(each))
            if id(type(each)) in _LISTS:
                yield name, each
            waiting += gc.get_referents(each)


def _observed(beneath: Callable[..., Any], block: object) -> Any:
    """Return the function that replaces torch's function for a module call.

    Another tool may still call it after the block. Then it only calls `beneath`.

    Args:
        beneath: the function that it replaces.
        block: an object that belongs to one block only.
    """

    def call_impl(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        context = _active[0] if _active else None
        try:
            depth = (
                None
                if context is None
                or context.block is not block
                or is_tracing()
                or _thread() != context.thread
                else len(context.running)
            )
        except MemoryError:  # the call is not noted
            depth = None
        if context is None or depth is None:
            return beneath(self, *args, **kwargs)
        try:
            try:
                if context.optimizing:  # either the step calls a closure, or it raised an error and is over
                    context.forget_failed_steps(sys._getframe(1))
                    depth = len(context.running)
                context.enter(self, args, kwargs)
            except MemwatchError:  # the limit that the program set
                raise
            except Exception as error:
                pass_on(error)
                context.could_not_record(class_name(type(self)), error)
            return beneath(self, *args, **kwargs)
        finally:
            context.leave(depth, self, args, kwargs)

    return call_impl


CALL_CODE: Final[CodeType] = _observed(module_call(), None).__code__
"""The code of our own frame around a module call. A recorded call stack ends at such a frame."""


class Context:
    """The running module calls and optimizer steps, and the roles of the storages that these own.

    Attributes that the recorder reads for every op are slots, because C++ reads slots without a look-up. For these see
    `memwatch.record.backend.CallContext`.

    Attributes:
        home: id of the thread that entered the block.
        calls: rows of the table `calls`.
        steps: rows of the table `steps`.
        running: the running module calls and optimizer steps, outermost first. Each entry has `top` and `optimizing`
            from before the call, the number of the module (-1 for an optimizer step), how many ops had started, and how
            many storages had been seen.
        before_forward: called before an outermost module call.
        block: an object that belongs to this block only.
    """

    __slots__ = (
        "__dict__",
        "__weakref__",
        "graph_task",
        "optimizing",
        "recomputing",
        "saves_inputs",
        "thread",
        "top",
    )

    def __init__(
        self,
        storages: Storages,
        capture_stack: CaptureStack,
        strings: Strings,
        op_counter: OpCounter,
        could_not_record: Callable[[str, Exception], None],
    ) -> None:
        self.top: tuple[int, int] = _OUTSIDE
        self.optimizing = False
        self.graph_task = NO_TASK
        self.recomputing = NOTHING
        self.recomputes_by_hand = recomputes_by_hand
        self.saves_inputs = self.is_asleep = False
        self.home = self.thread = _thread()
        self.calls = Rows()
        self.steps = Rows()
        self._storages = storages
        self._capture_stack = capture_stack
        self._strings = strings
        self._op_counter = op_counter
        self.running: list[tuple[tuple[int, int], bool, int, int, int]] = []
        self.changed_arguments = ChangedArguments(storages)
        self.modes = Modes(op_counter)
        self.could_not_record = could_not_record = weak_callback(could_not_record)
        self._harmless = Harmless(could_not_record, "a call of a module or an optimizer")
        self.roles = Roles(storages, strings, op_counter)
        self.owners = Owners(storages, strings, self.roles, self._harmless)
        self._known = self.owners.registry.known
        self.gradients = Gradients(self.roles, self.owners, could_not_record)
        self.role_ends = RoleEnds(self.roles, self.owners, self.gradients, self._harmless)
        self._handles: list[Any] = []
        self._patches = Patches()
        self.recomputes = Recomputes(self, storages, capture_stack, op_counter, could_not_record)
        self._born_before_step = 0
        self._step_code: CodeType | None = None
        self.before_forward: Callable[[], None] | None = None
        self._on_step_end: Callable[[object], None] | None = None
        self._on_root_call: Callable[[object], None] | None = None
        self._on_torch_run_begin: Callable[[], None] | None = None
        self._on_torch_run_end: Callable[[], None] | None = None
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
        if hasattr(torch.utils, "weakref"):  # so that `swap_tensors` works on tensors that memwatch refers to
            self._patches.put_value(torch.utils, "weakref", REFERENCES_OF_OTHERS)
        self._patches.put_around(torch_optimizer.Optimizer, "__init__", self._optimizer_is_made)
        self.recomputes.start()
        self.resume()

    def stop(self) -> None:
        """Leave torch as it was before `start`."""
        _active.remove(self)
        self.gradients.stop()
        self.owners.close()
        self.recomputes.stop()
        self._patches.take_off()
        self.pause()

    def report_iterations_to(
        self,
        on_step_end: Callable[[object], None] | None = None,
        on_root_call: Callable[[object], None] | None = None,
    ) -> None:
        """Set the functions to call when an optimizer's step ends and when an outermost module is called.

        Without arguments, stop calling them.
        """
        self._on_step_end, self._on_root_call = on_step_end, on_root_call

    def report_torch_runs_to(
        self, on_begin: Callable[[], None] | None = None, on_end: Callable[[], None] | None = None
    ) -> None:
        """Set the functions to call when a run of torch's own code begins and when it ends.

        No code of the program runs meanwhile. Such a run is a backward or the step of an optimizer. If the backward
        recomputes a checkpointed region, the run ends before the region and a new run begins after it. Without
        arguments, stop calling the functions.
        """
        self._on_torch_run_begin, self._on_torch_run_end = on_begin, on_end
        self.gradients.on_begin, self.gradients.on_end = on_begin, on_end
        self.recomputes.on_begin, self.recomputes.on_end = on_end, on_begin

    def resume(self) -> None:
        """See module calls and optimizer steps again."""
        # otherwise another tool has replaced the function since, and its function may call ours
        if module_call() is self._beneath:
            set_module_call(self._call_impl)
        self._handles = [
            torch_optimizer.register_optimizer_step_pre_hook(self._step_starts),
            torch_optimizer.register_optimizer_step_post_hook(self._step_ended),
        ]

    def pause(self) -> None:
        """Stop seeing module calls and optimizer steps: at the end of the block, or while compiled code runs.

        dynamo checks that torch's function for a module call is the same as when it compiled the code. If it finds
        ours, it compiles the code again.
        """
        if module_call() is self._call_impl:
            set_module_call(self._beneath)
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def sleep(self) -> None:
        """Stop seeing module calls, because the schedule skips the next step. Still report ends of optimizer steps."""
        if current_graph_task_id() == NO_TASK:  # otherwise a hook of a running backward ended the step
            self.backward_ended()
        self.is_asleep = True
        if module_call() is self._call_impl:
            set_module_call(self._beneath)

    def wake(self) -> None:
        """See module calls and optimizer steps again, and note the roles that have changed meanwhile."""
        self.is_asleep = False
        if module_call() is self._beneath:
            set_module_call(self._call_impl)
        with self._harmless:
            for role, tensor, words, module in (*self.owners.in_roles(), *self.gradients.in_role()):
                if words and role != STEPPED:
                    self.roles.note_watched(tensor, role, module, *words)
            self.role_ends.look(sys._getframe(1))

    def place(self) -> tuple[int, int]:
        """Return the number of the running module and the number of the running call stack."""
        module, outer = self.top
        return module, self._capture_stack(outer, NONE)

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that a module call begins."""
        known = self._known.get(id(module))
        if known is not None and known[0]() is module:
            number = known[1]
        else:
            number = self.owners.registry.meet(module, self.top[0], sys._getframe(2))
        if self.top[0] == NONE:  # no module runs, but an optimizer's step may be calling its closure
            if self.before_forward is not None:
                self.before_forward()
            if self._on_root_call is not None:
                self._on_root_call(module)
            # In a backward, a hook or a recomputation makes the call. Its arguments are not inputs of the program.
            if current_graph_task_id() == NO_TASK:
                self._note_inputs(module, (*args, *kwargs.values()))
        stack = self._capture_stack(self.top[1], NONE, 3)
        self.running.append((self.top, self.optimizing, number, self._op_counter[0], self._storages.count))
        self.top = (number, stack)
        self.optimizing = False
        self.modes.called(module, number)
        if self.changed_arguments.may_change(number):
            with self._harmless:
                self.changed_arguments.note_state(number, module)

    def leave(self, depth: int, called: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that the module call at index `depth` of `running` has ended.

        Deeper entries are calls that ended in an exception. Remove them too.
        """
        try:
            if len(self.running) <= depth:
                return
            top, optimizing, module, start_op, born_before = self.running[depth]
            del self.running[depth:]
            self.top, self.optimizing = top, optimizing
            if module != NONE:
                self.calls += (module, start_op, self._op_counter[0], depth)
                if self.changed_arguments.may_change(module):
                    with self._harmless:
                        values = (*args, *kwargs.values())
                        self.changed_arguments.examine(module, called, values, born_before)
        except MemoryError as error:
            self.could_not_record("a call of a module", error)

    def _optimizer_is_made(self, optimizer: Any, *_: Any, **__: Any) -> None:
        with self._harmless:
            self.owners.note_making(optimizer, sys._getframe(1))

    def _step_starts(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        with self._harmless:
            if self.is_its_thread and not self.is_asleep and not is_tracing():
                self._note_step_starts(optimizer, sys._getframe(1))

    def _note_step_starts(self, optimizer: Any, caller: FrameType) -> None:
        self._step_code = caller.f_code
        self.forget_failed_steps(caller.f_back)
        with self._harmless:
            stepped = self.owners.learn_parameters(optimizer, caller.f_back)
            if current_graph_task_id() == NO_TASK:  # otherwise a hook of a running backward calls this step
                self.backward_ended()
            self.gradients.note_of(stepped)
        self._born_before_step = self._storages.count
        self.running.append((self.top, self.optimizing, NONE, self._op_counter[0], self._storages.count))
        self.top = (self.top[0], self._capture_stack(self.top[1], NONE, 4))
        self.optimizing = True
        if self._on_torch_run_begin is not None:
            self._on_torch_run_begin()

    def _step_ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        with self._harmless:
            if self.is_its_thread and not is_tracing():
                self._note_step_ended(optimizer, sys._getframe(1))

    def _note_step_ended(self, optimizer: Any, caller: FrameType) -> None:
        if self.is_asleep:
            if self._on_step_end is not None:
                self._on_step_end(optimizer)
            return
        self.forget_failed_steps(caller)
        if self._on_torch_run_end is not None:
            self._on_torch_run_end()
        while self.running:
            top, optimizing, module, start_op, _ = self.running.pop()
            if module == NONE:
                self.top, self.optimizing = top, optimizing
                name = self._strings(f"{class_name(type(optimizer))}.step")
                self.steps += StepsRow(op=start_op, time_ticks=ticks(), name=name, end_op=self._op_counter[0])
                break
        with self._harmless:
            self._storages.record_deaths()  # first, so that temporaries of the step do not count as new state
            if self._storages.any_born_since(self._born_before_step):
                self.owners.learn_state(optimizer)
            if self._on_step_end is not None:
                self._on_step_end(optimizer)

    def forget_failed_steps(self, frame: FrameType | None) -> None:
        """Remove optimizer steps that ended in an exception, because torch then calls no hook.

        Args:
            frame: the innermost call of the program. Steps that are still running are among its callers.
        """
        begun = [place for place, call in enumerate(self.running) if call[2] == NONE]
        while begun and frame is not None:
            if frame.f_code is self._step_code:
                begun.pop(0)
            frame = frame.f_back
        if begun:
            self.top, self.optimizing = self.running[begun[0]][:2]
            del self.running[begun[0] :]

    @property
    def in_backward(self) -> bool:
        """Whether the last op belonged to a backward."""
        return self.graph_task != NO_TASK

    def look_at_gradients(self) -> None:
        """Note all present gradients, at the beginning and at the end of the block."""
        with self._harmless:
            self.gradients.note_all()
        self.backward_ended()

    def backward_begins(self) -> None:
        """Note that a backward begins in this thread."""
        with self._harmless:
            self.modes.look()
        self.gradients.backward_begins()

    def backward_ended(self) -> None:
        """Note that a backward has ended, and note its gradients if it raised an error.

        From now on, watch the storages that it made through their own Python objects.
        """
        self.graph_task = NO_TASK
        with self._harmless:
            self.gradients.note_reached()
            if current_graph_task_id() == NO_TASK:
                self._storages.rewatch()

    def look_again(self, failed: FrameType | None = None) -> None:
        """At the end of the block, search for modules that were never called, for gradients and for changed roles.

        Args:
            failed: the innermost frame of the error that ended the block, if any.
        """
        self.owners.look_again(failed)
        self.look_at_gradients()
        self.role_ends.look(sys._getframe())

    @property
    def is_its_thread(self) -> bool:
        """Whether the running thread is the thread that entered the block."""
        return _thread() == self.home

    def _note_inputs(self, module: nn.Module, values: tuple[Any, ...]) -> None:
        for tensor in tensors_in(values):
            self.roles.note(tensor, INPUT, f"input of {class_name(type(module))}")


def scan_existing(storages: Storages, context: Context) -> None:
    """Number each storage of a tensor that Python's gc finds. Name the modules and the states of optimizers."""
    tensors, modules, optimizers = _instances_of(gc.get_objects(), (Tensor, nn.Module, Optimizer))
    # Reading a tensor, such as the device of a fake one, must not call functions and modes of the program.
    with disable_torch_function(), disable_torch_dispatch():
        for tensor in tensors:
            _number(storages, tensor)
    # leave out modules whose construction has not reached `nn.Module.__init__`
    context.owners.learn_modules(
        (module for module in modules if PARAMETERS in module_dict(module)), sys._getframe()
    )
    for optimizer in optimizers:
        if is_whole(optimizer):
            with suppress(AttributeError, KeyError, TypeError):  # its construction may not have finished
                context.owners.learn_parameters(optimizer)
            context.owners.learn_state(optimizer)
    context.look_at_gradients()


def _instances_of(objects: Sequence[Any], bases: Sequence[type]) -> list[list[Any]]:
    """Return a list of objects for each base class. An object of several bases is in the first list only."""
    classes = Classes(objects)
    of_base: dict[type, list[int]] = {base: [] for base in bases}
    for number, cls in classes.by_id.items():
        base = next((base for base in bases if derives(cls, base)), None)
        if base is not None:
            of_base[base].append(number)
    return [[objects[place] for place in classes.places(ids).tolist()] for ids in of_base.values()]


def _number(storages: Storages, tensor: Tensor) -> None:
    try:
        for part in plain_parts(tensor):
            storages.number_of(part, NONE, BASELINE)
    except (RuntimeError, NotImplementedError, AttributeError, ValueError) as error:
        pass_on(error)
        return  # a wrapper that cannot be read yet gets its number when an op uses it
