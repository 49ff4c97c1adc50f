"""Gradients: which storages are `.grad` of a parameter, at the end of each backward and at samples amid one.

A program may drop its gradients before any op runs after backward, so the end of backward itself is waited for.
"""

from __future__ import annotations

import contextlib
import weakref
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

from memwatch._torch.autograd import call_at_end_of_backward
from memwatch._torch.dynamo import frame_callback
from memwatch._torch.overrides import disable_torch_function
from memwatch.capture.schema import NONE
from memwatch.record.harmless import Harmless
from memwatch.record.roles import GRADIENT, NAMES
from memwatch.record.tables.parts import plain_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memwatch.record.owners import ParameterReference
    from memwatch.record.roles import InRole
    from memwatch.record.tables.op_counter import OpCounter
    from memwatch.record.tables.storages import Storages

_grad_of: Final[Callable[[Tensor], Tensor | None]] = getattr_static(Tensor, "grad").__get__
"""Read `.grad` past a property of the same name in the program's own class of parameters."""


class Gradients:
    """Note the gradients of the parameters that a context knows.

    Args:
        note: appends the role of a tensor; see `Roles.note_watched`.
        storages: the storages that are alive.
        op_counter: how many ops have started.
        parameters: those that the owners know: a weak reference, name and module of each parameter, by its `id`.
        could_not_record: called with what fails at the end of a backward.

    Attributes:
        python_functions: those that torch calls.
    """

    def __init__(
        self,
        note: Callable[..., bool],
        storages: Storages,
        op_counter: OpCounter,
        parameters: dict[int, tuple[ParameterReference, str, int]],
        could_not_record: Callable[[str, Exception], None],
    ) -> None:
        self._note, self._storages = note, storages
        self._op_counter, self._parameters = op_counter, parameters
        self._is_stopped = False
        self.harmless = Harmless(could_not_record, "the end of a backward")
        self._op_of_new = NONE
        self.python_functions: tuple[Callable[..., Any], ...] = (_AtEnd.__call__,)

    def stop(self) -> None:
        """Note nothing more, even if a backward still runs."""
        self._is_stopped = True

    def backward_begins(self) -> None:
        """Have the gradients noted when the backward that runs in this thread is done."""
        call_at_end_of_backward(_AtEnd(weakref.ref(self)))

    def note_others(self) -> None:
        """Note the gradients, unless no op ran since every parameter was found to have a new one."""
        if self._op_of_new != self._op_counter[0]:
            self.note()

    def note_in_op(self) -> None:
        """Note the gradients that there are while an op of backward ends: they were there when it began."""
        self.note(self._op_counter[0] - 1)

    def in_role(self) -> Iterator[InRole]:
        """Yield what is a gradient now."""
        for reference, name, module in list(self._parameters.values()):
            parameter = reference()
            if parameter is not None and parameter.is_leaf and (grad := _grad_of(parameter)) is not None:
                yield GRADIENT, grad, (name,), module

    def note(self, op: int = NONE) -> None:
        """Note which storages are gradients, as of an op or of now."""
        if self._is_stopped:
            return
        self._storages.record_deaths()
        all_are_new = op == NONE
        with disable_torch_function():
            for key in list(self._parameters):
                known = self._parameters.get(key)
                if known is None:  # another thread let go of it just now
                    continue
                reference, name, module = known
                parameter = reference()
                if parameter is None:
                    self._parameters.pop(key, None)
                elif parameter.is_leaf and (grad := _grad_of(parameter)) is not None:
                    is_new = self._note(grad, GRADIENT, module, NAMES[GRADIENT], name, op=op)
                    if is_new and op == NONE:
                        self._watch_on(grad)
                    all_are_new = all_are_new and is_new
                elif parameter.requires_grad:
                    all_are_new = False
        self._op_of_new = self._op_counter[0] if all_are_new else NONE

    def _watch_on(self, grad: Tensor) -> None:
        """Keep a gradient known: the tensor that backward made it as is gone, and no op may touch it any more."""
        with contextlib.suppress(RuntimeError, NotImplementedError):
            for part in plain_parts(grad):
                self._storages.watch_on(part)


class _AtEnd:
    """Note the gradients at the end of a backward, when what others called for then has run.

    DistributedDataParallel and FSDP2 finish their gradients there, and call for it later than we did.
    """

    def __init__(self, reference: weakref.ref[Gradients]) -> None:
        self._reference, self._again = reference, True

    def __call__(self) -> None:
        gradients = self._reference()
        if gradients is None or frame_callback() is not None:
            return  # dynamo would compile our code: the op that follows has them noted
        if self._again:
            self._again = False
            call_at_end_of_backward(self)
        else:
            with gradients.harmless:
                gradients.note()
