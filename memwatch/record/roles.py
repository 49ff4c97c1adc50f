"""The roles of storages: parameter, gradient, buffer of a collective and so on, each with a name.

`Owners` knows which modules own which parameters and buffers, which tensors optimizers step, and which tensors are
their state. It refers to the program's objects by weak references only.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor, nn, optim
from torch.nn import Parameter

from memwatch._torch.modes import disable_torch_function
from memwatch._torch.modules import BUFFERS, PARAMETERS
from memwatch.capture.schema import GRADIENT_PREFIX, NONE
from memwatch.heap.classes import is_a
from memwatch.heap.module_tables import is_whole, module_dict, optimizer_parts, table_entries
from memwatch.heap.names import class_name
from memwatch.heap.variable_search import Making, making_of, names_in_one_call, names_of_tensors
from memwatch.heap.vertices import key_text
from memwatch.kinds.roles import ROLES
from memwatch.own_code import CodeOwner
from memwatch.record.module_registry import ModuleRegistry, SearchBudget
from memwatch.record.tables.parts import plain_parts
from memwatch.record.tables.rows import Rows
from memwatch.record.tables.storages import BASELINE, Storages, address_of
from memwatch.signal_handlers import pass_on, suppress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, KeysView
    from types import FrameType

    from memwatch.record.harmless import Harmless
    from memwatch.record.tables.rows import OpCounter, Strings

(
    PARAMETER, BUFFER, GRADIENT, STATE, INPUT, UNSHARDED, UNSHARDED_GRADIENT, BUCKET, COMMUNICATION,
    AUTOCAST_COPY, STEPPED, REDUCER_MEMORY, SAVED_BY_POLICY,
) = range(len(ROLES))  # fmt: skip
NAMES: Final = {
    **dict.fromkeys((PARAMETER, BUFFER, STEPPED), "{}"),
    GRADIENT: f"{GRADIENT_PREFIX}{{}}",
    STATE: "{}.{}[{}]",
}
"""Templates for the names of storages, by role."""
InRole = tuple[int, Tensor, tuple[str, ...], int]
"""A tensor in a role: the role, the tensor, the words for the template in `NAMES`, and its module's number or -1."""
_PLAIN: Final = frozenset((id(Tensor), id(Parameter)))
_MAX_NAMED_OPTIMIZERS: Final = 8
"""A program with more of them has no line of its own for each. A guess."""
_AT_ONCE: Final = 64
"""Modules whose tables are read together. A guess."""
_MAX_SEARCHES_FOR_NAMES: Final = 512
"""Searches for the names of leaves in a block. Adversarial training makes new leaves in every step. A guess."""
_WAYS_AT_FIRST: Final = 200_000
_WAYS_PER_OP: Final = 20
"""References that all searches for names together may follow, at first and more with each op. Following a reference
takes about 10 us, and an op takes at least as long.

Without this limit, one of PyTorch's tests took 700 times as long as without memwatch. Its variables lead to 30,000
references, and each of its small backwards has new leaves.
"""


