"""Record the data for a replay, with `profile(replay=True)`: each op's arguments, inputs, results and RNG states.

This recorder runs between the interceptor and the op recorder, so only a profile with `replay` pays for it. It keeps
the inputs alive as long as the profile object lives. It keeps no other tensor alive: other bytes are copied to host
memory.
"""

from __future__ import annotations

import gc
import json
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from memwatch._torch.dispatch import base_name_of, schema_of
from memwatch._torch.modes import disable_torch_dispatch, disable_torch_function
from memwatch.capture.rows import ArgumentsRow, OperandsRow
from memwatch.capture.schema import NONE
from memwatch.devices import devices_in_use
from memwatch.encoding import (
    ONLY_ALLOCATE,
    OWN,
    ReplayInputs,
    RngStates,
    checksum,
    copy_out,
    crc32,
    encode,
    leaves,
    read_states,
    unsupported_tensor,
)
from memwatch.record.tables.rows import Rows
from memwatch.record.tables.storages import BASELINE
from memwatch.signal_handlers import pass_on, raised_by_handler

if TYPE_CHECKING:
    from memwatch.record.backend import OpRecorder
    from memwatch.record.interception import OpKind
    from memwatch.record.tables.rows import OpCounter, Strings
    from memwatch.record.tables.storages import Storages

READ, WRITE, RESULT = range(3)
"""The values of `Operand.access`."""
_STATISTICS = frozenset({"running_mean", "running_var"})
"""The arguments that batch norm writes in training, although its schema does not declare these writes."""
_TAGGED = frozenset({"aten", "prims"})
"""The namespaces in which torch puts the tag `nondeterministic_seeded` on every overload that draws random numbers."""


class Operand(NamedTuple):
    """One tensor among the arguments and results of an op.

    Attributes:
        slot: its index among the operands of the op.
        storage: the number of its storage.
        access: `READ`, `WRITE` or `RESULT`.
        nbytes: size of the storage in bytes, before the op for an argument and after it for a result.
    """

    slot: int
    storage: int
    access: int
    nbytes: int


