"""Read names and attributes of objects without running code of their classes, and find the lines that set them."""

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
"""The file of code that no file has: the `__init__` of a dataclass, and the methods of a named tuple."""
_LOADS: Final = ("LOAD_FAST", "LOAD_DEREF")
_REBINDS: Final = ("STORE_FAST", "STORE_DEREF", "DELETE_FAST", "DELETE_DEREF")
_TYPE_NAME: Final = type.__dict__["__qualname__"].__get__
_WEAK_OFFSET: Final = type.__dict__["__weakrefoffset__"].__get__
_ITEM_SIZE: Final = type.__dict__["__itemsize__"].__get__
class_name: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__
"""Return the `__name__` of a class without asking its metaclass."""


def type_name(cls: type) -> str:
    """Return the name of a class without asking its metaclass."""
    name: str = _TYPE_NAME(cls)
    return short_qualname(name)


def short_qualname(qualname: str) -> str:
    """Return a qualified name without the ``<locals>`` that Python writes into it."""
    return str.replace(qualname, "<locals>.", "")


def lacks_weak_slot(cls: type) -> bool:
    """Return True for a class with `__slots__` that could have `__weakref__` among them, and has not.

    A class whose objects vary in size, as a tuple's, cannot have it.
    """
    if _WEAK_OFFSET(cls) or _ITEM_SIZE(cls):
        return False
    return any(type_dict(base).get("__slots__") is not None for base in mro_of(cls))


def is_weak_key_class(cls: type) -> bool:
    """Return True if a `WeakKeyDictionary` can keep objects of a class, and each of them equals itself alone.

    Where another object can equal a key, a lookup is made with a new object. A weak entry for it dies at once.
    """
    return bool(_WEAK_OFFSET(cls)) and all(
        next((base for base in mro_of(cls) if name in type_dict(base)), None) is object
        for name in ("__eq__", "__hash__")
    )


def class_place(cls: type) -> tuple[str | None, int | None]:
    """Return the file and line of the first function defined in a class; (None, None) if it has only data."""
    for function, _ in _functions_of(cls):
        module = function.__module__
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


_PLACES: Final[dict[int, tuple[weakref.ref[type], dict[str, Assignment]]]] = {}
"""The assignments that were found in each class, by its id. A class may be unhashable, so it is no key itself."""
_MOST_CLASSES: Final = 1_000
"""Classes that `_PLACES` has at most. A guess."""


def assignment_place(cls: type, name: str) -> Assignment:
    """Return where the methods of a class first assign an attribute something other than None.

    An assignment to `self` comes before one to another object, which may be of another class. The file is None for a
    class without functions of its own. A report about an optimizer asks for the same few attributes a thousand times.
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
                # Return the line that stores the value, not the line `self.last = None` in an `__init__`. An attribute
                # that begins as None must not be made weak: in lightning's Trainer this freed nothing.
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
    """Yield the methods of a class and the functions of its properties, each with its name for its own object."""
    for member in list(type_dict(cls).values()):
        for function in map(function_of, _called_by(member)):
            if type(function) is FunctionType:
                yield function, _own_object(function.__code__, member)


def _called_by(member: Any) -> tuple[Any, ...]:
    """Return the functions of a property; any other member of a class as it is."""
    if type(member) is property:
        return member.fget, member.fset
    return (member.func,) if type(member) is functools.cached_property else (member,)


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


def in_ipython() -> bool:
    """Return True if an IPython shell runs this process. A program may only import IPython."""
    ipython = sys.modules.get("IPython")
    get_ipython = getattr(ipython, "get_ipython", None)  # absent while another thread imports IPython
    return get_ipython is not None and get_ipython() is not None


_STORE_ATTR: Final = dis.opmap["STORE_ATTR"]
_READ: Final = (CodeOwner.PROGRAM, CodeOwner.INSTALLED)
"""Whose functions are named, in this order: torch and Python set few attributes of others' objects."""
_OTHERS: Final = (CodeOwner.TORCH, CodeOwner.PYTHON)
"""Whose functions may have made the assignment instead."""