class Roles:
    """Append a row of `roles` for each new role of a storage.

    Args:
        storages: the storages that are alive.
        strings: numbers for texts.
        op_counter: how many ops have started.

    Attributes:
        rows: rows of `roles`.
    """

    def __init__(self, storages: Storages, strings: Strings, op_counter: OpCounter) -> None:
        self.rows = Rows()
        self.storages = storages
        self._strings = strings
        self.op_counter = op_counter
        self._known = storages.roles
        self._watched_number = storages.ledger.watched_number
        self._noted = 0

    def owns(self, storage: int) -> bool:
        """Return True for a storage that has any role but `INPUT`, so that a search for its holders is not needed."""
        return bool(self._known.get(storage, 0) & ~(1 << INPUT))

    def was_noted(self, role: int) -> bool:
        """Return True if any storage of the block ever had this role."""
        return bool(self._noted >> role & 1)

    def note_watched(
        self, tensor: Tensor, role: int, module: int, *words: str, op: int = NONE, watch_on: bool = False
    ) -> bool:
        """Note the role of a tensor. Return False if its storage is known to have the role already.

        This is cheap for a plain tensor whose storage is watched.

        Args:
            tensor: the tensor.
            role: its role.
            module: number of its module, -1 if there is none.
            words: the words for the template in `NAMES`.
            op: the first op with the new role, -1 for the next op.
            watch_on: whether the storage may be watched through a tensor that is gone, as after a backward. Then it is
                watched through its own Python object from now on.
        """
        number = self._watched_number(tensor, watch_on) if type(tensor) is Tensor else NONE
        if number == NONE:
            self.note(tensor, role, NAMES[role].format(*words), module, op)
            if watch_on:
                self._watch_parts(tensor)
        elif self._known.get(number, 0) >> role & 1:
            return False
        else:
            self.add(number, role, NAMES[role].format(*words), module, op=op)
        return True

    def note_again(self, tensor: Tensor, role: int, module: int, *words: str) -> None:
        """Note that a plain tensor still has a role that was noted before."""
        number = self._watched_number(tensor, True) if type(tensor) is Tensor else NONE
        if number != NONE:
            self.add(number, role, NAMES[role].format(*words), module)

    def _watch_parts(self, tensor: Tensor) -> None:
        with suppress(RuntimeError, NotImplementedError):
            for part in plain_parts(tensor):
                self._watched_number(part, True)

    def note(self, tensor: Tensor, role: int, name: str, module: int = NONE, op: int = NONE) -> None:
        """Note the role of a tensor's storages, if it is new to them."""
        with disable_torch_function():
            try:
                parts = list(plain_parts(tensor))
            except (RuntimeError, NotImplementedError) as error:
                pass_on(error)
                return
            for part in parts:
                storage = self.storages.number_of(part, NONE, BASELINE)
                if storage != NONE and not self._known.get(storage, 0) >> role & 1:
                    self.add(storage, role, name, module, op=op)

    def add(
        self, storage: int, role: int, name: str, module: int = NONE, *, lives: bool = True, op: int = NONE
    ) -> None:
        """Append a row for the role of a storage.

        Args:
            storage: number of the storage.
            role: its role.
            name: its name.
            module: number of its module, -1 if there is none.
            lives: whether the storage is alive. Only the roles of living storages are compared later.
            op: the first op with the role, -1 for the next op.
        """
        self._noted |= 1 << role
        if lives:
            self._known[storage] = self._known.get(storage, 0) | 1 << role
        self.rows += (storage, role, self._strings(name), self.op_counter[0] if op == NONE else op, module)


class KnownParameter(weakref.ref[Tensor]):
    """A weak reference to the Python object of a parameter. torch may give this object another tensor's content.

    Attributes:
        key: the `id` of the parameter.
        name: its name in its module or optimizer, or the name of a variable.
        module: number of its module, -1 if no module is known to own it.
        number: how many parameters were known before it.
    """

    __slots__ = ("key", "module", "name", "number")
    key: int
    name: str
    module: int
    number: int


class _ReferencesOfOthers:
    """A stand-in for the module `weakref` in torch's `swap_tensors`. It does not show memwatch's weak references.

    `swap_tensors` refuses a tensor that has weak references. memwatch does not replace the function itself, because the
    program may already refer to it.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(weakref, name)

    def getweakrefs(self, tensor: object) -> list[Any]:
        """Return the weak references to a tensor that are not memwatch's."""
        return [found for found in weakref.getweakrefs(tensor) if type(found) is not KnownParameter]


REFERENCES_OF_OTHERS: Final = _ReferencesOfOthers()


