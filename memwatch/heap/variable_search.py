"""A search with a limit through the variables of the running calls. It finds objects, with an expression for each.

memwatch uses it to name modules and tensors. A module does not know its name. The program reaches it through a variable
or an attribute, and that expression is its name. The search also finds modules that never run: parents whose `forward`
the program does not call, and copies.
"""

from __future__ import annotations

import dis
import gc
from collections import deque
from itertools import islice
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from memwatch.heap.classes import ByClass, derives, is_a, of_classes
from memwatch.heap.frames import is_test_runner_code, read_locals
from memwatch.heap.roots import running
from memwatch.heap.shapes import (
    DEFINITIONS,
    exception_step,
    expressions_of,
    is_program_class,
    step_of,
    tensor_step,
)
from memwatch.own_code import CodeOwner, code_owner

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

_MAX_HOPS: Final = 3
"""References from a variable to a module that are followed. A guess."""
_MAX_ITEMS: Final = 64
"""Items of a dictionary or list that are visited. A guess."""
_MAX_OBJECTS: Final = 300
"""Objects that one call's search visits. A guess: a program keeps its models near its variables."""
_MAX_OBJECTS_OF_LIBRARIES: Final = 60
"""The same for a call of an installed package. A guess."""


class Way(NamedTuple):
    """One path from a variable of a running call to an object.

    Attributes:
        hops: number of references from the variable to the object; 0 for the value of the variable.
        name: the expression, such as `generator`, `self.gen` or `nets['g']`. If there is a holder, it begins there.
        value: the object.
        holder: the last module on the path before the object, if there is one.
    """

    hops: int
    name: str
    value: Any
    holder: nn.Module | None


def variables_of_calls(frame: FrameType | None, owner: CodeOwner) -> Iterator[Way]:
    """Yield the variables of the running calls of some code like `ways_from_calls`, without the objects behind them."""
    for variables in _scopes(frame, owner):
        for name, value in list(dict.items(variables)):
            if type(name) is str and not name.startswith("_"):
                yield Way(0, name, value, None)


def ways_from_calls(frame: FrameType | None, owner: CodeOwner) -> Iterator[Way]:
    """Yield the objects of the running calls of some code. A caller's variables come before its callees' variables.

    Args:
        frame: the innermost call.
        owner: the owner of the calls to search: the program or installed packages.
    """
    search = _Search(_MAX_OBJECTS if owner is CodeOwner.PROGRAM else _MAX_OBJECTS_OF_LIBRARIES)
    for variables in _scopes(frame, owner):
        yield from search.ways(variables)


def _scopes(frame: FrameType | None, wanted: CodeOwner) -> Iterator[dict[str, Any]]:
    """Yield the variables of each running call, the outermost first. Then yield the global variables of the program."""
    spaces: dict[int, dict[str, Any]] = {}
    for call in reversed(list(running(frame))):
        file = call.f_code.co_filename
        if code_owner(file) is not wanted or is_test_runner_code(file):
            continue
        if call.f_code.co_name != "<module>":
            yield read_locals(call)
        if wanted is CodeOwner.PROGRAM:
            spaces.setdefault(id(call.f_globals), call.f_globals)
    yield from spaces.values()


class NamesInCall(NamedTuple):
    """Expressions for some objects. One running call of the program can use them all.

    Attributes:
        function: the name of that call's function; empty for the body of a script.
        names: the expressions, by the `id` of the object. An object without an expression is left out.
        later_names: the same for objects that the line that runs now in this call has made. Code before this line
            cannot use these expressions yet.
    """

    function: str
    names: dict[int, str]
    later_names: dict[int, str]


class Making(NamedTuple):
    """The making of an object.

    Attributes:
        places: where the calls of the program were.
        function: the function of the program that made it, "" for the body of a script; None if a library made it.
    """

    places: frozenset[tuple[int, int, int]]
    function: str | None


def making_of(made: object, frame: FrameType | None) -> Making:
    """Return who makes an object, and where the program's calls are now.

    Args:
        made: the object, whose `__init__` runs.
        frame: the innermost call.
    """
    places, function, is_known = set[tuple[int, int, int]](), None, False
    for call in running(frame):
        owner = code_owner(call.f_code.co_filename)
        if owner is CodeOwner.PROGRAM:
            places.add(_place_of(call))
        if not is_known and owner.calls_torch and not _is_init_of(call, made):
            is_known, function = True, _function_of(call) if owner is CodeOwner.PROGRAM else None
    return Making(frozenset(places), function)


def _place_of(call: FrameType) -> tuple[int, int, int]:
    """Return a running call and its current instruction, without a reference to them."""
    return id(call), id(call.f_code), call.f_lasti


def _is_init_of(call: FrameType, made: object) -> bool:
    """Return True for the `__init__` of an object, which may be that of a subclass."""
    code = call.f_code
    return (
        code.co_name == "__init__"
        and code.co_argcount > 0
        and read_locals(call).get(code.co_varnames[0]) is made
    )


