"""Roles that change while the program runs: storages become gradients, and storages lose roles.

A backward accumulates gradients only in the leaves of its own graph. So the recorder lists these leaves, and memwatch
reads only their gradients: when the backward ends, and at samples inside the backward. It does not wait for the next
op, because the program may drop its gradients before.

torch does not report the end of a role: the program sets a `.grad` to None, replaces a parameter, or clears an
optimizer's state. So memwatch compares the known roles with the present ones. It does so in samples and at the end of
the block, but not at every op, call or backward. Each comparison gets a row, because a role may have ended at any time
between two comparisons.
"""

from __future__ import annotations

import weakref
from inspect import getattr_static
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.nn import Parameter

from memwatch._torch.autograd import call_at_end_of_backward, current_graph_task_id
from memwatch._torch.autograd_state import autograd_state
from memwatch._torch.dynamo import frame_callback
from memwatch._torch.modes import disable_torch_function
from memwatch._torch.modules import BUFFERS, FUNCTIONAL_CALL_CODE, PARAMETERS
from memwatch.capture.rows import RoleLooksRow
from memwatch.capture.schema import NONE
from memwatch.heap.classes import class_ids
from memwatch.heap.module_tables import module_dicts
from memwatch.heap.roots import running
from memwatch.record.clock import ticks
from memwatch.record.harmless import Harmless
from memwatch.record.roles import BUCKET, BUFFER, GRADIENT, NAMES, PARAMETER, STATE, STEPPED, UNSHARDED
from memwatch.record.tables.parts import plain_parts
from memwatch.record.tables.rows import Rows
from memwatch.record.tables.storages import address_of
from memwatch.signal_handlers import pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import FrameType

    from memwatch.record.roles import InRole, KnownParameter, Owners, Roles

_grad_of: Final[Callable[[Tensor], Tensor | None]] = getattr_static(Tensor, "grad").__get__
"""Read torch's own `.grad`. The program's class of parameters may have a property of the same name."""
_PLAIN: Final = class_ids(Tensor, Parameter)
_OF_MODULES: Final = (PARAMETER, BUFFER, STEPPED)
_ENDING: Final = (*_OF_MODULES, GRADIENT, STATE)