class Parameters:
    """A table of parameters by `id`. An entry lives as long as its parameter.

    When a parameter dies, its weak reference is appended to a deque. The entry is removed at the next call of a method.
    The callback is the deque's `append`, because a Python function would let a signal handler run.
    """

    def __init__(self) -> None:
        self._known: dict[int, KnownParameter] = {}
        self._dead_references: deque[weakref.ref[Tensor]] = deque()
        self._count = 0

    def __iter__(self) -> Iterator[KnownParameter]:
        """Iterate over the known parameters, oldest entry first."""
        self._forget_gone()
        return iter(list(self._known.values()))

    def find(self, tensor: Tensor) -> KnownParameter | None:
        """Return the entry of a parameter, or None."""
        known = self._known.get(id(tensor))
        return known if known is not None and known() is tensor else None

    def add(self, tensor: Tensor, name: str, module: int) -> None:
        """Add a parameter with its name, or rename it."""
        self._forget_gone()
        before = self.find(tensor)
        known = KnownParameter(tensor, self._dead_references.append)
        known.key, known.name, known.module = id(tensor), name, module
        known.number = self._count if before is None else before.number
        self._count += before is None
        self._known[known.key] = known

    def keys_of(self, tensors: Iterable[Tensor]) -> list[int]:
        """Return the keys of the tensors that are known parameters."""
        self._forget_gone()  # a new tensor may have the `id` of a dead parameter
        known = self._known
        return [key for key in map(id, tensors) if key in known]

    def are_known(self, tensors: list[Tensor]) -> bool:
        """Return True if all of some tensors are known."""
        self._forget_gone()
        return self._known.keys() >= set(map(id, tensors))

    def of_keys(self, keys: Iterable[int]) -> list[KnownParameter]:
        """Return the entries with some keys, oldest entry first."""
        self._forget_gone()
        known = self._known
        return sorted((known[key] for key in keys if key in known), key=_number)

    def clear(self) -> None:
        """Remove all parameters."""
        self._known.clear()

    def _forget_gone(self) -> None:
        gone, known = self._dead_references, self._known
        while gone:
            dead = gone.popleft()
            if isinstance(dead, KnownParameter) and known.get(dead.key) is dead:
                del known[dead.key]


def _number(known: KnownParameter) -> int:
    return known.number


