"""Record the inputs and results of an op that are not plain tensors: wrappers, sparse, nested, symbolic tensors.

Both recorders read plain tensors on their own and pass all others to `Operands`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

from memwatch.capture.schema import ACCESSES, NONE
from memwatch.record.clock import ticks
from memwatch.record.tables.parts import plain_parts
from memwatch.record.tables.storages import BASELINE, BY_OP, Storages, WatchedTensor, address_of, is_gone
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from memwatch.record.tables.rows import Table

OUTPUT: Final = ACCESSES.index("output")


class Operands:
    """Find the parts of an op's tensors, and append rows of `uses` for the storages of the parts."""

    def __init__(self, storages: Storages, uses: Table) -> None:
        self._storages = storages
        self._uses = uses

    def storages_of(self, tensor: Tensor) -> list[tuple[int, int]]:
        """Return the number and the address of every storage that holds bytes of an argument."""
        found = []
        for part in plain_parts(tensor):
            number = self._storages.number_of(part, NONE, BASELINE)
            if number != NONE:
                found.append((number, address_of(part)))
        return found

    def used(self, op: int, tensor: Tensor, access: int) -> None:
        """Append the use of an argument by an op."""
        for part in plain_parts(tensor):
            storage = self._storages.number_of(part, NONE, BASELINE)
            if storage != NONE:
                self._uses += (op, storage, access)

    def made(self, op: int, result: Any, given: Any) -> None:
        """Append the births of the storages that an op made.

        Args:
            op: its number.
            result: a tensor, or lists and tuples of tensors. Other objects are skipped.
            given: the arguments, or the addresses of their storages. A result may share a storage with an argument.
        """
        if isinstance(result, Tensor):
            for part in plain_parts(result):
                self._made_part(op, part, given)
        elif type(result) is tuple or type(result) is list:
            for item in result:
                self.made(op, item, given)

    def _made_part(self, op: int, part: Tensor, given: Any) -> None:
        storages = self._storages
        try:
            key = address_of(part)
        except (NotImplementedError, RuntimeError) as error:
            pass_on(error)
            key = 0
        if not key:
            storages.number_of(part, op, BY_OP)
            return
        known = storages.live.get(key)
        if known is None or is_gone(known) or (known.__class__ is WatchedTensor and not lies_in(key, given)):
            self._uses += (op, storages.born(part, key, op, BY_OP, ticks()), OUTPUT)

    def resized(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Append the resizes of the tensors given to an op that may give them another size."""
        for item in (*args, *kwargs.values()):
            if isinstance(item, Tensor):
                self._storages.resized(item)


def lies_in(key: int, given: Any) -> bool:
    """Return True if the storage at an address belongs to an argument. If not, an earlier storage had the address."""
    if isinstance(given, Tensor):
        try:
            return any(address_of(part) == key for part in plain_parts(given))
        except (NotImplementedError, RuntimeError) as error:
            pass_on(error)
            return False
    if type(given) is int:
        return bool(key == given)
    if type(given) is dict:
        given = given.values()
    elif type(given) is not list and type(given) is not tuple:
        return False
    return any(lies_in(key, item) for item in given)
