"""The line that makes an attribute of objects of another's class, as `layer.original_forward = layer.forward` does."""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Final

from memwatch.edges import Edge, EdgeKind
from memwatch.heap.class_checks import is_a
from memwatch.heap.names import GENERATED, function_of, instance_dict, stores_of
from memwatch.heap.tensors import type_dict
from memwatch.own_code import CodeOwner, code_owner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_OF_OBJECTS: Final = frozenset(
    {EdgeKind.ATTRIBUTE, EdgeKind.PARAMETER, EdgeKind.BUFFER, EdgeKind.SUBMODULE, EdgeKind.CLASS_ATTRIBUTE}
)
_READ: Final = (CodeOwner.PROGRAM, CodeOwner.INSTALLED)
"""Whose functions are read, in this order: torch and Python set few attributes of others' objects."""


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
    for code, own in _codes():
        stores = stores_of(code, name) if name in code.co_names else ()
        lines = [store.line for store in stores if store.owner is None or store.owner != own]
        if lines:
            found[code_owner(code.co_filename)][code] = lines[0]
    places = next((places for places in found.values() if places), {})
    return (
        next(((code.co_filename, line) for code, line in places.items()), None) if len(places) == 1 else None
    )


def _codes() -> Iterator[tuple[CodeType, str]]:
    """Yield the code of the functions in loaded modules of the program and of packages, inner functions included.

    Beside each is what a method calls its own object. What it assigns to that is an attribute of its own class.
    """
    for module in list(sys.modules.values()):
        values = instance_dict(module) if is_a(module, ModuleType) else None
        file = (values or {}).get("__file__")
        if values is None or (type(file) is str and code_owner(file) not in _READ):
            continue
        for value in list(values.values()):
            if is_a(value, type):
                for member in list(type_dict(value).values()):
                    parts = (member.fget, member.fset) if type(member) is property else (member,)
                    for code in _read(parts):
                        yield from _nested(code, code.co_varnames[0] if code.co_argcount else "")
            else:
                for code in _read([value]):
                    yield from _nested(code, "")


def _read(values: Iterable[object]) -> Iterator[CodeType]:
    for function in map(function_of, values):
        if type(function) is FunctionType:
            file = function.__code__.co_filename
            if file != GENERATED and code_owner(file) in _READ:
                yield function.__code__


def _nested(code: CodeType, own: str) -> Iterator[tuple[CodeType, str]]:
    yield code, own
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from _nested(constant, own)
