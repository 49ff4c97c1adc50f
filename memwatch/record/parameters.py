"""The known parameters, each with its name and its module. They are held by weak references."""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class KnownParameter(weakref.ref[Tensor]):
    """A weak reference to a parameter object. torch may swap the content of the object.

    Attributes:
        key: its `id`.
        name: its name in its module, or in its optimizer.
        module: number of its module, -1 if none is known to own it.
        number: how many parameters were known before it.
    """

    __slots__ = ("key", "module", "name", "number")
    key: int
    name: str
    module: int
    number: int


class _ReferencesOfOthers:
    """The module `weakref` for torch's `swap_tensors`, without memwatch's weak references.

    `swap_tensors` refuses a tensor that has weak references. The function itself is not replaced, because the program
    may already hold it.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(weakref, name)

    def getweakrefs(self, tensor: object) -> list[Any]:
        """Return the weak references to a tensor that are not memwatch's."""
        return [found for found in weakref.getweakrefs(tensor) if type(found) is not KnownParameter]


REFERENCES_OF_OTHERS: Final = _ReferencesOfOthers()


class Parameters:
    """A table of parameters by `id`. An entry lives as long as its parameter.

    The callback of a death is the `append` of a deque, not a Python function. The reason is in
    `memwatch.record.tables.storages`.
    """

    def __init__(self) -> None:
        self._known: dict[int, KnownParameter] = {}
        self._gone: deque[weakref.ref[Tensor]] = deque()
        self._count = 0

    def __iter__(self) -> Iterator[KnownParameter]:
        """Iterate over the known parameters, in the order in which they became known."""
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
        known = KnownParameter(tensor, self._gone.append)
        known.key = id(tensor)
        known.name = name
        known.module = module
        known.number = self._count if before is None else before.number
        self._count += before is None
        self._known[known.key] = known

    def keys_of(self, tensors: Iterable[Tensor]) -> list[int]:
        """Return the keys of the tensors that are known parameters."""
        self._forget_gone()  # otherwise an `id` may belong to a dead parameter
        known = self._known
        return [key for key in map(id, tensors) if key in known]

    def are_known(self, tensors: list[Tensor]) -> bool:
        """Return True if all of some tensors are known."""
        self._forget_gone()
        return self._known.keys() >= set(map(id, tensors))

    def of_keys(self, keys: Iterable[int]) -> list[KnownParameter]:
        """Return the entries of some parameters, in the order in which they became known."""
        self._forget_gone()
        known = self._known
        return sorted((known[key] for key in keys if key in known), key=_number)

    def clear(self) -> None:
        """Remove all parameters."""
        self._known.clear()

    def _forget_gone(self) -> None:
        gone, known = self._gone, self._known
        while gone:
            dead = gone.popleft()
            if isinstance(dead, KnownParameter) and known.get(dead.key) is dead:
                del known[dead.key]


def _number(known: KnownParameter) -> int:
    return known.number
