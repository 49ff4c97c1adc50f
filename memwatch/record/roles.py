"""What the program uses a storage for: as a parameter, a gradient, a buffer of a collective, and under which name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch import Tensor

from memwatch._torch.overrides import disable_torch_function
from memwatch.capture.schema import GRADIENT_PREFIX, NONE, ROLES
from memwatch.record.tables.parts import address_or_zero, plain_parts
from memwatch.record.tables.rows import Rows
from memwatch.record.tables.storages import BASELINE, Storages, address_of
from memwatch.record.tables.watched import WatchedTensor

if TYPE_CHECKING:
    from memwatch.record.tables.op_counter import OpCounter
    from memwatch.record.tables.strings import Strings

(
    PARAMETER, BUFFER, GRADIENT, STATE, INPUT, UNSHARDED, UNSHARDED_GRADIENT, BUCKET, COMMUNICATION,
    AUTOCAST_COPY, STEPPED, REDUCER_MEMORY,
) = range(len(ROLES))  # fmt: skip
NAMES: Final = {
    **dict.fromkeys((PARAMETER, BUFFER, STEPPED), "{}"),
    GRADIENT: f"{GRADIENT_PREFIX}{{}}",
    STATE: "{}.{}[{}]",
}
"""How the name of what is in a role is put together, where it is new."""
InRole = tuple[int, Tensor, tuple[str, ...], int]
"""What is in a role: the role, the tensor, the words of its name, and the number of its module, -1 if none."""


class Roles:
    """Append rows of `roles`, one for each role that is new to its storage.

    Args:
        storages: the storages that are alive.
        strings: numbers for texts.
        op_counter: how many ops have started.

    Attributes:
        rows: rows of `roles`.
    """

    def __init__(self, storages: Storages, strings: Strings, op_counter: OpCounter) -> None:
        self.rows = Rows()
        self.storages, self._strings, self.op_counter = storages, strings, op_counter
        self._noted = 0

    def owns(self, storage: int) -> bool:
        """Return True for a storage known as a parameter, a buffer, a gradient or optimizer state."""
        return bool(self.storages.roles.get(storage, 0) & ~(1 << INPUT))

    def was_noted(self, role: int) -> bool:
        """Return True if any storage ever was in a role."""
        return bool(self._noted >> role & 1)

    def note_watched(
        self, tensor: Tensor, role: int, module: int, name: str, *words: str, op: int = NONE
    ) -> bool:
        """Note the role of a tensor, cheaply where it is plain and its storage is watched; return if it may be new.

        Its name is put together from `words` only where the role is new.
        """
        try:
            watched = self.storages.live.get(address_of(tensor)) if tensor.__class__ is Tensor else None
        except (RuntimeError, NotImplementedError):
            watched = None
        if watched is None or (
            watched.__class__ is WatchedTensor and watched.address != address_or_zero(tensor)
        ):
            self.note(tensor, role, name.format(*words), module, op)
        elif not self.storages.roles.get(watched.number, 0) >> role & 1:
            self.add(watched.number, role, name.format(*words), module, op=op)
        else:
            return False
        return True

    def note(self, tensor: Tensor, role: int, name: str, module: int = NONE, op: int = NONE) -> None:
        """Note the role of the storages that hold the bytes of a tensor, if it is new."""
        with disable_torch_function():
            try:
                parts = list(plain_parts(tensor))
            except (RuntimeError, NotImplementedError):
                return
            for part in parts:
                storage = self.storages.number_of(part, NONE, BASELINE)
                if storage != NONE and not self.storages.roles.get(storage, 0) >> role & 1:
                    self.add(storage, role, name, module, op=op)

    def add(
        self, storage: int, role: int, name: str, module: int = NONE, *, lives: bool = True, op: int = NONE
    ) -> None:
        """Note the role of a storage by its number, as of an op or of now; one that has died has no more to come."""
        self._noted |= 1 << role
        if lives:
            known = self.storages.roles
            known[storage] = known.get(storage, 0) | 1 << role
        self.rows += (storage, role, self._strings(name), self.op_counter[0] if op == NONE else op, module)
