"""Look up private names of torch. If this torch lacks a name, use a fallback and remember the ability that suffers.

Also the versions of torch that memwatch supports. `reports/torches.md` has the results of the test runs.

| torch | here |
| --- | --- |
| torch.__version__ | require_known_torch(), is_older_than(major, minor) |
"""

from __future__ import annotations

import importlib
import operator
import re
from types import GetSetDescriptorType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch

from memwatch.errors import MemwatchError
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
ABSENT: Final = object()
_parts: Final[list[Part]] = []
FIRST: Final = (2, 11)
"""The oldest torch, as (major, minor), that the matrix of versions tests."""
LAST: Final = (2, 15)
"""The newest such torch."""


class NoSuchClass:
    """Replaces a class of torch. Nothing is an instance of it."""


class Part:
    """The names of torch that one ability of memwatch needs together.

    Args:
        lost: the ability that suffers if one of the names is missing, as the end of a sentence. Empty if the
            fallbacks are as good.

    Attributes:
        asked: the names that were looked up.
        lacking: the names among them that this torch lacks.
    """

    def __init__(self, lost: str) -> None:
        self.lost = lost
        self.asked: list[str] = []
        self.lacking: list[str] = []
        _parts.append(self)

    @property
    def complete(self) -> bool:
        """Whether this torch has every name that was looked up."""
        return not self.lacking

    def take(self, path: str, otherwise: T) -> T:
        """Return the object at a dotted path that starts with `torch`, or `otherwise` if there is none.

        The object itself is returned, not a wrapper, so that a call costs the same as in torch.
        """
        self.asked.append(path)
        found = find(path)
        if found is ABSENT:
            self.lacking.append(path)
            return otherwise
        return found  # type: ignore[no-any-return]  # torch's object has the fallback's type

    @property
    def sentence(self) -> str:
        """The sentence for the user: the missing names, and the ability of memwatch that suffers."""
        return f"torch {torch.__version__} has no {', '.join(self.lacking)}: {self.lost}"

    def require(self) -> None:
        """Raise MemwatchError if a name is missing."""
        if self.lacking:
            from memwatch.errors import MemwatchError

            raise MemwatchError(self.sentence)

    def required(self, path: str) -> Any:
        """Return the object at a path, or a function that raises MemwatchError when it is called."""
        return self.take(path, self._refuse)

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        self.require()

    def reader(self, path: str, otherwise: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function that reads a private attribute of an object, whatever its class overrides.

        Args:
            path: the attribute on a class or on an example, as `torch.Tensor._version`.
            otherwise: called with the object if the attribute is missing.
        """
        name = path.rpartition(".")[2]
        found: Any = self.take(path, None)
        if found is None:
            return otherwise
        is_field = isinstance(found, (GetSetDescriptorType, MemberDescriptorType))
        return found.__get__ if is_field else operator.attrgetter(name)


def find(path: str) -> Any:
    """Return the object at a dotted path that starts with `torch`. Import the modules on the way."""
    first, *names = path.split(".")
    place: Any = torch
    for name in names:
        first = f"{first}.{name}"
        found = getattr(place, name, ABSENT)
        if found is ABSENT:
            try:
                found = importlib.import_module(first)
            except Exception as error:
                # a module of torch may fail in any way if a dependency is not installed
                pass_on(error)
                return ABSENT
        place = found
    return place


def asked() -> list[str]:
    """Return every name that was looked up so far."""
    return [path for part in _parts for path in part.asked]


def missing() -> list[str]:
    """Return one sentence for each ability that suffers from a missing name."""
    return [part.sentence for part in _parts if part.lacking and part.lost]


def is_older_than(major: int, minor: int) -> bool:
    """Return True for a torch before that version. Use it only if nothing but the version can decide."""
    return _version() < (major, minor)


def require_known_torch() -> None:
    """Raise MemwatchError if memwatch does not support this version of torch.

    The private names and the C++ that memwatch uses change from version to version. A wrong figure without a warning is
    worse than an error.
    """
    if not FIRST <= _version() <= LAST:
        first, last = (".".join(map(str, version)) for version in (FIRST, LAST))
        raise MemwatchError(
            f"memwatch knows torch {first} to {last}, and this is torch {torch.__version__}: "
            "install a torch of these, or a memwatch that knows yours"
        )


def _version() -> tuple[int, int]:
    """Return major and minor version. Zeros if the text has none."""
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    return (0, 0) if found is None else (int(found[1]), int(found[2]))
