"""Number the modules of the program. Record the parent of each module, and the program's name for each root.

The registry learns of a module when it is called, when an optimizer steps its parameters, or when the block begins. It
finds the module's tree through the variables of the running calls and the tables of modules (`_modules`). So it also
knows a parent that is never called, such as the Lightning module around `self.net`. It holds modules weakly.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from torch import nn

from memwatch._torch.modules import BUFFERS, MODULES, PARAMETERS
from memwatch.capture.rows import ModulesRow
from memwatch.capture.schema import NONE, PLACES_OF_MODULES
from memwatch.gc_pause import pause_gc, resume_gc
from memwatch.heap.classes import is_a
from memwatch.heap.frames import read_locals
from memwatch.heap.module_tables import module_dict, table_entries
from memwatch.heap.names import class_name
from memwatch.heap.roots import running
from memwatch.heap.variable_search import find_modules, living_modules
from memwatch.own_code import CodeOwner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType

    from memwatch.heap.variable_search import Sighting
    from memwatch.record.tables.rows import OpCounter, Rows, Strings

_MAX_SEARCHES: Final = 64
"""Searches for a module's name in one block. A guess."""
_MAX_SEARCHES_OF_CLASS: Final = 8
"""Such searches for one class. A guess: a loss that each step makes anew soon reaches it."""


class SearchBudget:
    """Limit the searches for modules, optimizers and leaves, in total and by class.

    Classes are held weakly and compared by `id`, so that no code of their metaclass runs.

    Args:
        most: the most searches of the block.
    """

    def __init__(self, most: int = _MAX_SEARCHES) -> None:
        self._count = 0
        self._most = most
        self._of_class: dict[int, tuple[weakref.ref[type], int]] = {}

    def spend(self, cls: type) -> bool:
        """Return True if another search for an object of a class is allowed, and count it."""
        count = self._count_of(cls)
        if count >= _MAX_SEARCHES_OF_CLASS or self._count >= self._most:
            return False
        self._count += 1
        self._of_class[id(cls)] = (weakref.ref(cls), count + 1)
        return True

    def found(self, cls: type) -> None:
        """Reset the count of a class, because its searches succeed."""
        self._of_class.pop(id(cls), None)

    def found_nothing(self, cls: type) -> None:
        """Stop the searches for a class, because a search for it found nothing."""
        self._of_class[id(cls)] = (weakref.ref(cls), _MAX_SEARCHES_OF_CLASS)

    def _count_of(self, cls: type) -> int:
        known = self._of_class.get(id(cls))
        return known[1] if known is not None and known[0]() is cls else 0


KNOWN, MOVED, FORMER = range(len(PLACES_OF_MODULES))
"""States of a row of `modules`, see `PLACES_OF_MODULES`."""


