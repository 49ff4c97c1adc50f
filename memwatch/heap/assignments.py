"""The line that makes an attribute or a global variable: the line to edit."""

from __future__ import annotations

import dis
import functools
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Final

from memwatch.heap.class_checks import is_a
from memwatch.heap.names import GENERATED, function_of, instance_dict, stores_of
from memwatch.heap.tensors import type_dict
from memwatch.kinds.edges import Edge, EdgeKind
from memwatch.own_code import CodeOwner, code_owner
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_OF_OBJECTS: Final = frozenset(
    {EdgeKind.ATTRIBUTE, EdgeKind.PARAMETER, EdgeKind.BUFFER, EdgeKind.SUBMODULE, EdgeKind.CLASS_ATTRIBUTE}
)
_STORE_ATTR: Final = dis.opmap["STORE_ATTR"]
_READ: Final = (CodeOwner.PROGRAM, CodeOwner.INSTALLED)
"""Whose functions are named, in this order: torch and Python set few attributes of others' objects."""
_OTHERS: Final = (CodeOwner.TORCH, CodeOwner.PYTHON)
"""Whose functions may have made the assignment instead."""


def with_line(edge: Edge) -> Edge:
    """Return a reference with the line that makes it where its class has none and one function alone is a candidate."""
    if edge.kind not in _OF_OBJECTS or edge.line is not None or not edge.name:
        return edge
    found = _only_assignment(edge.name, len(sys.modules))
    return edge if found is None else replace(edge, file=found[0], line=found[1])


@functools.lru_cache(maxsize=512)
def _only_assignment(name: str, modules: int) -> tuple[str, int] | None:
    """Return the file and line of the one function of the program that assigns an attribute, else of the one package's.

    None if several functions do: which of them did is not known.

    Args:
        name: the attribute.
        modules: how many modules are loaded; a later call with more of them reads their functions too.
    """
    found: dict[CodeOwner, dict[CodeType, int]] = {owner: {} for owner in _READ}
    for code, line in _assignments(name, _codes_of_modules(modules, _READ)):
        found[code_owner(code.co_filename)][code] = line
    places = next((places for places in found.values() if places), {})
    if len(places) != 1 or any(True for _ in _assignments(name, _codes_of_modules(modules, _OTHERS))):
        return None
    return next((code.co_filename, line) for code, line in places.items())


def _assignments(name: str, codes: Iterable[tuple[CodeType, str]]) -> Iterator[tuple[CodeType, int]]:
    """Yield the functions that assign an attribute of an object that is not their own, and the first line that does."""
    for code, own in codes:
        stores = stores_of(code, name) if _may_assign(code, name) else ()
        lines = [store.line for store in stores if store.owner is None or store.owner != own]
        if lines:
            yield code, lines[0]


def _may_assign(code: CodeType, name: str) -> bool:
    """Return False if a function surely assigns no attribute of a name; disassembling it costs a hundred times more."""
    return name in code.co_names and bytes((_STORE_ATTR, code.co_names.index(name) & 0xFF)) in code.co_code


@functools.lru_cache(maxsize=len((_READ, _OTHERS)))
def _codes_of_modules(modules: int, owners: tuple[CodeOwner, ...]) -> list[tuple[CodeType, str]]:
    """Return the results of `_codes`, each once. They are computed again when there are more modules.

    A report needs many names, and many modules import one function. With transformers loaded, `_codes` yields 255,000
    codes of packages, and this list has 40,000. A search for a name in it takes a twentieth of the time to make it.
    """
    return list({id(code): (code, own) for code, own in _codes(owners)}.values())


def _codes(owners: tuple[CodeOwner, ...]) -> Iterator[tuple[CodeType, str]]:
    """Yield the code of the functions of some owners in loaded modules, inner functions included.

    Each comes with a method's name for its own object, such as `self`: an assignment to it sets an attribute of its
    class.
    """
    for module in list(sys.modules.values()):
        values = instance_dict(module) if is_a(module, ModuleType) else None
        file = (values or {}).get("__file__")
        if values is None or (type(file) is str and code_owner(file) not in owners):
            continue
        for value in list(values.values()):
            if is_a(value, type):
                for member in list(type_dict(value).values()):
                    parts = (member.fget, member.fset) if type(member) is property else (member,)
                    for code in _read(parts, owners):
                        yield from _nested(code, _own_object(code, member))
            else:
                for code in _read([value], owners):
                    yield from _nested(code, "")


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
_STORES: Final = frozenset({dis.opmap["STORE_NAME"], dis.opmap["STORE_GLOBAL"]})
_MODULES: Final = 16
"""Number of modules whose lines are remembered. A guess: few modules run at once."""
_BINDS: Final = re.compile(r"^(?:(?:class|def|async def) +(\w+)|(\w+) *(?::[^=\n]+)?=(?!=))", re.MULTILINE)
"""A statement at the beginning of a line that gives a name its value."""
_LONGEST_SOURCE: Final = 1 << 21
"""Bytes. memwatch does not read a longer source file. A guess."""


def binding_line(code: CodeType, name: str, line: int) -> int:
    """Return the line that gave a name its value: the last such line up to `line`, else the last of all.

    Args:
        code: the body of a module.
        name: the global variable.
        line: the module's current line. It is returned if the module's own text does not bind the name, because a
            function does so with `global`.
    """
    lines = _lines_of(code).get(name, ())
    return max((bound for bound in lines if bound <= line), default=max(lines, default=line))


@functools.lru_cache(_MODULES)
def _lines_of(code: CodeType) -> dict[str, tuple[int, ...]]:
    """Return the lines that bind each name; read from the bytes, because `dis` takes tens of times as long."""
    starts, raw = dict(dis.findlinestarts(code)), code.co_code
    found: dict[str, set[int]] = {}
    line, high = 0, 0
    for offset in range(0, len(raw), 2):
        line = starts.get(offset) or line
        operation, low = raw[offset], raw[offset + 1]
        if operation in _STORES:
            found.setdefault(code.co_names[high | low], set()).add(line)
        high = (high | low) << 8 if operation == dis.EXTENDED_ARG else 0
    return {name: tuple(lines) for name, lines in found.items()}


def line_in_source(file: str, name: str, line: int) -> int:
    """Return the line of an imported module's source that gives a name its value: the body itself is gone.

    Args:
        file: the source.
        name: the global variable.
        line: returned where no statement at the beginning of a line binds the name.
    """
    return _lines_in(file).get(name, line)


@functools.lru_cache(_MODULES)
def _lines_in(file: str) -> dict[str, int]:
    """Return the last line that binds each name."""
    try:
        path = Path(file)
        # a script may come through a pipe
        is_source = path.is_file() and path.stat().st_size <= _LONGEST_SOURCE
        source = path.read_text(encoding="utf-8") if is_source else ""
    except (OSError, ValueError) as error:  # the file is missing, or is not text
        pass_on(error)
        return {}
    found: dict[str, int] = {}
    line, position = 1, 0
    for match in _BINDS.finditer(source):
        line += source.count("\n", position, match.start())
        position = match.start()
        found[match[1] or match[2]] = line
    return found
