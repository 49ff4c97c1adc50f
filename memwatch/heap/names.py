"""Read names and attributes of objects, and find the source lines that assign attributes and global variables.

Nothing here runs code of the objects' classes.
"""

from __future__ import annotations

import dis
import functools
import itertools
import re
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from memwatch.heap.classes import ByClass, is_a
from memwatch.heap.tensors import mro_of, type_dict
from memwatch.own_code import CodeOwner, code_owner
from memwatch.program_text import compiled
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from memwatch.kinds.edges import Edge


# decorators of one function that are followed through `functools.wraps`; a guess
_MOST_DECORATORS: Final = 16
_IN_FUNCTION: Final = "<locals>"
GENERATED: Final = "<string>"
"""The `co_filename` of generated code, such as the `__init__` of a dataclass and the methods of a named tuple."""
_LOADS: Final = ("LOAD_FAST", "LOAD_DEREF")
_REBINDS: Final = ("STORE_FAST", "STORE_DEREF", "DELETE_FAST", "DELETE_DEREF")
_TYPE_NAME: Final = type.__dict__["__qualname__"].__get__
_WEAK_OFFSET: Final = type.__dict__["__weakrefoffset__"].__get__
_ITEM_SIZE: Final = type.__dict__["__itemsize__"].__get__
class_name: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__
"""Return the `__name__` of a class without running code of its metaclass."""


def type_name(cls: type) -> str:
    """Return the short qualified name of a class without running code of its metaclass."""
    name: str = _TYPE_NAME(cls)
    return short_qualname(name)


def short_qualname(qualname: str) -> str:
    """Return a qualified name without ``<locals>.``, which Python puts between a function and a name inside it."""
    return str.replace(qualname, "<locals>.", "")


def lacks_weak_slot(cls: type) -> bool:
    """Return True if `__weakref__` in `__slots__` would allow weak references to a class's objects, but is missing.

    Objects of variable size, such as tuples, can have no such slot: the result is False.
    """
    if _WEAK_OFFSET(cls) or _ITEM_SIZE(cls):
        return False
    return any(type_dict(base).get("__slots__") is not None for base in mro_of(cls))


def is_weak_key_class(cls: type) -> bool:
    """Return True if a `WeakKeyDictionary` can replace a dictionary whose keys are objects of a class.

    The objects must allow weak references and compare by identity. If they compare by value, a program can drop the key
    of an entry and look the entry up with an equal object. A `WeakKeyDictionary` would lose the entry with the key.
    """
    return bool(_WEAK_OFFSET(cls)) and all(
        next((base for base in mro_of(cls) if name in type_dict(base)), None) is object
        for name in ("__eq__", "__hash__")
    )


def class_place(cls: type) -> tuple[str | None, int | None]:
    """Return the file and line of the first method that a class defines; (None, None) for a class of only data."""
    for function, _ in _functions_of(cls):
        module = function.__module__
        if type(module) is str and module == _module_of(cls):
            return function.__code__.co_filename, function.__code__.co_firstlineno
    return None, None


def name_in_code(cls: type) -> str:
    """Return the name that a class has in its `class` statement, if a function made the class and renamed it.

    For example, a function may make a class for each argument and name it after the argument. The qualified names of
    the methods still contain the first name. Otherwise, and for a class of only data, the
    result is empty.
    """
    name: str = _TYPE_NAME(cls)
    for value in type_dict(cls).values():
        function = function_of(value)
        if type(function) is FunctionType and function.__module__ == _module_of(cls):
            # Python 3.10 has no `co_qualname`
            qualname: str = getattr(function.__code__, "co_qualname", function.__qualname__)
            written = qualname.rpartition(".")[0]
            return written if _IN_FUNCTION in written and written != name else ""
    return ""


