"""The roles of storages: parameter, gradient, buffer of a collective and so on, each with a name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch import Tensor

from memwatch._torch.modes import disable_torch_function
from memwatch.capture.schema import GRADIENT_PREFIX, NONE
from memwatch.kinds.roles import ROLES
from memwatch.record.tables.parts import plain_parts
from memwatch.record.tables.rows import Rows
from memwatch.record.tables.storages import BASELINE, Storages
from memwatch.signal_handlers import pass_on, suppress

if TYPE_CHECKING:
    from memwatch.record.tables.rows import OpCounter, Strings

(
    PARAMETER, BUFFER, GRADIENT, STATE, INPUT, UNSHARDED, UNSHARDED_GRADIENT, BUCKET, COMMUNICATION,
    AUTOCAST_COPY, STEPPED, REDUCER_MEMORY, SAVED_BY_POLICY,
) = range(len(ROLES))  # fmt: skip
NAMES: Final = {
    **dict.fromkeys((PARAMETER, BUFFER, STEPPED), "{}"),
    GRADIENT: f"{GRADIENT_PREFIX}{{}}",
    STATE: "{}.{}[{}]",
}
"""Templates for the names of storages, by role."""
InRole = tuple[int, Tensor, tuple[str, ...], int]
"""A tensor in a role: the role, the tensor, the words of its name, and the number of its module or -1."""


class Roles:
    """Append a row of `roles` for each new role of a storage.

    Args:
        storages: the storages that are alive.
        strings: numbers for texts.
        op_counter: how many ops have started.

    Attributes:
        rows: rows of `roles`.
    """

    def __init__(self, storages: Storages, strings: Strings, op_counter: OpCounter) -> None:
        self.rows = Rows()
        self.storages = storages
        self._strings = strings
        self.op_counter = op_counter
        self._known = storages.roles
        self._watched_number = storages.ledger.watched_number
        self._noted = 0

    def owns(self, storage: int) -> bool:
        """Return True for a storage known as a parameter, a buffer, a gradient or optimizer state."""
        return bool(self._known.get(storage, 0) & ~(1 << INPUT))

    def was_noted(self, role: int) -> bool:
        """Return True if any storage ever had a role."""
        return bool(self._noted >> role & 1)

    def note_watched(
        self, tensor: Tensor, role: int, module: int, *words: str, op: int = NONE, watch_on: bool = False
    ) -> bool:
        """Note the role of a tensor, and return whether it may be new.

        This is cheap for a plain tensor whose storage is watched.

        Args:
            tensor: the tensor.
            role: its role.
            module: number of its module, -1 if there is none.
            words: the words of its name.
            op: the first op with the new role, -1 for the next op.
            watch_on: whether the tensor through which the storage is watched may be gone, as after a backward.
        """
        number = self._watched_number(tensor, watch_on) if type(tensor) is Tensor else NONE
        if number == NONE:
            self.note(tensor, role, NAMES[role].format(*words), module, op)
            if watch_on:
                self._watch_on(tensor)
        elif self._known.get(number, 0) >> role & 1:
            return False
        else:
            self.add(number, role, NAMES[role].format(*words), module, op=op)
        return True

    def note_again(self, tensor: Tensor, role: int, module: int, *words: str) -> None:
        """Note that a plain tensor still has a role that was noted before."""
        number = self._watched_number(tensor, True) if type(tensor) is Tensor else NONE
        if number != NONE:
            self.add(number, role, NAMES[role].format(*words), module)

    def _watch_on(self, tensor: Tensor) -> None:
        with suppress(RuntimeError, NotImplementedError):
            for part in plain_parts(tensor):
                self._watched_number(part, True)

    def note(self, tensor: Tensor, role: int, name: str, module: int = NONE, op: int = NONE) -> None:
        """Note the role of the storages that hold the bytes of a tensor, if it is new."""
        with disable_torch_function():
            try:
                parts = list(plain_parts(tensor))
            except (RuntimeError, NotImplementedError) as error:
                pass_on(error)
                return
            for part in parts:
                storage = self.storages.number_of(part, NONE, BASELINE)
                if storage != NONE and not self._known.get(storage, 0) >> role & 1:
                    self.add(storage, role, name, module, op=op)

    def add(
        self, storage: int, role: int, name: str, module: int = NONE, *, lives: bool = True, op: int = NONE
    ) -> None:
        """Note the role of a storage by its number, from an op on or from now on."""
        self._noted |= 1 << role
        if lives:
            self._known[storage] = self._known.get(storage, 0) | 1 << role
        self.rows += (storage, role, self._strings(name), self.op_counter[0] if op == NONE else op, module)