class Owners:
    """Note the roles of the tensors that modules and optimizers own.

    Args:
        storages: the storages that are alive.
        strings: numbers for texts.
        roles: the table of roles.
        harmless: wraps code that runs inside the program's calls.

    Attributes:
        parameters: the known parameters.
        modules: rows of `modules`.
        registry: the known modules.
        expressions: the program's expressions for its optimizers and models, such as `self.optimizer`. The check of
            `expressions` in `memwatch.capture.check` describes the keys.
        is_all_adagrad: whether all optimizers are torch's own Adagrad, which takes sparse gradients.
        all_state_is_seen: False if an optimizer is a wrapper of another one. To read the state of a wrapper, its code
            would have to run.
    """

    def __init__(self, storages: Storages, strings: Strings, roles: Roles, harmless: Harmless) -> None:
        self._storages = storages
        self._roles = roles
        self._harmless = harmless
        self._budget = SearchBudget()
        self._budget_of_names = SearchBudget(_MAX_SEARCHES_FOR_NAMES)
        self._ways_followed = 0
        self._op_counter = roles.op_counter
        self.modules = Rows()
        self.registry = ModuleRegistry(self.modules, strings, self._own, self._budget, roles.op_counter)
        self.parameters = Parameters()
        self._stepped: dict[int, weakref.ref[Any]] = {}
        self._optimizers: dict[int, weakref.ref[Any]] = {}
        self._makings: dict[int, tuple[weakref.ref[Any], Making]] = {}
        self.expressions: dict[str, Any] = {}
        self.is_all_adagrad = False
        self.all_state_is_seen = True
        self._is_at_end = False

    def close(self) -> None:
        """Drop all weak references, because torch refuses to swap a tensor that has one."""
        self.parameters.clear()
        self._stepped.clear()
        self._makings.clear()

    def learn_modules(self, modules: Iterable[nn.Module], frame: FrameType | None) -> None:
        """Number and name the trees of modules, and note the roles of their parameters and buffers.

        Args:
            modules: modules that are alive.
            frame: the innermost call whose variables may name them.
        """
        self.registry.learn(modules, frame)

    def own(self, parameter: Tensor, name: str) -> None:
        """Note that a tensor is a parameter. Its gradient and its optimizer state then get its name."""
        if self.parameters.find(parameter) is None:
            self.parameters.add(parameter, name, NONE)
        self._roles.note(parameter, PARAMETER, *self.name_of(parameter))

    def name_of(self, parameter: Tensor) -> tuple[str, int]:
        """Return the name of a parameter and the number of its module. Empty and -1 if they are not known."""
        known = self.parameters.find(parameter)
        return ("", NONE) if known is None else (known.name, known.module)

    def look_again(self, failed: FrameType | None = None) -> None:
        """Search for modules that were never called, at the end of the block.

        Ops number the storages that they make. Other storages must get no number now, or they would count as alive at
        entry. So the tensors of these modules are not noted.

        Args:
            failed: the innermost call of the program that an exception ended. If the construction of a model failed,
                only variables of this call refer to the model. Many programs run out of memory there.
        """
        self._is_at_end = True
        with self._harmless:
            self.registry.learn((), failed or sys._getframe())
            if failed is not None:
                self.registry.learn_from_heap()

    def in_roles(self, among: KeysView[int] | None = None) -> Iterator[InRole]:
        """Yield the present parameters and buffers of modules. Then yield, for each optimizer, its tensors and state.

        A tensor in a module without a number has no words for a name.

        Args:
            among: addresses of storages. Modules whose tensors all lie at other addresses may be skipped.
        """
        modules = self.registry.alive_and_below()
        while together := list(islice(modules, _AT_ONCE)):
            tables = [module_dict(each) for each, _ in together]
            if among is None or _may_lie_in(tables, among):
                for attributes, (_, number) in zip(tables, together, strict=True):
                    yield from _in_tables(attributes, number)
        for reference in list(self._optimizers.values()):
            optimizer = reference()
            if optimizer is not None:
                for tensor in _stepped_by(optimizer):
                    name, owner = self.name_of(tensor)
                    yield STEPPED, tensor, (name,), owner
                yield from self._state_of(optimizer)

    def _own(self, module: nn.Module, number: int) -> None:
        """Note the roles of a module's own parameters and buffers."""
        if self._is_at_end:
            return
        attributes = module_dict(module)
        for key, tensor in _tensors_of(attributes, PARAMETERS):
            self._roles.note(tensor, PARAMETER, key, number)
            known = self.parameters.find(tensor)
            if known is None or known.module == NONE:
                self.parameters.add(tensor, key, number)
        for key, tensor in _tensors_of(attributes, BUFFERS):
            self._roles.note(tensor, BUFFER, key, number)

    def note_making(self, optimizer: Any, frame: FrameType | None) -> None:
        """Note where the program is while the `__init__` of an optimizer runs.

        Args:
            optimizer: the optimizer.
            frame: the innermost call.
        """
        if len(self._makings) >= _MAX_NAMED_OPTIMIZERS:
            self._makings = self._living_makings()
        if len(self._makings) < _MAX_NAMED_OPTIMIZERS:
            self._makings[id(optimizer)] = weakref.ref(optimizer), making_of(optimizer, frame)

    def _living_makings(self) -> dict[int, tuple[weakref.ref[Any], Making]]:
        """Return the makings of the optimizers that are alive. Another thread may make an optimizer meanwhile."""
        return {number: each for number, each in list(self._makings.items()) if each[0]() is not None}

    def learn_parameters(self, optimizer: Any, frame: FrameType | None = None) -> list[Tensor]:
        """Note that the tensors of an optimizer are parameters, and return them.

        Args:
            optimizer: the optimizer.
            frame: the call of its step. Its variables may lead to modules that are not known yet.
        """
        tensors = list(_stepped_by(optimizer))
        if self._has_stepped(optimizer) and self.parameters.are_known(tensors):
            return tensors
        if is_whole(optimizer):
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)
        else:
            self.all_state_is_seen = False
        if frame is not None:
            self._stepped[id(optimizer)] = weakref.ref(optimizer)
            with self._harmless:
                self._search(type(optimizer), tensors, frame)
            with self._harmless:
                self._note_expressions(frame)
        unknown = [tensor for tensor in tensors if self.parameters.find(tensor) is None]
        names = self._names_of(unknown, type(optimizer))
        for group, stepped in enumerate(_groups_of(optimizer)):
            for index, tensor in enumerate(stepped):
                # known parameters too: their memory may be new, for example after `module.half()`
                self.own(tensor, names.get(id(tensor), f"group{group}.param{index}"))
        return tensors

    def name_leaves(self, leaves: list[Tensor]) -> None:
        """Learn the names of autograd leaves that no module or optimizer has named, so that their `.grad` gets a role.

        A program may train a plain tensor. It may also train the parameters of a module that it never calls, such as a
        `ParameterList`. A leaf that no variable of the program leads to gets no name. It belongs to a library: the
        input of a checkpointed region is an example.

        Args:
            leaves: the leaves that a backward reaches.
        """
        find = self.parameters.find
        parameters: list[Tensor] = [leaf for leaf in leaves if type(leaf) is Parameter and find(leaf) is None]
        if parameters:
            with self._harmless:
                self._search(Parameter, parameters, sys._getframe())
        unknown = {id(leaf): leaf for leaf in leaves if id(type(leaf)) in _PLAIN and find(leaf) is None}
        for key, name in self._names_of(list(unknown.values()), Tensor).items():
            self.parameters.add(unknown[key], name, NONE)

    def _names_of(self, tensors: list[Tensor], cls: type) -> dict[int, str]:
        """Return the program's names of some tensors, by `id`. Empty if the budget of searches is spent.

        Args:
            tensors: the tensors.
            cls: the class of the optimizer that steps them, or of the tensors. Each class has a budget of its own.
        """
        names: dict[int, str] = {}
        if tensors and self._budget_of_names.spend(cls):
            with self._harmless:
                most_ways = _WAYS_AT_FIRST + _WAYS_PER_OP * self._op_counter[0] - self._ways_followed
                names, followed = names_of_tensors(tensors, sys._getframe(), most_ways)
                self._ways_followed += followed
        if names:
            self._budget_of_names.found(cls)
        return names

    def _note_expressions(self, frame: FrameType) -> None:
        """Note the program's expressions for its models and optimizers. Called at an optimizer's first step."""
        living = [each for each in (known() for known in self._stepped.values()) if each is not None]
        # A program may step each parameter in the backward with a copy of its optimizer. A copy has parameters only
        # during its step.
        optimizers = [each for each in living if any(_groups_of(each))]
        self.is_all_adagrad = bool(optimizers) and all(type(each) is optim.Adagrad for each in optimizers)
        roots = self.registry.roots()
        if len(optimizers) > _MAX_NAMED_OPTIMIZERS:
            return
        makings = {number: making for number, (_, making) in self._living_makings().items()}
        function, names, later_names = names_in_one_call([*optimizers, *roots.values()], frame, makings)
        nameless = [makings.get(id(each)) if id(each) not in names else None for each in optimizers]
        self.expressions = {
            "function": function,
            "optimizers": [names.get(id(each), "") for each in optimizers],
            "later_optimizers": [later_names.get(id(each), "") for each in optimizers],
            "made_in": ["" if making is None else making.function or "" for making in nameless],
            "made_by_library": [making is not None and making.function is None for making in nameless],
            "models": {str(number): names.get(id(root), "") for number, root in roots.items()},
        }

    def _search(self, cls: type, tensors: list[Tensor], frame: FrameType) -> None:
        """Search for the modules that own some tensors, unless all are known or the budget of searches is spent.

        Args:
            cls: the class of the optimizer that steps them, or of the tensors. Each class has a budget of its own. If a
                search finds nothing, the class gets no further search.
            tensors: the tensors.
            frame: the innermost call.
        """
        find = self.parameters.find
        unknown = sum(find(tensor) is None for tensor in tensors)
        if not unknown or not self._budget.spend(cls):
            return
        for owner in (CodeOwner.PROGRAM, CodeOwner.INSTALLED):
            if not self.parameters.are_known(tensors):
                self.registry.learn((), frame, owner)
        if not self.parameters.are_known(tensors):
            self.registry.learn_from_heap()
        if sum(find(tensor) is None for tensor in tensors) == unknown:
            self._budget.found_nothing(cls)

    def _has_stepped(self, optimizer: Any) -> bool:
        known = self._stepped.get(id(optimizer))
        return known is not None and known() is optimizer

    def learn_state(self, optimizer: Any) -> None:
        """Note the role of every tensor in the optimizer's state, named as ``adamw.exp_avg[layers.0.weight]``."""
        self._storages.record_deaths()
        for role, tensor, words, module in self._state_of(optimizer):
            self._roles.note_watched(tensor, role, module, *words)

    def _state_of(self, optimizer: Any) -> Iterator[InRole]:
        """Yield the tensors of an optimizer's own state."""
        kind = class_name(type(optimizer)).lower()
        _, states = optimizer_parts(optimizer)
        for parameter, state in () if states is None else list(dict.items(states)):
            known = self.parameters.find(parameter)
            owner, module = ("?", NONE) if known is None else (known.name, known.module)
            for slot, value in list(dict.items(state)) if is_a(state, dict) else ():
                text = slot if type(slot) is str else key_text(slot)
                for tensor in _items_or_itself(value):
                    if is_a(tensor, Tensor):
                        yield STATE, tensor, (kind, text, owner), module