def with_line(edge: Edge) -> Edge:
    """Return a reference with the line that makes it where its class has none and one function alone is a candidate."""
    if not edge.kind.row.is_attribute or edge.line is not None or not edge.name:
        return edge
    found = _only_assignment(edge.name, len(sys.modules))
    return edge if found is None else replace(edge, file=found[0], line=found[1])


@functools.lru_cache(maxsize=512)
def _only_assignment(name: str, modules: int) -> tuple[str, int] | None:
    """Return the file and line of the one function of the program that assigns an attribute, else of the one package's.

    None if several functions do: which of them did is not known. A function of a package that makes the object itself
    did not: objects of other classes come to it as arguments. The object's class may get its attribute by other means,
    such as `vars(self).update(values)`.

    Args:
        name: the attribute.
        modules: how many modules are loaded; a later call with more of them reads their functions too.
    """
    # by place, because the code of a function equals the code of its copy in another file
    found: dict[CodeOwner, set[tuple[str, int]]] = {owner: set() for owner in _READ}
    made_inside: set[tuple[str, int]] = set()
    for code, store in _assignments(name, _CODES_READ.of_modules()):
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
    """Yield the functions that assign an attribute of an object that is not their own, and the first such statement."""
    for code, own in codes:
        stores = stores_of(code, name) if _may_assign(code, name) else ()
        others = [store for store in stores if store.owner is None or store.owner != own]
        if others:
            yield code, others[0]


def _may_assign(code: CodeType, name: str) -> bool:
    """Return False if a function surely assigns no attribute of a name; disassembling it costs a hundred times more."""
    return name in code.co_names and bytes((_STORE_ATTR, code.co_names.index(name) & 0xFF)) in code.co_code


class _Codes:
    """The code of the functions of some owners in loaded modules, inner functions included.

    Each comes with a method's name for its own object, such as `self`: an assignment to it sets an attribute of its
    class. A module is read once, and again when its number of names has changed. A report needs many names, and many
    modules import one function. With transformers loaded, the modules have 255,000 codes of packages, 40,000 of them
    different. A search for a name in these takes a twentieth of the time to read all modules.
    """

    def __init__(self, owners: tuple[CodeOwner, ...]) -> None:
        self._owners = owners
        self._known: dict[int, tuple[CodeType, str]] = {}
        self._read: dict[str, tuple[int, int]] = {}

    def of_modules(self) -> list[tuple[CodeType, str]]:
        """Return the codes of all modules that are loaded now or were, each once."""
        for name, module in list(sys.modules.items()):
            values = instance_dict(module) if is_a(module, ModuleType) else None
            now = id(module), len(values or ())
            if values is not None and self._read.get(name) != now:
                self._read[name] = now
                self._known.update((id(code), (code, own)) for code, own in self._of(values))
        return list(self._known.values())

    def _of(self, values: dict[str, Any]) -> Iterator[tuple[CodeType, str]]:
        file = values.get("__file__")
        if type(file) is str and code_owner(file) not in self._owners:
            return
        for value in list(values.values()):
            if is_a(value, type):
                for member in list(type_dict(value).values()):
                    for code in _read(_called_by(member), self._owners):
                        yield from _nested(code, _own_object(code, member))
            else:
                for code in _read([value], self._owners):
                    yield from _nested(code, "")


_CODES_READ: Final = _Codes(_READ)
_CODES_OF_OTHERS: Final = _Codes(_OTHERS)


def _own_object(code: CodeType, member: object) -> str:
    """Return a method's name for its own object; "" for a function that is called without one."""
    return "" if type(member) is staticmethod or not code.co_argcount else code.co_varnames[0]


def _read(values: Iterable[object], owners: tuple[CodeOwner, ...]) -> Iterator[CodeType]:
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