class ModuleRegistry:
    """Number modules and append rows of `modules`.

    Args:
        rows: rows of `modules`.
        strings: numbers for texts.
        on_new_module: called with each module that gets a number, and this number.
        budget: limits the searches of variables.
        op_counter: how many ops have started.

    Attributes:
        known: a weak reference to each module and its number, by `id`. A reader compares the module, since an `id` may
            be reused.
    """

    def __init__(
        self,
        rows: Rows,
        strings: Strings,
        on_new_module: Callable[[nn.Module, int], None],
        budget: SearchBudget,
        op_counter: OpCounter,
    ) -> None:
        self._rows = rows
        self._strings = strings
        self._on_new_module = on_new_module
        self._budget = budget
        self._op_counter = op_counter
        self.known: dict[int, tuple[weakref.ref[nn.Module], int]] = {}
        self._parents: list[int] = []
        self._names: list[str] = []
        self._classes: list[str] = []
        self._in_tables: set[tuple[str, int]] = set()
        self._former: set[int] = set()
        self._root_names: set[str] = set()
        self._of_class: dict[tuple[str, int, str], tuple[weakref.ref[nn.Module], int]] = {}
        self._half_made: set[int] = set()  # `id` of modules whose `__init__` runs; empty between calls
        self._has_scanned_heap = False

    def number_of(self, module: nn.Module) -> int:
        """Return the number of a module, -1 if it is not known."""
        known = self.known.get(id(module))
        return known[1] if known is not None and known[0]() is module else NONE

    def alive(self) -> Iterator[tuple[nn.Module, int]]:
        """Yield the known modules that are alive, with their numbers."""
        for reference, number in list(self.known.values()):
            module = reference()
            if module is not None:
                yield module, number

    def roots(self) -> dict[int, nn.Module]:
        """Return the living known modules that no other module holds, by number.

        Leave out a module if neither it nor a module in it has a parameter or a buffer.
        """
        return {
            number: module
            for module, number in self.alive()
            if self._parents[number] == NONE and _has_memory(module)
        }

    def alive_and_below(self) -> Iterator[tuple[nn.Module, int]]:
        """Yield the living known modules with their numbers, and unknown modules inside them with -1."""
        met: set[int] = set()
        for reference, number in reversed(list(self.known.values())):
            module = reference()
            if module is not None:
                yield module, number
                # most modules have no children, and listing them takes most of the time
                if _has_table(module):
                    yield from self._unknown_below(module, met)

    def _unknown_below(self, module: nn.Module, met: set[int]) -> Iterator[tuple[nn.Module, int]]:
        """Yield the unknown modules inside a module with -1, except those in `met`."""
        waiting = [module]
        while waiting:
            holder = waiting.pop()
            if holder is not module:
                yield holder, NONE
            for _, child in _children(holder):
                if id(child) not in met and self.number_of(child) == NONE:
                    met.add(id(child))
                    waiting.append(child)

    def note_moves(self) -> None:
        """Append a row for each module whose place has changed.

        If another table has it now, or its old table has it again, this is its place. If it has left its table and the
        module of that table is alive, it becomes a former module.
        """
        alive = list(self.alive())
        places: dict[int, list[tuple[str, int]]] = {number: [] for _, number in alive}
        for module, number in alive:
            for key, child in _children(module) if _has_table(module) else ():
                places.setdefault(self.number_of(child), []).append((key, number))
        for number, place in enumerate(zip(self._names, self._parents, strict=True)):
            found = places.get(number, [])
            if place in found and number not in self._former:
                continue
            if found:
                self._in_tables.update(found)
                self._correct(number, *(place if place in found else found[0]), state=MOVED)
            elif place in self._in_tables and place[1] in places and number not in self._former:
                self._former.add(number)
                self._append(number, FORMER)

    def meet(self, module: nn.Module, caller: int, frame: FrameType | None) -> int:
        """Return the number of a module that is called for the first time.

        Args:
            module: the module.
            caller: number of the module whose call is running, -1 for none.
            frame: the call that calls it.
        """
        self._half_made = _modules_in_construction(frame)
        try:
            if self._budget.spend(type(module)):
                self.learn((), frame)
                if self.number_of(module) == NONE:
                    self.learn((), frame, CodeOwner.INSTALLED)
                if self.number_of(module) == NONE and _has_memory(module):
                    self.learn_from_heap(without=module)
            if self.number_of(module) == NONE:
                # no holder was found, so it counts as a part of its caller
                self._register_tree(module, "", caller)
        finally:
            self._half_made = set()
        return self.number_of(module)

    def learn(
        self, modules: Iterable[nn.Module], frame: FrameType | None, owner: CodeOwner = CodeOwner.PROGRAM
    ) -> None:
        """Register the trees of some modules, and of all modules that the running calls' variables lead to.

        Args:
            modules: modules that are known to be alive.
            frame: the innermost call.
            owner: whose calls are searched: the program's, or installed packages'.
        """
        before = self._half_made
        self._half_made = before | _modules_in_construction(frame)
        pause = pause_gc()  # a collection now would run the program's finalizers in the middle of its call
        try:
            sightings = find_modules(frame, owner)
            everything = {id(module): module for module in modules}
            # a module lacks this table until its `__init__` calls `nn.Module.__init__`
            sightings = [each for each in sightings if PARAMETERS in module_dict(each.module)]
            for each in sightings:
                everything[id(each.module)] = each.module
                if each.holder is not None:
                    everything[id(each.holder)] = each.holder
            self._register(everything, sightings)
        finally:
            self._half_made = before  # these modules may die, and others get their `id`
            resume_gc(pause)

    def learn_from_heap(self, without: nn.Module | None = None) -> None:
        """Register all modules of the process. Do so only once per block, because it searches the whole heap.

        Args:
            without: the module that is called. It is registered only if another module holds it: otherwise `meet` makes
                it a part of its caller.
        """
        if not self._has_scanned_heap:
            self._has_scanned_heap = True
            self.learn(
                (
                    each
                    for each in living_modules()
                    if each is not without and PARAMETERS in module_dict(each)
                ),
                None,
            )

    def _register(self, modules: dict[int, nn.Module], sightings: list[Sighting]) -> None:
        held = _held_in(modules.values())
        roots = {key: module for key, module in modules.items() if key not in held}
        named = _names_of_roots(
            each for each in sightings if each.holder is None and id(each.module) in roots
        )
        in_modules = {id(each.module): each for each in reversed(sightings) if each.holder is not None}
        apart = []
        for key, module in roots.items():
            if key in in_modules and key not in named:
                apart.append(in_modules[key])
            else:
                self._register_tree(module, self._root_name(module, named.get(key, [])), NONE)
        # these lie in a plain list or attribute of another module, which had to get its number first
        for each in apart:
            parent = NONE if each.holder is None else self.number_of(each.holder)
            self._register_tree(each.module, each.name, parent)

    def _root_name(self, module: nn.Module, names: list[str]) -> str:
        """Return the first name that no other root has, or else the first name. Empty if there is none."""
        number = self.number_of(module)
        if number != NONE and (self._names[number] or self._parents[number] != NONE):
            return self._names[number]
        name = next((name for name in names if name not in self._root_names), names[0] if names else "")
        if name and _has_memory(module):
            self._root_names.add(name)
        return name

    def _register_tree(self, root: nn.Module, name: str, parent: int) -> None:
        """Number a module and all modules in it. A former root that now has a parent gets that parent."""
        waiting: list[tuple[nn.Module, str, int]] = [(root, name, parent)]
        visited: set[int] = set()
        while waiting:
            module, name, above = waiting.pop()
            number = self.number_of(module)
            if number == NONE:
                number = self._new(module, name, above)
            elif self._lacks_place(number) and (name, above) != (self._names[number], self._parents[number]):
                self._correct(number, name, above)
            self._note_class(number, module)
            if number in visited:
                continue
            visited.add(number)
            for key, child in reversed(list(_children(module))):
                waiting.append((child, key, number))
                self._in_tables.add((key, number))

    def _new(self, module: nn.Module, name: str, parent: int) -> int:
        kind = class_name(type(module))
        reference = weakref.ref(module)
        # a module without memory may share a number, but while its `__init__` runs it may still get parameters
        bare = id(module) not in self._half_made and not _has_memory(module)
        alike = self._alike(kind, parent, name) if bare else NONE
        if alike != NONE:  # it replaces a module of the same class at the same place: show both as one module
            self.known[id(module)] = (reference, alike)
            return alike
        number = len(self._parents)
        self._parents.append(parent)
        self._names.append(name)
        self._classes.append(kind)
        self.known[id(module)] = (reference, number)
        if bare:
            self._of_class[kind, parent, name] = reference, number
        self._append(number)
        self._on_new_module(module, number)
        return number

    def _alike(self, kind: str, parent: int, name: str) -> int:
        """Return the number of an earlier module without memory, of the same class and place; -1 if there is none.

        An earlier module that has parameters or buffers by now does not count.
        """
        known = self._of_class.get((kind, parent, name))
        if known is None:
            return NONE
        module = known[0]()
        return NONE if module is not None and _has_memory(module) else known[1]

    def _lacks_place(self, number: int) -> bool:
        """Return True for a module that may get a place later: a root, or a module with a known caller alone."""
        return self._parents[number] == NONE or not self._names[number]

    def _note_class(self, number: int, module: nn.Module) -> None:
        """Append a row if a module has another class than before: `register_parametrization` changes it."""
        kind = class_name(type(module))
        if kind != self._classes[number] and number not in self._former:
            self._classes[number] = kind
            self._append(number)

    def _correct(self, number: int, name: str, parent: int, state: int = KNOWN) -> None:
        """Give a module another name and parent, and append a row. Do nothing if the parent is inside the module."""
        above = parent
        while above != NONE:
            if above == number:
                return
            above = self._parents[above]
        self._names[number], self._parents[number] = name, parent
        self._former.discard(number)
        self._append(number, state)

    def _append(self, number: int, state: int = KNOWN) -> None:
        """Append a row with the present facts about a module."""
        name, kind = self._strings(self._names[number]), self._strings(self._classes[number])
        self._rows += ModulesRow(
            module=number,
            name=name,
            class_name=kind,
            parent=self._parents[number],
            op=self._op_counter[0],
            state=state,
        )


