"""Change every word that memwatch says, and nothing else.

With the environment variable below set, `conftest.py` calls `scramble` before any test runs. It rotates the letters of
all templates of `memwatch.words` and of the rows in `memwatch.kinds`; their placeholders stay. Whatever still works
then does not depend on English.
"""

from __future__ import annotations

import codecs
import dataclasses
import enum
import importlib
import pkgutil
import re
from typing import TYPE_CHECKING, Any, Final

import memwatch.words
from memwatch import kinds
from memwatch.kinds import edges, findings, holders, leaks, roles

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE: Final = "MEMWATCH_SCRAMBLED_WORDS"
KINDS: Final = (edges, findings, holders, leaks)
_NOT_WORDS: Final = ("text", "deleted_with", "for_each_call")
"""Fields of rows that are data: values of columns, and the name of another kind."""
_PLACEHOLDER: Final = re.compile(r"(\{[^{}]*\})")


def tables() -> Iterator[tuple[Any, str, Any]]:
    """Yield each table and template of the words package and of the kinds: where it is, its name, and itself."""
    yield kinds.edges, "OWNERS", kinds.edges.OWNERS
    for kind in (member for module in KINDS for each in _enums(module) for member in each):
        if isinstance(kind, kinds.holders.Inference):
            yield kind, "words", kind.words
        for field in dataclasses.fields(kind.row) if hasattr(kind, "row") else ():
            value = getattr(kind.row, field.name)
            if isinstance(value, str) and field.name not in _NOT_WORDS:
                yield kind.row, field.name, value
    for row in (*roles.ROLE_ROWS, *roles.CATEGORY_ROWS):
        for name in {"rule", "holder_words", "phrase", "meaning"} & {
            each.name for each in dataclasses.fields(row)
        }:
            if getattr(row, name) is not None:
                yield row, name, getattr(row, name)
    for info in pkgutil.iter_modules(memwatch.words.__path__, f"{memwatch.words.__name__}."):
        module = importlib.import_module(info.name)
        for name, value in list(vars(module).items()):
            if name.isupper() and isinstance(value, (str, dict, tuple)):
                yield module, name, value


def _enums(module: Any) -> list[type[enum.Enum]]:
    """Return the enums that a module defines."""
    return [
        each
        for each in vars(module).values()
        if isinstance(each, enum.EnumMeta) and each.__module__ == module.__name__
    ]


def texts(value: Any) -> Iterator[str]:
    """Yield the templates in a table."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from texts(part)
    elif isinstance(value, tuple):
        for part in value:
            yield from texts(part)


def literals(template: str) -> list[str]:
    """Return the parts of a template between its placeholders."""
    return _PLACEHOLDER.split(template)[::2]


def scramble() -> None:
    """Rotate the letters of all words."""
    for module, name, value in list(tables()):
        if isinstance(value, dict):
            value.update({key: _scrambled(part) for key, part in value.items()})
        elif dataclasses.is_dataclass(module):
            object.__setattr__(module, name, _scrambled(value))  # a row is frozen
        else:
            setattr(module, name, _scrambled(value))


def _scrambled(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_scrambled, value))
    if not isinstance(value, str):
        return value
    parts = _PLACEHOLDER.split(value)
    parts[::2] = [codecs.encode(part, "rot13") for part in parts[::2]]
    return "".join(parts)
