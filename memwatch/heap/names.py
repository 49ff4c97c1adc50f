"""Read names and attributes of objects without running code that their classes override."""

from __future__ import annotations

import dis
import functools
import sys
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from memwatch.heap.class_checks import ByClass, is_a
from memwatch.heap.tensors import mro_of, type_dict
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# decorators of one function that are followed through `functools.wraps`; a guess
_MOST_DECORATORS: Final = 16
_IN_FUNCTION: Final = "<locals>"
GENERATED: Final = "<string>"
"""The file of code that no file has: the `__init__` of a dataclass, and the methods of a named tuple."""
_LOADS: Final = ("LOAD_FAST", "LOAD_DEREF")
_REBINDS: Final = ("STORE_FAST", "STORE_DEREF", "DELETE_FAST", "DELETE_DEREF")
_TYPE_NAME: Final = type.__dict__["__qualname__"].__get__
class_name: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__
"""Return the `__name__` of a class without asking its metaclass."""


def type_name(cls: type) -> str:
    """Return the name of a class without asking its metaclass."""
    name: str = _TYPE_NAME(cls)
    return short_qualname(name)


def short_qualname(qualname: str) -> str:
    """Return a qualified name without the ``<locals>`` that Python writes into it."""
    return str.replace(qualname, "<locals>.", "")


def class_place(cls: type) -> tuple[str | None, int | None]:
    """Return the file and line of the first function defined in a class; (None, None) if it has only data."""
    for value in type_dict(cls).values():
        function = function_of(value)
        module = function.__module__ if type(function) is FunctionType else None
        if type(module) is str and module == _module_of(cls):
            return function.__code__.co_filename, function.__code__.co_firstlineno
    return None, None


def name_in_code(cls: type) -> str:
    """Return the name of a class in the code, if a function made the class and then renamed it.

    Functions that make a class for each of their arguments often name it after the argument. The qualified names of
    the methods keep the name in the code. Empty for a class that has its own name, or no method of its own.
    """
    name: str = _TYPE_NAME(cls)
    for value in type_dict(cls).values():
        function = function_of(value)
        if type(function) is FunctionType and function.__module__ == _module_of(cls):
            # of the code: Python 3.11
            qualname: str = getattr(function.__code__, "co_qualname", function.__qualname__)
            written = qualname.rpartition(".")[0]
            return written if _IN_FUNCTION in written and written != name else ""
    return ""


class Assignment(NamedTuple):
    """The place where an attribute gets its value.

    Attributes:
        file: source file; the file of the class if its methods never assign the attribute.
        line: line in that file; None if its methods never assign the attribute.
        of_argument: True if the line stores an argument of its function unchanged, so that the caller has the value
            too.
    """

    file: str | None
    line: int | None
    of_argument: bool = False


def assignment_place(cls: type, name: str) -> Assignment:
    """Return where the methods of a class first assign an attribute something other than None.

    The file is None for a class without functions of its own.
    """
    file = class_place(cls)[0]
    file = None if file == GENERATED else file
    assigned: Assignment | None = None
    for base in mro_of(cls):
        for function in map(function_of, list(type_dict(base).values())):
            if type(function) is FunctionType and name in function.__code__.co_names:
                for store in stores_of(function.__code__, name):
                    found = Assignment(function.__code__.co_filename, store.line, store.of_argument)
                    if found.file == GENERATED:
                        found = Assignment(file, None, store.of_argument)
                    if not store.of_none:
                        # Return the line that stores the value, not the line `self.last = None` in an `__init__`. An
                        # attribute that begins as None must not be made weak: in lightning's Trainer this freed
                        # nothing.
                        return found if assigned is None else found._replace(of_argument=False)
                    assigned = assigned or found
    return assigned or Assignment(file, None)


def function_of(value: Any) -> Any:
    """Return the function of a static method, of a class method, within decorators; anything else as it is."""
    value = value.__func__ if type(value) is staticmethod or type(value) is classmethod else value
    for _ in range(_MOST_DECORATORS):
        inner = value.__dict__.get("__wrapped__") if type(value) is FunctionType else None
        if type(inner) is not FunctionType:
            break
        value = inner
    return value


class Store(NamedTuple):
    """One statement that assigns an attribute.

    Attributes:
        line: its line.
        owner: the variable whose attribute it is; None for any other owner, such as the result of a call.
        of_argument: True if it stores an argument of the function as it is.
        of_none: True if it stores None.
    """

    line: int
    owner: str | None
    of_argument: bool
    of_none: bool