def _function_of(call: FrameType) -> str:
    """Return the name of a call's function; "" for the body of a script."""
    code = call.f_code
    return "" if code.co_name == "<module>" else getattr(code, "co_qualname", code.co_name)


_MAX_STEPS: Final = 2
"""References in an expression such as `self.trainer.model`. A guess."""


def names_in_one_call(
    objects: Iterable[Any], frame: FrameType | None, makings: Mapping[int, Making] | None = None
) -> NamesInCall:
    """Return expressions for some objects that the user can write in one function of the program.

    The function is that of the outermost call that can name all objects, or else that of the call that can name the
    most. An outer call is better because its lines run once, before the training loop of an inner call. A variable of a
    `for` loop has no value before the loop, so it is used only if no other expression leads to the object. An object
    that the current line of a call makes does not exist before this line. An example is an optimizer that a library
    makes when training begins.

    Args:
        objects: the objects.
        frame: the innermost call.
        makings: how some of the objects were made, by the `id` of the object.
    """
    wanted, makings = set(map(id, objects)), makings or {}
    best = NamesInCall("", {}, {})
    calls = list(running(frame))
    bodies = {id(call.f_globals): call.f_code for call in calls if call.f_code.co_name == "<module>"}
    for call in reversed(calls):
        file = call.f_code.co_filename
        if code_owner(file) is not CodeOwner.PROGRAM or is_test_runner_code(file):
            continue
        is_body = call.f_code.co_name == "<module>"
        body = bodies.get(id(call.f_globals))
        spaces = [] if is_body else [(read_locals(call), _bound_by_loops(call.f_code))]
        spaces.append((call.f_globals, _bound_by_loops(body) if body is not None else set()))
        names: dict[int, str] = {}
        all_variables: dict[str, Any] = {}
        for are_bound_by_loops in (False, True):
            for variables, bound in spaces:
                all_variables = {**variables, **all_variables}
                chosen = {
                    name: value
                    for name, value in list(dict.items(variables))
                    if _is_plain_name(name) and (name in bound) is are_bound_by_loops
                }
                names = {**_names_among(wanted - names.keys(), chosen), **names}
        place = _place_of(call)
        later = {each for each in names if each in makings and place in makings[each].places}
        later_names = {each: _of_outermost_optimizer(names.pop(each), all_variables) for each in later}
        if len(names) > len(best.names):
            best = NamesInCall(_function_of(call), names, later_names)
        if len(names) == len(wanted):
            break
    return best


def _bound_by_loops(code: CodeType) -> set[str]:
    """Return the variables that the `for` loops of some code assign, without the loops of inner functions.

    From Python 3.12 on, the variables of comprehensions are included.
    """
    bound: set[str] = set()
    is_target = False
    for each in dis.get_instructions(code):
        if each.opname == "FOR_ITER":
            is_target = True
        elif is_target and each.opname.startswith("STORE_"):
            # one instruction of Python 3.13 can store two variables, or store one and load another
            names = each.argval if isinstance(each.argval, tuple) else (each.argval,)
            bound.update(names[:1] if "LOAD" in each.opname else names)
        elif not each.opname.startswith(("UNPACK_", "EXTENDED_ARG", "CACHE")):
            is_target = False
    return bound


def _names_among(wanted: Collection[int], variables: dict[str, Any]) -> dict[int, str]:
    """Return the shortest expression, starting at some variables, for each wanted object.

    No code of the program runs.
    """
    found: dict[int, str] = {}
    is_open = ByClass(_is_open)
    waiting = deque((0, name, value) for name, value in list(dict.items(variables)) if _is_plain_name(name))
    budget = _MAX_OBJECTS
    seen: set[int] = set()
    while waiting and budget and len(found) < len(wanted):
        steps, name, value = waiting.popleft()
        if id(value) in wanted:
            found.setdefault(id(value), name)
        if steps < _MAX_STEPS and id(value) not in seen and is_open(type(value)):
            budget -= 1
            seen.add(id(value))
            waiting.extend(
                (steps + 1, f"{name}{step}", held) for step, held in expressions_of(value, _MAX_ITEMS)
            )
    return found


def _of_outermost_optimizer(name: str, variables: Mapping[str, Any]) -> str:
    """Return the first part of an optimizer's expression that leads to an optimizer: a library may wrap it in another.

    Args:
        name: the expression.
        variables: the variables that it may begin with.
    """
    held: Iterable[tuple[str, Any]] = list(variables.items())
    found = ""
    while found != name:
        steps = ((found + step, value) for step, value in held)
        found, value = next(
            ((step, value) for step, value in steps if _begins_with(name, step)), (name, None)
        )
        if is_a(value, Optimizer):
            break
        held = expressions_of(value, _MAX_ITEMS)
    return found