class Gradients:
    """Note which storages are gradients of known parameters.

    Args:
        roles: the table of roles.
        owners: knows the parameters, and names other leaves.
        could_not_record: called with errors at the end of a backward.

    Attributes:
        python_functions: the functions that torch calls.
        first_made: number of the first storage that the running backward may have made.
        on_begin: called when a backward begins, in the thread that runs it.
        on_end: called when a backward ends, before the gradients are noted.

    Private sets of parameters, each by its `id`:

    - `_reached`: by backward, the leaves that may get gradients from it.
    - `_noted_between_ops`: the parameters whose new gradients were noted outside an op since the last op.
    - `_noted_in_op`: the parameters whose new gradients a sample noted as existing in an op.
    """

    def __init__(
        self, roles: Roles, owners: Owners, could_not_record: Callable[[str, Exception], None]
    ) -> None:
        self._roles = roles
        self._storages = roles.storages
        self._op_counter = roles.op_counter
        self._owners = owners
        self._parameters = owners.parameters
        self._is_stopped = False
        self.harmless = Harmless(could_not_record, "the end of a backward")
        self._reached: dict[int, set[int]] = {}
        self._noted_between_ops: set[int] = set()
        self._noted_in_op: set[int] = set()
        self._noted_at_op = NONE
        self.first_made = 0
        self.on_begin: Callable[[], None] | None = None
        self.on_end: Callable[[], None] | None = None
        self.python_functions: tuple[Callable[..., Any], ...] = (_AtEnd.__call__, _AfterOthers.__call__)
        # One object serves all backwards. It refers to this one weakly, because a backward that raises may keep its
        # callbacks without calling them.
        self._at_end = _AtEnd(_AfterOthers(weakref.ref(self)))

    def stop(self) -> None:
        """Note no more gradients, even if a backward still runs."""
        self._is_stopped = True

    def backward_begins(self) -> None:
        """Arrange that the gradients are noted at the end of the backward that runs in this thread."""
        if not self._reached:  # otherwise it runs inside another backward, as a checkpoint's does
            self.first_made = self._storages.count
        self._reached.setdefault(current_graph_task_id(), set())
        call_at_end_of_backward(self._at_end)
        if self.on_begin is not None:
            self.on_begin()

    def reached(self, leaves: Iterable[Tensor]) -> None:
        """Note leaves that may get gradients from the backward that runs in this thread."""
        leaves = list(leaves)
        keys = self._parameters.keys_of(leaves)
        if len(keys) < len(leaves):
            self._owners.name_leaves(leaves)
            keys = self._parameters.keys_of(leaves)
        self._reached.setdefault(current_graph_task_id(), set()).update(keys)

    @property
    def reached_count(self) -> int:
        """How many leaves may get gradients from the running backwards."""
        return sum(map(len, self._reached.values()))

    def note_reached(self) -> None:
        """Note the gradients of backwards that ended without a call of `backward_ends`, for example by an error."""
        while self._reached:
            self._note(self._parameters.of_keys(self._reached.popitem()[1]))

    def backward_ends(self) -> None:
        """Note the gradients of the backward that ends in this thread."""
        if self.on_end is not None:
            self.on_end()
        reached = self._reached.pop(current_graph_task_id(), ())
        if self._roles.was_noted(BUCKET) or self._roles.was_noted(UNSHARDED):
            self.note_all()  # DDP and FSDP also set gradients of parameters that this backward did not reach
        else:
            self._note(self._parameters.of_keys(reached))

    def note_in_op(self) -> None:
        """Note the gradients that exist during an op of backward. They have existed since the op began or longer."""
        self._note_of_running(self._op_counter[0] - 1)

    def note_between_ops(self) -> None:
        """Note the gradients that exist between two ops of backward. Autograd may just have set one."""
        self._note_of_running(NONE)

    def _note_of_running(self, op: int) -> None:
        for reached in list(self._reached.values()):
            self._note(self._parameters.of_keys(tuple(reached)), op)

    def note_of(self, tensors: list[Tensor]) -> None:
        """Note the gradients of some tensors, unless all of these gradients were noted as new since the last op."""
        if self._noted_at_op != self._op_counter[0] or not self._noted_between_ops.issuperset(
            map(id, tensors)
        ):
            self._note(self._parameters.of_keys(map(id, tensors)))

    def note_all(self) -> None:
        """Note the gradients of all known parameters."""
        self._note(self._parameters)

    def in_role(self) -> Iterator[InRole]:
        """Yield the present gradients."""
        for known in self._parameters:
            parameter = known()
            if parameter is None or not autograd_state(parameter).is_leaf:
                continue
            if (grad := _grad_of(parameter)) is not None:
                yield GRADIENT, grad, (known.name,), known.module

    def _note(self, parameters: Iterable[KnownParameter], op: int = NONE) -> None:
        """Note which storages are gradients of some parameters.

        Args:
            parameters: the parameters.
            op: the running op, if the gradients are noted during it. -1 between two ops.
        """
        if self._is_stopped:
            return
        self._storages.record_deaths()
        if self._noted_at_op != self._op_counter[0]:
            self._noted_between_ops.clear()
            self._noted_at_op = self._op_counter[0]
        note, between_ops = self._roles.note_watched, op == NONE
        with disable_torch_function():
            for known in parameters:
                parameter = known()
                if parameter is None or not autograd_state(parameter).is_leaf:
                    continue
                grad = _grad_of(parameter)
                if grad is None:
                    continue
                # Backward's own tensor on this storage is gone by now, and perhaps no further op uses the storage.
                is_new = note(grad, GRADIENT, known.module, known.name, op=op, watch_on=between_ops)
                if is_new:
                    (self._noted_between_ops if between_ops else self._noted_in_op).add(known.key)
                elif between_ops and known.key in self._noted_in_op:
                    # A hook may remove a gradient after it was noted in an op. This one is still there: note it again.
                    self._noted_in_op.discard(known.key)
                    self._roles.note_again(grad, GRADIENT, known.module, known.name)


