"""The ends of roles: which storages live on, and are no parameter, buffer, gradient or optimizer state any more.

torch tells nobody when a `.grad` is set to None, a parameter is replaced or an optimizer's state is cleared. So where
the recorder looks around anyway, in a sample and at the end of the block, what was known to have a role is compared
with what is in it now. Nothing is looked for in an op, a module's call or a backward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor
from torch.nn import Parameter

from memwatch._torch.modules import FUNCTIONAL_CALL_CODE
from memwatch.capture.schema import NONE
from memwatch.record.roles import BUFFER, GRADIENT, PARAMETER, STATE, STEPPED, UNSHARDED
from memwatch.record.tables.parts import plain_parts
from memwatch.record.tables.rows import Rows
from memwatch.record.tables.storages import address_of
from memwatch.record.tables.watched import WatchedStorage, is_gone

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from memwatch.record.gradients import Gradients
    from memwatch.record.harmless import Harmless
    from memwatch.record.owners import Owners
    from memwatch.record.roles import Roles
    from memwatch.record.tables.watched import Watched

_OF_MODULES: Final = (PARAMETER, BUFFER, STEPPED)
_ENDING: Final = (*_OF_MODULES, GRADIENT, STATE)


class RoleEnds:
    """Append a row for each role that has ended.

    Args:
        roles: the roles that were noted.
        owners: what has parameters, buffers and optimizer state.
        gradients: what has gradients.
        harmless: around what runs in an op of the program's.

    Attributes:
        tables: rows of `roles` and of `role_ends`.
    """

    def __init__(self, roles: Roles, owners: Owners, gradients: Gradients, harmless: Harmless) -> None:
        self._storages, self._op_counter, self._roles = roles.storages, roles.op_counter, roles
        self._owners, self._gradients, self._harmless = owners, gradients, harmless
        self._rows = Rows()
        self.tables = {"roles": roles.rows, "role_ends": self._rows}
        self._last_ops = dict.fromkeys(_ENDING, NONE)

    def look(self, frame: FrameType | None, *, in_op: bool) -> None:
        """Note which roles ended since the last look, and which memory is new in its role.

        Args:
            frame: the innermost call.
            in_op: whether an op is running: Python has changed nothing since it started.
        """
        with self._harmless:
            self._storages.record_deaths()
            self._owners.registry.look_for_moves()
            now = self._op_counter[0] - in_op
            self._end_all_but(self._in_roles(frame, now), now)

    def _in_roles(self, frame: FrameType | None, now: int) -> dict[int, set[int]]:
        """Return, for each role that can be told, the storages that are in it; note those that are new."""
        found: dict[int, set[int]] = {role: set() for role in self._told(frame)}
        roles = self._storages.roles
        for role, tensor, name, module in (*self._owners.in_roles(), *self._gradients.in_role()):
            for watched in self._watched(tensor) if role in found else ():
                number = watched.number
                if role == STEPPED and (module == NONE or number in found[PARAMETER]):
                    found[PARAMETER].add(number)
                    continue
                found[role].add(number)
                if name and watched.__class__ is WatchedStorage and not roles.get(number, 0) >> role & 1:
                    self._roles.add(number, role, name, module, op=now)
        return found

    def _told(self, frame: FrameType | None) -> list[int]:
        """Return the roles whose members can be told: modules may have parameters for the time of a call alone.

        FSDP lends them whole ones, a functional call any. A wrapper of an optimizer tells its state by its own code.
        """
        is_lent = self._roles.was_noted(UNSHARDED)
        while frame is not None and not is_lent:
            is_lent = frame.f_code is FUNCTIONAL_CALL_CODE
            frame = frame.f_back
        untold = _OF_MODULES if is_lent else ()
        return [
            role
            for role in _ENDING
            if role not in untold and (role != STATE or self._owners.all_state_is_seen)
        ]

    def _watched(self, tensor: Tensor) -> Iterator[Watched]:
        """Yield what watches the storages in which a tensor lies; nothing where it does not show them."""
        try:
            is_plain = type(tensor) in (Tensor, Parameter) and tensor.layout is torch.strided
            for part in (tensor,) if is_plain else plain_parts(tensor):
                watched = self._storages.live.get(address_of(part))
                if watched is not None:
                    yield watched
        except (RuntimeError, NotImplementedError, AttributeError, ValueError):
            return

    def _end_all_but(self, found: dict[int, set[int]], now: int) -> None:
        known = self._storages.roles
        for watched in list(self._storages.live.values()):
            number = watched.number
            if not known.get(number) or watched.__class__ is not WatchedStorage or is_gone(watched):
                continue
            for role, members in found.items():
                if known[number] >> role & 1 and number not in members:
                    known[number] &= ~(1 << role)
                    self._rows += (number, role, self._last_ops[role], now)
        self._last_ops.update(dict.fromkeys(found, now))