class Assignment(NamedTuple):
    """The place where an attribute gets its value.

    Attributes:
        file: the source file. If the methods of the class never assign the attribute, it is the file of the class.
        line: the line in that file; None if the methods never assign the attribute.
        of_argument: True if the line stores an argument of its function unchanged. Then the caller has the value too.
    """

    file: str | None
    line: int | None
    of_argument: bool = False


_PLACES: Final[dict[int, tuple[weakref.ref[type], dict[str, Assignment]]]] = {}
"""The assignments found in each class. The key is the `id` of the class, because a class may be unhashable."""
_MOST_CLASSES: Final = 1_000
"""Classes that `_PLACES` has at most. A guess."""


def assignment_place(cls: type, name: str) -> Assignment:
    """Return where the methods of a class first assign an attribute something other than None.

    An assignment to an attribute of `self` wins over an assignment to an attribute of another object, which may have
    another class. If no method assigns the attribute, the result has the file of the class without a line. Results are
    cached, because a report about an optimizer needs the same few attributes a thousand times.
    """
    known = _PLACES.get(id(cls))
    if known is None or known[0]() is not cls:  # another class may have the address now
        if len(_PLACES) >= _MOST_CLASSES:
            _PLACES.clear()
        known = _PLACES[id(cls)] = weakref.ref(cls), {}
    found = known[1].get(name)
    if found is None:
        found = known[1][name] = _assignment_place(cls, name)
    return found


def _assignment_place(cls: type, name: str) -> Assignment:
    file = class_place(cls)[0]
    file = None if file == GENERATED else file
    to_others: Assignment | None = None
    of_none: Assignment | None = None
    for base in mro_of(cls):
        for function, own in _functions_of(base):
            code = function.__code__
            for store in stores_of(code, name) if name in code.co_names else ():
                found = Assignment(code.co_filename, store.line, store.of_argument)
                if found.file == GENERATED:
                    found = Assignment(file, None, store.of_argument)
                # Prefer a line that stores a value over a line that stores None, such as `self.last = None` in an
                # `__init__`. `of_argument` leads to the advice to make the reference weak. For an attribute that
                # begins as None this is wrong: in lightning's Trainer it freed nothing.
                if of_none is not None:
                    found = found._replace(of_argument=False)
                if store.of_none:
                    of_none = of_none or found
                elif store.owner is not None and store.owner == own:
                    return found
                else:
                    to_others = to_others or found
    return to_others or of_none or Assignment(file, None)


def _functions_of(cls: type) -> Iterator[tuple[FunctionType, str]]:
    """Yield the methods of a class and the functions of its properties, each with the name of its `self` argument."""
    for member in list(type_dict(cls).values()):
        for function in map(function_of, _called_by(member)):
            if type(function) is FunctionType:
                yield function, _name_of_self(function.__code__, member)


def _called_by(member: Any) -> tuple[Any, ...]:
    """Return the getter and setter of a property, the function of a cached property, or the member itself."""
    if type(member) is property:
        return member.fget, member.fset
    return (member.func,) if type(member) is functools.cached_property else (member,)


def function_of(value: Any) -> Any:
    """Return the function inside a static method, a class method or decorators; anything else unchanged."""
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
        owner: the `x` of `x.name = value`; None for any other expression, as in `f().name = value`.
        of_argument: True for the assignment of an unchanged argument of the function.
        of_none: True for the assignment of None.
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
            # the value is loaded before the owner
            of_none = [each.argval for each in before[-2:-1] if each.opname == "LOAD_CONST"] == [None]
            found.append(Store(place, owner, value in _arguments(code), of_none))
        before.append(instruction)
    return tuple(found)


def _variables_before(before: list[dis.Instruction]) -> tuple[str | None, str | None]:
    """Return the variables `x` and `value` of the statement `x.name = value`, each None for any other expression.

    Args:
        before: the instructions of the function before the `STORE_ATTR`.
    """
    names: list[str] = []  # the owner first: it is loaded last, and this reads backward
    through = 0  # attributes between the variable and the owner: 1 for `self.child.parent = parent`
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
    """Return the arguments that a function never rebinds. `*args` and `**kwargs` are not among them."""
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
    """Return the text of an object as a plain `str`, also if its class is a subclass of `str`; None for other objects.

    Callers compare only the result, because comparing the object itself could run its `__eq__` or `__hash__`.
    """
    if type(value) is str:
        return value
    return str.__str__(value) if is_a(value, str) else None


