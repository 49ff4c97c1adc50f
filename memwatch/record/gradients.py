"""Note which storages are `.grad` of a parameter, at the end of each backward and at samples inside one.

A backward accumulates gradients only in the leaves of its own graph. So the recorder lists these leaves, and memwatch
reads only their gradients when the backward ends. The program may drop its gradients before the next op, so memwatch
acts at the end of the backward itself.
"""

from __future__ import annotations

import weakref
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

from memwatch._torch.autograd import call_at_end_of_backward, current_graph_task_id
from memwatch._torch.autograd_state import autograd_state
from memwatch._torch.dynamo import frame_callback
from memwatch._torch.modes import disable_torch_function
from memwatch.capture.schema import NONE
from memwatch.record.harmless import Harmless
from memwatch.record.roles import BUCKET, GRADIENT, UNSHARDED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from memwatch.record.roles import InRole, KnownParameter, Owners, Roles

_grad_of: Final[Callable[[Tensor], Tensor | None]] = getattr_static(Tensor, "grad").__get__
"""Read `.grad` past a property of the same name in the program's own class of parameters."""


class Gradients:
    """Note the gradients of the parameters that a context knows.

    Args:
        roles: the table of roles.
        owners: knows the parameters, and names other leaves.
        could_not_record: called with errors at the end of a backward.

    Attributes:
        python_functions: the functions that torch calls.
        first_made: number of the first storage that the running backward may have made.
        on_begin: called when a backward begins, in the thread that runs it.
        on_end: called at its end, before the gradients are noted.
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
        self._new: set[int] = set()
        self._amid: set[int] = set()
        self._op_of_new = NONE
        self.first_made = 0
        self.on_begin: Callable[[], None] | None = None
        self.on_end: Callable[[], None] | None = None
        self.python_functions: tuple[Callable[..., Any], ...] = (_AtEnd.__call__, _AfterOthers.__call__)
        # one object for all backwards, with a weak reference to this one: a backward that raises may keep callbacks
        # that it never called
        self._at_end = _AtEnd(_AfterOthers(weakref.ref(self)))

    def stop(self) -> None:
        """Stop, even if a backward still runs."""
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
        """How many leaves the running backwards may give gradients."""
        return sum(map(len, self._reached.values()))

    def note_reached(self) -> None:
        """Note the gradients of backwards that ended without `backward_ends`, as after an error."""
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
        """Note the gradients that exist when an op of backward ends. They existed when the op began."""
        self._note_amid(self._op_counter[0] - 1)

    def note_between_ops(self) -> None:
        """Note the gradients that exist between two ops of backward. Autograd may just have set one."""
        self._note_amid(NONE)

    def _note_amid(self, op: int) -> None:
        for reached in list(self._reached.values()):
            self._note(self._parameters.of_keys(tuple(reached)), op)

    def note_of(self, tensors: list[Tensor]) -> None:
        """Note the gradients of some tensors. Skip this if all of them were noted as new and no op ran since."""
        if self._op_of_new != self._op_counter[0] or not self._new.issuperset(map(id, tensors)):
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
        """Note which storages are gradients of some parameters, now or at an op."""
        if self._is_stopped:
            return
        self._storages.record_deaths()
        if self._op_of_new != self._op_counter[0]:
            self._new.clear()
            self._op_of_new = self._op_counter[0]
        note, is_over = self._roles.note_watched, op == NONE
        with disable_torch_function():
            for known in parameters:
                parameter = known()
                if parameter is None or not autograd_state(parameter).is_leaf:
                    continue
                grad = _grad_of(parameter)
                # after backward, the tensor that made a gradient is gone, and no op may use it any more
                if grad is None:
                    continue
                is_new = note(grad, GRADIENT, known.module, known.name, op=op, watch_on=is_over)
                if is_new:
                    (self._new if is_over else self._amid).add(known.key)
                elif is_over and known.key in self._amid:  # a hook may have removed it since
                    self._amid.discard(known.key)
                    self._roles.note_again(grad, GRADIENT, known.module, known.name)


class _AtEnd:
    """Note the gradients after all other callbacks at the end of a backward.

    DistributedDataParallel and FSDP2 finish their gradients in such callbacks, and they register them after ours.
    """

    def __init__(self, after_others: Callable[[], None]) -> None:
        self._after_others = after_others

    def __call__(self) -> None:
        try:
            call_at_end_of_backward(self._after_others)
        except MemoryError:  # the op that follows has them noted
            return


class _AfterOthers:
    """Note the gradients of the backward that ends."""

    def __init__(self, reference: weakref.ref[Gradients]) -> None:
        self._reference = reference

    def __call__(self) -> None:
        gradients = self._reference()
        try:
            if gradients is None or frame_callback() is not None:
                return  # dynamo would compile our code here; the next op notes the gradients
        except MemoryError:
            return
        with gradients.harmless:
            gradients.backward_ends()
