"""The parameters that are known, each with its name and its module. They are held weakly."""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class KnownParameter(weakref.ref[Tensor]):
    """A weak reference to a parameter: to the object that a module has, whatever content torch swaps in.

    Attributes:
        key: its `id`.
        name: what it is called in its module, or in its optimizer.
        module: number of its module, -1 if none is known to own it.
        number: how many parameters were known before it.
    """

    __slots__ = ("key", "module", "name", "number")
    key: int
    name: str
    module: int
    number: int


class _ReferencesOfOthers:
    """The module `weakref` for torch's `swap_tensors`, which refuses tensors that anybody refers to weakly.

    A program may have had that function before the block began, so it is left as it is.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(weakref, name)

    def getweakrefs(self, tensor: object) -> list[Any]:
        """Return the weak references to a tensor that are not memwatch's."""
        return [found for found in weakref.getweakrefs(tensor) if type(found) is not KnownParameter]


REFERENCES_OF_OTHERS: Final = _ReferencesOfOthers()


class Parameters:
    """Know parameters by their `id`, for as long as they live.

    What notes a death is the `append` of a deque, and no function of Python's: see `memwatch.record.tables.storages`.
    """

    def __init__(self) -> None:
        self._known: dict[int, KnownParameter] = {}
        self._gone: deque[weakref.ref[Tensor]] = deque()
        self._count = 0

    def __iter__(self) -> Iterator[KnownParameter]:
        """Iterate over all that are known, in the order in which they became so."""
        self._forget_gone()
        return iter(list(self._known.values()))

    def find(self, tensor: Tensor) -> KnownParameter | None:
        """Return what is known of a parameter, None if nothing is."""
        known = self._known.get(id(tensor))
        return known if known is not None and known() is tensor else None

    def add(self, tensor: Tensor, name: str, module: int) -> None:
        """Know a parameter by a name from now on."""
        self._forget_gone()
        before = self.find(tensor)
        known = KnownParameter(tensor, self._gone.append)
        known.key, known.name, known.module = id(tensor), name, module
        known.number = self._count if before is None else before.number
        self._count += before is None
        self._known[known.key] = known

    def keys_of(self, tensors: Iterable[Tensor]) -> list[int]:
        """Return the keys of those tensors that are known parameters."""
        self._forget_gone()  # else an `id` may be that of another
        known = self._known
        return [key for key in map(id, tensors) if key in known]

    def are_known(self, tensors: list[Tensor]) -> bool:
        """Return True if every one of some tensors is known."""
        self._forget_gone()
        return self._known.keys() >= set(map(id, tensors))

    def of_keys(self, keys: Iterable[int]) -> list[KnownParameter]:
        """Return what is known of some parameters, in the order in which they became known."""
        self._forget_gone()
        known = self._known
        return sorted((known[key] for key in keys if key in known), key=_number)

    def clear(self) -> None:
        """Know none, and refer to none."""
        self._known.clear()

    def _forget_gone(self) -> None:
        gone, known = self._gone, self._known
        while gone:
            dead = gone.popleft()
            if isinstance(dead, KnownParameter) and known.get(dead.key) is dead:
                del known[dead.key]


def _number(known: KnownParameter) -> int:
    return known.number