def instance_dict(obj: object) -> dict[str, Any] | None:
    """Return the attribute dictionary of an object, even if its class overrides `__dict__` or `__getattribute__`."""
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
"""Return the slots of a class, from a cache.

A class may have hundreds of entries. Without the cache, finding the slots took 83 us for each object of some classes.
"""


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


def in_ipython() -> bool:
    """Return True if an IPython shell runs this process. A program that merely imports IPython does not count."""
    ipython = sys.modules.get("IPython")
    get_ipython = getattr(ipython, "get_ipython", None)  # absent while another thread imports IPython
    return get_ipython is not None and get_ipython() is not None


_STORE_ATTR: Final = dis.opmap["STORE_ATTR"]
_OWNERS_TO_NAME: Final = (CodeOwner.PROGRAM, CodeOwner.INSTALLED)
"""Owners of the functions that a report can name as the place of an assignment. The first one with such functions wins.

torch and Python are left out, because they rarely set attributes on objects of other classes.
"""
_OTHER_OWNERS: Final = (CodeOwner.TORCH, CodeOwner.PYTHON)
"""If one of their functions assigns the attribute too, no place is named."""


def with_line(edge: Edge) -> Edge:
    """Add the line of the assignment to an attribute's edge without a line, if only one function can have made it."""
    if not edge.kind.row.is_attribute or edge.line is not None or not edge.name:
        return edge
    found = _only_assignment(edge.name, len(sys.modules))
    return edge if found is None else replace(edge, file=found[0], line=found[1])


@functools.lru_cache(maxsize=512)
def _only_assignment(name: str, modules: int) -> tuple[str, int] | None:
    """Return the file and line of the only function that assigns an attribute to an object of another class.

    Functions of the program are considered first, and functions of packages only if none of the program assigns it.
    In three cases the function is unknown and the result is None:

    - No function assigns the attribute. Its class may set it by `vars(self).update(values)`, for example.
    - Several functions do, or a function of torch or Python does too.
    - The only function is a package's, and sets the attribute of a local variable other than an argument. It probably
      made that object itself. Objects of the program's classes come to it as arguments.

    Args:
        name: the attribute.
        modules: number of loaded modules. It is used only in the cache's key: a result may change after an import.
    """
    # compare places and not codes: the codes of equal functions in two files are equal
    found: dict[CodeOwner, set[tuple[str, int]]] = {owner: set() for owner in _OWNERS_TO_NAME}
    made_inside: set[tuple[str, int]] = set()
    for code, store in _assignments(name, _CODES_TO_NAME.of_modules()):
        owner, place = code_owner(code.co_filename), (code.co_filename, store.line)
        found[owner].add(place)
        if (
            owner is CodeOwner.INSTALLED
            and store.owner in code.co_varnames
            and store.owner not in _arguments(code)
        ):
            made_inside.add(place)
    places = next((places for places in found.values() if places), set())
    if len(places) != 1 or places <= made_inside:
        return None
    if any(True for _ in _assignments(name, _CODES_OF_OTHERS.of_modules())):
        return None
    return next(iter(places))


def _assignments(name: str, codes: Iterable[tuple[CodeType, str]]) -> Iterator[tuple[CodeType, Store]]:
    """Yield each function that sets the attribute of an object other than its `self`, with the first such statement."""
    for code, own in codes:
        stores = stores_of(code, name) if _may_assign(code, name) else ()
        others = [store for store in stores if store.owner is None or store.owner != own]
        if others:
            yield code, others[0]