class ArgumentRecorder:
    """Append the rows of `arguments` and `operands`, and keep the data that a replay starts from."""

    def __init__(self, ops: OpRecorder, storages: Storages, strings: Strings, op_counter: OpCounter) -> None:
        self.arguments = Rows()
        self.operands = Rows()
        self.replay_inputs = ReplayInputs()
        self._ops = ops
        self._storages = storages
        self._strings = strings
        self._op_counter = op_counter
        self._made: set[int] = set()  # storages that an op made
        self._blank: set[int] = set()  # storages from `empty` and its kin that no op has used yet

    def run(self, kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op with the op recorder. Record its arguments before it runs, and its results afterwards."""
        if kind.has_no_row:
            return self._ops.run(kind, args, kwargs)
        number = self._op_counter[0]
        operands: list[Operand] = []
        grad = int(torch.is_grad_enabled())
        draws = _draws(kind, args, kwargs)
        with disable_torch_function(), disable_torch_dispatch():  # no mode of the program sees these reads
            try:
                call = self._before(number, kind, args, kwargs, operands, draws=draws)
            except Exception as error:  # the program must go on; a replay will refuse this op
                pass_on(error)
                operands.clear()
                call = json.dumps([[_refusal(error)], [], []])
        result = self._ops.run(kind, args, kwargs)
        of_handler = None
        with disable_torch_function(), disable_torch_dispatch():
            try:
                made = self._after(number, kind, result, operands, draws=draws)
            except Exception as error:
                of_handler = error if raised_by_handler(error) else None
                operands[:] = [operand for operand in operands if operand.access != RESULT]
                made = json.dumps(_refusal(error))
        self.arguments += ArgumentsRow(
            op=number, call=self._strings(call), result=self._strings(made), grad=grad
        )
        for operand in operands:
            self.operands += OperandsRow(
                op=number,
                slot=operand.slot,
                storage=operand.storage,
                access=operand.access,
                nbytes=operand.nbytes,
            )
        if of_handler is not None:  # only now, because the op has run and needs its rows
            raise of_handler
        return result

    def _before(
        self,
        number: int,
        kind: OpKind,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        operands: list[Operand],
        *,
        draws: bool,
    ) -> str:
        call = self._call_text(args, kwargs, operands, _traits(kind.overload).written(args, kwargs))
        self._keep_inputs(args, kwargs, operands)
        if draws:
            self.replay_inputs.rng_before[number] = self._rng_states()
        return call

    def _after(self, number: int, kind: OpKind, result: Any, operands: list[Operand], *, draws: bool) -> str:
        made = self._results_text(result, operands)
        if _traits(kind.overload).only_allocates:
            self._blank.update(operand.storage for operand in operands if operand.access == RESULT)
        if draws:
            self.replay_inputs.rng_after[number] = {
                name: crc32(state) for name, state in self._rng_states().items()
            }
        return made

    def _call_text(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        operands: list[Operand],
        written: frozenset[int | str],
    ) -> str:
        def slot_of(tensor: Tensor) -> int:
            return self._operand(tensor, access, operands)  # with the `access` that the loops below set last

        positional, named = [], {}
        for position, value in enumerate(args):
            access = WRITE if position in written else READ
            positional.append(encode(value, slot_of, self._generator))
        for name, value in kwargs.items():
            access = WRITE if name in written else READ
            named[name] = encode(value, slot_of, self._generator)
        return json.dumps([positional, list(named), list(named.values())], separators=(",", ":"))

    def _results_text(self, result: Any, operands: list[Operand]) -> str:
        def slot_of(tensor: Tensor) -> int:
            slot = self._operand(tensor, RESULT, operands)
            if slot >= 0:
                number = operands[-1].storage
                if number not in self.replay_inputs.inputs:
                    self._made.add(number)
            return slot

        return json.dumps(encode(result, slot_of, self._generator), separators=(",", ":"))

    def _operand(self, tensor: Tensor, access: int, operands: list[Operand]) -> int:
        if unsupported_tensor(tensor):
            return NONE
        number = self._storages.number_of(tensor, NONE, BASELINE)
        if number == NONE:
            return NONE
        operands.append(Operand(len(operands), number, access, tensor.untyped_storage().nbytes()))
        return len(operands) - 1

    def _keep_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[Operand]) -> None:
        tensors = (
            item
            for item in leaves([*args, *kwargs.values()])
            if isinstance(item, Tensor) and not unsupported_tensor(item)
        )
        inputs = self.replay_inputs
        # A signal handler may raise between two lines. So each block first stores the data, and then marks it as done.
        for tensor, operand in zip(tensors, operands, strict=True):
            number, access = operand.storage, operand.access
            storage = tensor.untyped_storage()
            if number in self._blank:
                if access == READ:
                    # the op reads memory that no op has written: torch or NumPy wrote it directly on the host
                    inputs.filled[number] = copy_out(storage)
                self._blank.discard(number)
            if number in self._made:
                continue
            if number not in inputs.inputs:
                inputs.checksums[number] = checksum(storage)
                inputs.inputs[number] = storage
            if access == WRITE and number not in inputs.before:
                inputs.before[number] = copy_out(storage)

    def _rng_states(self) -> RngStates:
        own = self.replay_inputs.generators
        return read_states(devices_in_use() + [f"{OWN}{index}" for index in range(len(own))], own)

    def _generator(self, generator: torch.Generator) -> int:
        own = self.replay_inputs.generators
        for number, known in enumerate(own):
            if known is generator:
                return number
        own.append(generator)
        return len(own) - 1

    def finish(self) -> None:
        """Copy the results: the bytes of every storage that is alive after the block and that an op made or wrote.

        Also note the inputs whose bytes changed although no recorded op wrote them.
        """
        gc.collect()  # so that unreachable storages are not copied
        inputs = self.replay_inputs
        for watched in list(self._storages.live.values()):
            storage = watched()
            if storage is not None and (watched.number in self._made or watched.number in inputs.before):
                inputs.results[watched.number] = copy_out(storage)
        for number, storage in inputs.inputs.items():
            if number not in inputs.before and checksum(storage) != inputs.checksums[number]:
                inputs.changed.add(number)


class _Traits:
    """The properties of an overload that a replay needs, computed once.

    Attributes:
        declared: positions and names of the arguments that it writes according to its schema.
        hidden: positions and names of the running statistics that it writes in training without declaring it.
        training: position of the argument `training`, or None.
        only_allocates: whether it allocates memory without writing it.
        draws: whether it may draw random numbers.
    """

    __slots__ = ("declared", "draws", "hidden", "only_allocates", "training")

    def __init__(self, overload: Any) -> None:
        arguments = schema_of(overload).arguments
        position = {argument.name: index for index, argument in enumerate(arguments)}
        writes = [item.name for item in arguments if item.alias_info is not None and item.alias_info.is_write]
        self.declared: frozenset[int | str] = frozenset([*writes, *(position[name] for name in writes)])
        name = base_name_of(overload)
        # these variants of batch norm take running statistics, and do not write them
        no_update = any(word in name for word in ("backward", "functional", "no_update", "no_training"))
        hidden = [] if no_update else sorted(_STATISTICS & position.keys() - set(writes))
        self.hidden: frozenset[int | str] = frozenset([*hidden, *(position[name] for name in hidden)])
        self.only_allocates = name in ONLY_ALLOCATE
        self.training = position.get("training")
        self.draws = torch.Tag.nondeterministic_seeded in overload.tags or overload.namespace not in _TAGGED

    def written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> frozenset[int | str]:
        """Return the positions and names of the arguments that a call writes."""
        if not self.hidden:
            return self.declared
        if self.training is not None:
            given = args[self.training] if self.training < len(args) else kwargs.get("training")
            if not given:
                return self.declared
        return self.declared | self.hidden


@cache
def _traits(overload: Any) -> _Traits:
    return _Traits(overload)


def _draws(kind: OpKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return _traits(kind.overload).draws or any(
        isinstance(item, torch.Generator) for item in (*args, *kwargs.values())
    )


def _refusal(error: Exception) -> dict[str, str]:
    return {"unsupported": f"value that cannot be described ({type(error).__name__}: {error})"}