class _AtEnd:
    """A callback at the end of a backward. It arranges that the gradients are noted after all other callbacks.

    DistributedDataParallel and FSDP2 finish their gradients in such callbacks, and register them after memwatch's.
    """

    def __init__(self, after_others: Callable[[], None]) -> None:
        self._after_others = after_others

    def __call__(self) -> None:
        try:
            call_at_end_of_backward(self._after_others)
        except MemoryError:  # the gradients are noted at the next op
            return


class _AfterOthers:
    """Note the gradients of the backward that ends."""

    def __init__(self, reference: weakref.ref[Gradients]) -> None:
        self._reference = reference

    def __call__(self) -> None:
        gradients = self._reference()
        try:
            if gradients is None or frame_callback() is not None:
                return  # dynamo would compile memwatch's code here. The gradients are noted at the next op
        except MemoryError:
            return
        with gradients.harmless:
            gradients.backward_ends()


class RoleEnds:
    """Compare the known roles with the present ones. Append a row for each comparison and each role that has ended.

    Args:
        roles: the known roles.
        owners: knows parameters, buffers and optimizer states.
        gradients: knows the gradients.
        harmless: wraps code that runs inside the program's ops.

    Attributes:
        tables: rows of `roles`, `role_ends` and `role_looks`.
    """

    def __init__(self, roles: Roles, owners: Owners, gradients: Gradients, harmless: Harmless) -> None:
        self._storages = roles.storages
        self._op_counter = roles.op_counter
        self._roles = roles
        self._owners = owners
        self._gradients = gradients
        self._harmless = harmless
        self._rows = Rows()
        self._looks = Rows()
        self.tables = {"roles": roles.rows, "role_ends": self._rows, "role_looks": self._looks}

    def look(
        self, frame: FrameType | None, *, least_bytes: int = 0, in_op: bool = False, is_over: bool = False
    ) -> None:
        """Note the roles that ended or began since the last comparison.

        Args:
            frame: the innermost call.
            least_bytes: smaller storages are skipped.
            in_op: whether an op is running. Python code has changed nothing since it started.
            is_over: whether that op has ended, and only torch's own code has run since. Then roles that are new begin
                after the op.
        """
        with self._harmless, disable_torch_function():
            self._storages.record_deaths()
            large = {
                watched.key: watched.number
                for watched in list(self._storages.live.values())
                if watched.nbytes >= least_bytes
            }
            # If no op was recorded yet, the running op belongs to a step that is not recorded.
            in_op = in_op and self._op_counter[0] > 0
            now = self._op_counter[0] - in_op
            compared = sum(1 << role for role in self._comparable_roles(frame))
            roles_now = self._roles_now(large, compared, now + (in_op and is_over))
            self._looks += RoleLooksRow(
                op=now, in_op=int(in_op), time_ticks=ticks(), least_bytes=least_bytes, roles=compared
            )
            if self._end_all_but(roles_now, large.values(), compared, now) or not in_op:
                self._owners.registry.note_moves()

    def verify_modules(self, frame: FrameType | None) -> None:
        """Append a row for a comparison if all known parameters are still in modules' tables. Do the same for buffers.

        This takes a twentieth of the time of `look`, and is made for the middle of an op. It finds no new or ended
        roles: if a parameter or buffer is missing, it appends nothing.

        Args:
            frame: the innermost call.
        """
        compared = [role for role in (PARAMETER, BUFFER) if role in self._comparable_roles(frame)]
        with self._harmless, disable_torch_function():
            self._storages.record_deaths()
            known, live = self._storages.roles.items(), self._storages.live
            tables = module_dicts([module for module, _ in self._owners.registry.alive()])
            for role in compared:
                expected = {number for number, bits in known if bits >> role & 1}
                name = PARAMETERS if role == PARAMETER else BUFFERS
                held: list[Any] = [table for each in tables if type(table := each.get(name)) is dict]
                tensors = [
                    each for each in chain.from_iterable(map(dict.values, held)) if id(type(each)) in _PLAIN
                ]
                found = {
                    alive.number for each in map(address_of, tensors) if (alive := live.get(each)) is not None
                }
                if expected <= found:
                    self._looks += RoleLooksRow(
                        op=self._op_counter[0] - 1,
                        in_op=1,
                        time_ticks=ticks(),
                        least_bytes=0,
                        roles=1 << role,
                    )

    def end(self, storage: int, role: int) -> None:
        """Note that a storage loses a role now, between two ops."""
        now = self._op_counter[0]
        self._storages.roles[storage] &= ~(1 << role)
        self._rows += (storage, role, now - 1, now)

    def _roles_now(self, large: dict[int, int], compared: int, begin: int) -> dict[int, int]:
        """Return the present roles of storages, as bits by the number of the storage. Note the new roles.

        Args:
            large: the numbers of the storages, by address.
            compared: the bits of the roles to read.
            begin: the first op with the new roles.
        """
        found: dict[int, int] = {}
        known, parameter_bit = self._storages.roles, 1 << PARAMETER
        for role, tensor, words, module in chain(
            self._owners.in_roles(large.keys()), self._gradients.in_role()
        ):
            bit = compared & 1 << role
            for number in _numbers_of(tensor, large) if bit else ():
                bits = found.get(number, 0)
                if role == STEPPED and (module == NONE or bits & parameter_bit):
                    # The tensor is in a module's table, or no known module owns it: it counts as a parameter.
                    found[number] = bits | parameter_bit
                    continue
                found[number] = bits | bit
                if words and not known.get(number, 0) & bit:
                    self._roles.add(number, role, NAMES[role].format(*words), module, op=begin)
        return found

    def _comparable_roles(self, frame: FrameType | None) -> list[int]:
        """Return the roles that can be compared now.

        Some of them cannot be compared now:

        - FSDP gives modules whole parameters for a call, and moves gradients.
        - A functional call gives modules any tensors in place of their own.
        - The state in a wrapper of an optimizer cannot be read without running the wrapper's code.
        """
        left_out: tuple[int, ...] = () if self._owners.all_state_is_seen else (STATE,)
        if self._roles.was_noted(UNSHARDED):
            left_out += (*_OF_MODULES, GRADIENT)
        elif any(call.f_code is FUNCTIONAL_CALL_CODE for call in running(frame)):
            left_out += _OF_MODULES
        return [role for role in _ENDING if role not in left_out]

    def _end_all_but(
        self, roles_now: dict[int, int], numbers: Iterable[int], compared: int, now: int
    ) -> bool:
        """Append a row for each role in `compared` that a storage has lost. Return whether there are any."""
        known, any_ended = self._storages.roles, False
        for number in numbers:
            bits = known.get(number, 0)
            over = bits & compared & ~roles_now.get(number, 0) if bits else 0
            for role in _ENDING if over else ():
                if over >> role & 1:
                    known[number] &= ~(1 << role)
                    self._rows += (number, role, NONE, now)
                    any_ended = True
        return any_ended


def _numbers_of(tensor: Tensor, large: dict[int, int]) -> Sequence[int]:
    """Return the numbers of a tensor's storages that are in `large`. Empty if torch cannot read its storages."""
    try:
        if id(type(tensor)) in _PLAIN and tensor.layout is torch.strided:
            number = large.get(address_of(tensor))
            return () if number is None else (number,)
        return [large[key] for key in map(address_of, plain_parts(tensor)) if key in large]
    except (RuntimeError, NotImplementedError, AttributeError, ValueError) as error:
        pass_on(error)
        return ()