def _modules_in_construction(frame: FrameType | None) -> set[int]:
    """Return the `id` of each module whose `__init__` is running."""
    found: set[int] = set()
    for call in running(frame):
        code = call.f_code
        if code.co_name == "__init__" and code.co_argcount:
            made = read_locals(call).get(code.co_varnames[0])
            if is_a(made, nn.Module):
                found.add(id(made))
    return found


def _names_of_roots(sightings: Iterable[Sighting]) -> dict[int, list[str]]:
    """Return the names of each root, by `id`, the preferred name first.

    The variable of a running loop may hold one item of a list now and another item later. So an item is named as an
    item, such as `nets[0]`, if its neighbours have no variable of their own.
    """
    names: dict[int, list[str]] = {}
    items: dict[str, list[int]] = {}
    for each in sightings:
        names.setdefault(id(each.module), []).append(each.name)
        if each.name.endswith("]"):
            items.setdefault(_container(each.name), []).append(id(each.module))
    has_variable = {key for key, known in names.items() if not all(name.endswith("]") for name in known)}
    for known in list(names.values()):
        item = next((name for name in known if name.endswith("]")), "")
        if item and not has_variable.issuperset(items[_container(item)]):
            known.insert(0, item)
    return names


def _container(item: str) -> str:
    return item.rpartition("[")[0]


def _children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for key, child in table_entries(module_dict(module), MODULES):
        if is_a(child, nn.Module):
            yield key, child


def _has_table(module: nn.Module) -> bool:
    """Return True if the table of a module's children has entries or is not a plain dictionary."""
    table = module_dict(module).get(MODULES)
    return bool(table) if type(table) is dict else table is not None


def _held_in(modules: Iterable[nn.Module]) -> set[int]:
    """Return the `id` of every module that the tables of some modules hold, at any depth."""
    held: set[int] = set()
    waiting = list(modules)
    while waiting:
        for _, child in _children(waiting.pop()):
            if id(child) not in held:
                held.add(id(child))
                waiting.append(child)
    return held


def _has_memory(module: nn.Module) -> bool:
    """Return True if a module or a module in it has parameters or buffers."""
    waiting: list[Any] = [module]
    met: set[int] = set()
    while waiting:
        part = waiting.pop()
        attributes = module_dict(part)
        if table_entries(attributes, PARAMETERS) or table_entries(attributes, BUFFERS):
            return True
        if id(part) not in met:
            met.add(id(part))
            waiting += (child for _, child in _children(part))
    return False