def _may_assign(code: CodeType, name: str) -> bool:
    """Return False if a function surely never sets the attribute. Disassembling it takes a hundred times as long."""
    # an instruction is two bytes: the operation, and the lowest byte of its argument
    return name in code.co_names and bytes((_STORE_ATTR, code.co_names.index(name) & 0xFF)) in code.co_code


class _Codes:
    """The code objects of all functions in the loaded modules, if certain owners wrote them.

    Functions inside functions are included. Each code object comes with the name of its first argument if it is a
    method, such as `self`, because a method may set attributes of its own object.

    The code objects are cached, because a report looks for many attributes, and many modules import the same function.
    With transformers loaded, the modules refer 255,000 times to one of 40,000 code objects of packages. To look for an
    attribute in these takes a twentieth of the time that reading all modules takes. A module is read again only when
    its number of names has changed.
    """

    def __init__(self, owners: tuple[CodeOwner, ...]) -> None:
        self._owners = owners
        self._known: dict[int, tuple[CodeType, str]] = {}
        self._read: dict[str, tuple[int, int]] = {}

    def of_modules(self) -> list[tuple[CodeType, str]]:
        """Return the code objects of all modules that are loaded now or were at an earlier call, each once."""
        for name, module in list(sys.modules.items()):
            values = instance_dict(module) if is_a(module, ModuleType) else None
            now = id(module), len(values or ())
            if values is not None and self._read.get(name) != now:
                self._read[name] = now
                self._known.update((id(code), (code, own)) for code, own in self._of_module(values))
        return list(self._known.values())

    def _of_module(self, values: dict[str, Any]) -> Iterator[tuple[CodeType, str]]:
        file = values.get("__file__")
        if type(file) is str and code_owner(file) not in self._owners:
            return
        for value in list(values.values()):
            if is_a(value, type):
                for member in list(type_dict(value).values()):
                    for code in _codes_of(_called_by(member), self._owners):
                        yield from _nested(code, _name_of_self(code, member))
            else:
                for code in _codes_of([value], self._owners):
                    yield from _nested(code, "")


_CODES_TO_NAME: Final = _Codes(_OWNERS_TO_NAME)
_CODES_OF_OTHERS: Final = _Codes(_OTHER_OWNERS)


def _name_of_self(code: CodeType, member: object) -> str:
    """Return the name of a method's `self` argument; "" for a static method and a function without arguments."""
    return "" if type(member) is staticmethod or not code.co_argcount else code.co_varnames[0]


def _codes_of(values: Iterable[object], owners: tuple[CodeOwner, ...]) -> Iterator[CodeType]:
    for function in map(function_of, values):
        if type(function) is FunctionType:
            file = function.__code__.co_filename
            if file != GENERATED and code_owner(file) in owners:
                yield function.__code__


def _nested(code: CodeType, own: str) -> Iterator[tuple[CodeType, str]]:
    yield code, own
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from _nested(constant, own)


# The rest of this file finds the line of a module that binds a global variable, because the user must edit that line.
#
# The current line of a running module does not help. It is a later line, such as the call of the optimizer's step.
_GLOBAL_STORES: Final = frozenset({dis.opmap["STORE_GLOBAL"]})
_STORES: Final = _GLOBAL_STORES | {dis.opmap["STORE_NAME"]}
_MODULES: Final = 16
"""Number of modules whose lines are remembered. A guess: few modules run at once."""
_BINDS: Final = re.compile(r"^(?:(?:class|def|async def) +(\w+)|(\w+) *(?::[^=\n]+)?=(?!=))", re.MULTILINE)
"""An unindented statement that binds a global variable, the first on its line."""
_LONGEST_SOURCE: Final = 1 << 21
"""Bytes. memwatch does not read a longer source file. To compile 1 MiB takes 0.2 s."""