@functools.lru_cache(maxsize=1024)
def stores_of(code: CodeType, name: str) -> tuple[Store, ...]:
    """Return the statements of a function that assign an attribute."""
    line = 0
    found: list[Store] = []
    before: list[dis.Instruction] = []
    for instruction in dis.get_instructions(code):
        line = instruction.starts_line if type(instruction.starts_line) is int else line
        if instruction.opname == "STORE_ATTR" and instruction.argval == name:
            place = getattr(getattr(instruction, "positions", None), "lineno", None) or line
            owner, value = _variables_before(before)
            of_none = [each.argval for each in before[-2:-1] if each.opname == "LOAD_CONST"] == [None]
            found.append(Store(place, owner, value in _arguments(code), of_none))
        before.append(instruction)
    return tuple(found)


def _variables_before(before: list[dis.Instruction]) -> tuple[str | None, str | None]:
    """Return the variable whose attribute a `STORE_ATTR` after some instructions assigns, and the one it stores."""
    names: list[str] = []  # the owner is loaded last
    through = 0  # attributes between the variable and the owner: `self.child.parent = parent`
    for instruction in reversed(before):
        if instruction.opname.startswith(_LOADS):  # newer Pythons load two variables by one instruction
            loaded = instruction.argval
            names += reversed(loaded) if isinstance(loaded, tuple) else [loaded]
        elif not names and instruction.opname.startswith("LOAD_ATTR"):
            through += 1
        else:
            break
        if len(names) > 1:
            break
    owner = names[0] if names and not through else None
    return owner, names[1] if len(names) > 1 else None


@functools.lru_cache(maxsize=1024)
def _arguments(code: CodeType) -> frozenset[str]:
    """Return the arguments of a function that it does not give another value."""
    count = code.co_argcount + code.co_kwonlyargcount
    stored = {
        name
        for instruction in dis.get_instructions(code)
        if any(operation in instruction.opname for operation in _REBINDS)
        for name in (instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,))
    }
    return frozenset(code.co_varnames[:count]) - stored


def _module_of(cls: type) -> str | None:
    name = type_dict(cls).get("__module__")
    return name if type(name) is str else None


def plain_text(value: object) -> str | None:
    """Return a text, one of a subclass of `str` as a plain one; None for all else.

    To compare or look up anything else may run its `__eq__` and `__hash__`.
    """
    if type(value) is str:
        return value
    return str.__str__(value) if is_a(value, str) else None


def instance_dict(obj: object) -> dict[str, Any] | None:
    """Return the attribute dictionary of an object, whatever its class overrides."""
    for base in mro_of(type(obj)):
        descriptor = type_dict(base).get("__dict__")
        if type(descriptor) is GetSetDescriptorType or type(descriptor) is MemberDescriptorType:
            try:
                values = descriptor.__get__(obj)
            except (AttributeError, TypeError) as error:
                pass_on(error)
                return None
            return values if type(values) is dict else None
    return None


def _slots(cls: type) -> list[tuple[str, MemberDescriptorType]]:
    return [
        (name, descriptor)
        for base in mro_of(cls)
        for name, descriptor in list(type_dict(base).items())
        if type(descriptor) is MemberDescriptorType and type(name) is str and name != "__dict__"
    ]


_slots_of: Final = ByClass(_slots)
"""A class has hundreds of entries. A search for slots among them took 83 us for each object of some classes."""


def attributes(obj: object) -> Iterator[tuple[str, object]]:
    """Yield the values in an object's dictionary and slots; properties are not called."""
    yield from list((instance_dict(obj) or {}).items())
    for name, descriptor in _slots_of(type(obj)):
        for held in _in_slot(descriptor, obj):
            yield name, held


def _in_slot(descriptor: MemberDescriptorType, obj: object) -> tuple[object, ...]:
    """Return the value of a slot in a tuple; the tuple is empty if the slot was never set."""
    try:
        return (descriptor.__get__(obj),)
    except AttributeError as error:
        pass_on(error)
        return ()


def in_interactive_shell() -> bool:
    """Return True if IPython or the plain interactive interpreter runs this process."""
    return "IPython" in sys.modules or hasattr(sys, "ps1")