# Where the text of a module gives a name its value: the line to edit of a global variable.
#
# The current line of a running module is another one when memwatch searches, such as the call of the optimizer's
# step.
_GLOBAL_STORES: Final = frozenset({dis.opmap["STORE_GLOBAL"]})
_STORES: Final = _GLOBAL_STORES | {dis.opmap["STORE_NAME"]}
_MODULES: Final = 16
"""Number of modules whose lines are remembered. A guess: few modules run at once."""
_BINDS: Final = re.compile(r"^(?:(?:class|def|async def) +(\w+)|(\w+) *(?::[^=\n]+)?=(?!=))", re.MULTILINE)
"""A statement at the beginning of a line that gives a name its value."""
_LONGEST_SOURCE: Final = 1 << 21
"""Bytes. memwatch does not read a longer source file. To compile 1 MiB takes 0.2 s."""


def binding_line(code: CodeType, name: str, line: int) -> int | None:
    """Return the line that gave a name its value: the last such line up to `line`, else the last of all.

    If only functions bind the name, with `global`, it is the line of the one that does. None if several lines of
    functions do: which of them ran last is not known.

    Args:
        code: the body of a module.
        name: the global variable.
        line: the module's current line. It is returned if no line of the module's text binds the name, because another
            module does so.
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
    """Return the lines of a module's functions that bind each global variable."""
    found: dict[str, set[int]] = {}
    for inner, _ in itertools.islice(_nested(code, ""), 1, None):
        for name, lines in _lines_binding(inner, _GLOBAL_STORES).items():
            found.setdefault(name, set()).update(lines)
    return found


def _lines_binding(code: CodeType, stores: frozenset[int]) -> dict[str, set[int]]:
    """Return the lines that bind each name; read from the bytes, because `dis` takes tens of times as long."""
    starts, raw = dict(dis.findlinestarts(code)), code.co_code
    found: dict[str, set[int]] = {}
    line, high = 0, 0
    for offset in range(0, len(raw), 2):
        line = starts.get(offset) or line
        operation, low = raw[offset], raw[offset + 1]
        if operation in stores:
            found.setdefault(code.co_names[high | low], set()).add(line)
        high = (high | low) << 8 if operation == dis.EXTENDED_ARG else 0
    return found


def line_in_source(file: str, name: str, line: int) -> int | None:
    """Return the line of an imported module's source that gives a name its value: the body itself is gone.

    None if several lines of functions do so with `global`.

    Args:
        file: the source.
        name: the global variable.
        line: returned where no statement binds the name.
    """
    found = _lines_in(file).get(name)
    if found is not None:
        return found
    code = _code_of(file)  # as for the second variable of `losses = []; feats = []`
    if code is None:
        return line
    lines = _lines_of(code).get(name)
    return max(lines) if lines else binding_line(code, name, line)


@functools.lru_cache(_MODULES)
def _code_of(file: str) -> CodeType | None:
    """Return the body of a module, compiled again; None for a text that cannot be read, or is no Python."""
    source = _source_of(file)
    return compiled(source, file) if source else None


def _source_of(file: str) -> str:
    """Return the text of a source file; empty if it is missing, is too long or is no text."""
    try:
        path = Path(file)
        # a script may come through a pipe
        is_source = path.is_file() and path.stat().st_size <= _LONGEST_SOURCE
        return path.read_text(encoding="utf-8") if is_source else ""
    except (OSError, ValueError) as error:
        pass_on(error)
        return ""


@functools.lru_cache(_MODULES)
def _lines_in(file: str) -> dict[str, int]:
    """Return the last line that binds each name."""
    source = _source_of(file)
    found: dict[str, int] = {}
    line, position = 1, 0
    for match in _BINDS.finditer(source):
        line += source.count("\n", position, match.start())
        position = match.start()
        found[match[1] or match[2]] = line
    return found