def _begins_with(name: str, start: str) -> bool:
    """Return True if the first references of an expression are those of another one."""
    return name.startswith(start) and name[len(start) :][:1] in ("", ".", "[")


def _is_plain_name(name: object) -> bool:
    return type(name) is str and not name.startswith("_")


class _Search:
    """One search. It visits each object once, from the variable that leads to it first: that of the outermost call."""

    def __init__(self, most_objects: int) -> None:
        self._most_objects = most_objects
        self._seen: set[int] = set()
        self._is_open = ByClass(_is_open)

    def ways(self, variables: dict[str, Any]) -> Iterator[Way]:
        """Yield the values of some variables, and the objects that they lead to."""
        waiting: deque[tuple[int, str, Any, nn.Module | None]] = deque(
            (0, name, value, None)
            for name, value in list(dict.items(variables))
            if type(name) is str and not name.startswith("_")
        )
        budget = self._most_objects
        while waiting and budget:
            hops, name, value, holder = waiting.popleft()
            yield Way(hops, name, value, holder)
            cls = type(value)
            is_module = derives(cls, nn.Module)
            if hops >= _MAX_HOPS or not self._may_open(value) or id(value) in self._seen:
                continue
            budget -= 1
            self._seen.add(id(value))
            if is_module:
                holder = value
            if is_module or cls is FunctionType:
                name = ""  # names begin anew at a module, and at the variables of an inner function
            waiting.extend(
                (hops + 1, f"{name}{step}", held, holder) for step, held in expressions_of(value, _MAX_ITEMS)
            )

    def _may_open(self, value: Any) -> bool:
        """Return True for an object that holds others under names that a program can write."""
        cls = type(value)
        if cls is FunctionType:
            return value.__closure__ is not None
        return is_program_class(value) if derives(cls, type) else self._is_open(cls)


def _is_open(cls: type) -> bool:
    step = step_of(cls, deep=True)
    return step is not None and step not in (tensor_step, exception_step, *DEFINITIONS)


def names_of_tensors(
    tensors: Iterable[Tensor], frame: FrameType | None, most_ways: int
) -> tuple[dict[int, str], int]:
    """Return the names of some tensors in the running calls, by `id`, such as `w`, `self.image` or `weights['in']`.

    The shortest path gives the name. If several paths are equally short, the outermost call gives it. An attribute of a
    module has the name of the attribute, without `self`. Only calls of the program are searched, not those of packages.

    Args:
        tensors: the tensors.
        frame: the innermost call.
        most_ways: largest number of objects that the search behind the variables yields.

    Returns:
        The names, and the number of objects that this search yielded.
    """
    wanted = set(map(id, tensors))
    names: dict[int, tuple[int, str]] = {}

    def note(ways: Iterable[Way]) -> int:
        count = 0
        for way in ways:
            count += 1
            key = id(way.value)
            if key in wanted and (key not in names or way.hops < names[key][0]):
                names[key] = way.hops, way.name.removeprefix(".")
        return count

    note(variables_of_calls(frame, CodeOwner.PROGRAM))  # takes a twentieth of the time of the second search
    followed = 0
    if len(names) < len(wanted):
        followed = note(islice(ways_from_calls(frame, CodeOwner.PROGRAM), max(most_ways, 0)))
    return {key: name for key, (_, name) in names.items()}, followed


_NAMES_NOBODY: Final = ("self", "cls")
"""Variables of methods. Their names say nothing about the object."""


class Sighting(NamedTuple):
    """One path from a variable of the program to a module.

    Attributes:
        module: the module.
        name: the expression, such as `generator`, `self.gen` or `nets['g']`. If there is a holder, it begins there.
        holder: the last module on the path before this module, if there is one.
    """

    module: nn.Module
    name: str
    holder: nn.Module | None = None


def find_modules(frame: FrameType | None, owner: CodeOwner) -> list[Sighting]:
    """Return the modules that the running calls of some code refer to, the best names first. Drop the list soon.

    Short paths come before long paths. Among equally short paths, the caller's variables come before those of the
    functions that it calls: `generator` in the training script says more than `net`, an argument of a function.

    Args:
        frame: the innermost call.
        owner: the owner of the calls to search: the program or installed packages.
    """
    found = [
        (way.hops, Sighting(way.value, way.name.removeprefix("."), way.holder))
        for way in ways_from_calls(frame, owner)
        if is_a(way.value, nn.Module) and (way.name not in _NAMES_NOBODY or way.hops)
    ]
    return [sighting for _, sighting in sorted(found, key=lambda each: each[0])]


def living_modules() -> list[nn.Module]:
    """Return every module of the process. Drop the list soon.

    This is one pass over the objects of gc, and takes tens of milliseconds.
    """
    return of_classes(gc.get_objects(), lambda cls: derives(cls, nn.Module))