def _items_or_itself(value: Any) -> Iterable[Any]:
    """Return the items of a list or tuple, or else the object alone."""
    for kind in (list, tuple):
        if is_a(value, kind):
            return list(kind.__iter__(value))
    return (value,)


def _tensors_of(attributes: dict[str, Any], table: str) -> list[tuple[str, Tensor]]:
    """Return the tensors in a table of a module, given by its attributes, each with its name."""
    return [
        (key, value)
        for key, value in table_entries(attributes, table)
        if id(type(value)) in _PLAIN or is_a(value, Tensor)
    ]


def _in_tables(attributes: dict[str, Any], number: int) -> list[InRole]:
    """Return the parameters and buffers in the tables of a module, given by its attributes."""
    return [
        (role, tensor, () if number == NONE else (key,), number)
        for role, name in ((PARAMETER, PARAMETERS), (BUFFER, BUFFERS))
        for key, tensor in _tensors_of(attributes, name)
    ]


def _may_lie_in(modules: list[dict[str, Any]], addresses: KeysView[int]) -> bool:
    """Return False if no tensor of some modules can have one of the addresses.

    A program may have tens of thousands of idle modules, so this checks many modules in few calls.

    Args:
        modules: the attributes of each module.
        addresses: addresses of storages.
    """
    found: list[Any] = [table for each in modules for table in (each.get(PARAMETERS), each.get(BUFFERS))]
    tables: list[dict[str, Any]] = [each for each in found if type(each) is dict or is_a(each, dict)]
    try:
        tensors = [each for each in chain.from_iterable(map(dict.values, tables)) if each is not None]
        are_plain = _PLAIN.issuperset(map(id, map(type, tensors)))
        return not (are_plain and addresses.isdisjoint(map(address_of, tensors)))
    except (RuntimeError, NotImplementedError, TypeError) as error:  # sparse, or changed meanwhile
        pass_on(error)
        return True


def _stepped_by(optimizer: Any) -> Iterator[Tensor]:
    for stepped in _groups_of(optimizer):
        yield from stepped


def _groups_of(optimizer: Any) -> Iterator[list[Tensor]]:
    groups, _ = optimizer_parts(optimizer)
    for group in groups or ():
        params: Any = dict.get(group, "params")
        yield [each for each in list.__iter__(params) if is_a(each, Tensor)] if is_a(params, list) else []