def binding_line(code: CodeType, name: str, line: int) -> int | None:
    """Return the line of a running module that bound a global variable last.

    - If lines of the module's body bind the name, it is the last of them up to `line`. If all of them are below `line`,
      the module runs a loop again, and it is the last of all.
    - If only a function binds the name, with `global`, it is that line. If several lines of functions do, return None:
      any of them may have run last.
    - If no line of the module binds the name, another module does so, and the result is `line`.

    Args:
        code: the body of a module.
        name: the global variable.
        line: the module's current line.
    """
    lines = _lines_of(code).get(name)
    if lines:
        return max((bound for bound in lines if bound <= line), default=max(lines))
    lines = _lines_of_functions(code).get(name)
    return line if not lines else min(lines) if len(lines) == 1 else None


@functools.lru_cache(_MODULES)
def _lines_of(code: CodeType) -> dict[str, set[int]]:
    """Return the lines of a module's body that bind each name."""
    return _lines_binding(code, _STORES)


@functools.lru_cache(_MODULES)
def _lines_of_functions(code: CodeType) -> dict[str, set[int]]:
    """Return the lines of a module's functions that bind each global variable by a `global` statement."""
    found: dict[str, set[int]] = {}
    for inner, _ in itertools.islice(_nested(code, ""), 1, None):
        for name, lines in _lines_binding(inner, _GLOBAL_STORES).items():
            found.setdefault(name, set()).update(lines)
    return found


def _lines_binding(code: CodeType, stores: frozenset[int]) -> dict[str, set[int]]:
    """Return the lines that bind each name. Read the bytecode itself, because `dis` takes tens of times as long."""
    starts, raw = dict(dis.findlinestarts(code)), code.co_code
    found: dict[str, set[int]] = {}
    line, high = 0, 0  # `high`: the upper bytes of an argument, which EXTENDED_ARG instructions give first
    for offset in range(0, len(raw), 2):
        line = starts.get(offset) or line
        operation, low = raw[offset], raw[offset + 1]
        if operation in stores:
            found.setdefault(code.co_names[high | low], set()).add(line)
        high = (high | low) << 8 if operation == dis.EXTENDED_ARG else 0
    return found


def line_in_source(file: str, name: str, line: int) -> int | None:
    """Return the last line of an imported module that binds a global variable.

    Python drops the code object of a module's body after the import, so this reads the source file. If only functions
    bind the name, with `global`, the result is their line, or None if several lines do.

    Args:
        file: the source file.
        name: the global variable.
        line: the result if no statement binds the name.
    """
    found = _lines_in(file).get(name)
    if found is not None:
        return found
    # `_lines_in` finds only unindented statements, and only the first on a line. It misses `feats` in
    # `losses = []; feats = []`, and names that only functions bind.
    code = _code_of(file)
    if code is None:
        return line
    lines = _lines_of(code).get(name)
    return max(lines) if lines else binding_line(code, name, line)


@functools.lru_cache(_MODULES)
def _code_of(file: str) -> CodeType | None:
    """Compile a module's source again and return its body; None if the source is unreadable or has a syntax error."""
    source = _source_of(file)
    return compiled(source, file) if source else None


def _source_of(file: str) -> str:
    """Return the text of a source file. It is empty if the file is missing, too long, a pipe or not UTF-8."""
    try:
        path = Path(file)
        # `python <(...)` has a pipe as its file; reading it would take text away from the program
        is_source = path.is_file() and path.stat().st_size <= _LONGEST_SOURCE
        return path.read_text(encoding="utf-8") if is_source else ""
    except (OSError, ValueError) as error:
        pass_on(error)
        return ""


@functools.lru_cache(_MODULES)
def _lines_in(file: str) -> dict[str, int]:
    """Return the last line that binds each name. Search the text for unindented statements, the first of each line."""
    source = _source_of(file)
    found: dict[str, int] = {}
    line, position = 1, 0
    for match in _BINDS.finditer(source):
        line += source.count("\n", position, match.start())
        position = match.start()
        found[match[1] or match[2]] = line
    return found
