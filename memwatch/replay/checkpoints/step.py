"""Describe a recorded training step for checkpoint policies: its calls, buffers, saved tensors and modules.

Time is counted in calls. A call is a recorded op that makes or writes memory, or returns a number. A plan file contains
the step as plain lists, so that a loaded plan can be used for training without its recording. `read_step` reads the
step from a recording.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.capture.schema import BACKWARD, NONE, PLACES_OF_MODULES
from memwatch.device_names import is_host
from memwatch.encoding import GeneratorNumber, Window, leaves
from memwatch.planner import Effect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memwatch.capture import Capture
    from memwatch.capture.columns import IntArray
    from memwatch.replay.graph import Recorded
    from memwatch.replay.program import Call


@dataclass(frozen=True, eq=False)
class TrainingStep:
    """The calls, buffers, saved tensors and modules of a recorded block. Arrays with the same prefix have equal length.

    Attributes:
        overloads: names of overloads, such as `aten.mm.default`.
        call_overload: the overload of each call, an index into `overloads`.
        call_phase: its phase, an index into `PHASES`.
        call_price: its cost (FLOPs; moved bytes are priced as FLOPs).
        call_workspace_bytes: bytes that it allocates and frees while it runs.
        call_mode_bytes: bytes that it takes in addition under a dispatch mode, such as selective checkpointing.
        call_savable: 1 if selective checkpointing may save its results.
        call_repeatable: 1 if it may run again: it changes nothing except the buffers in `write_buffer`, and random
            states that torch restores.
        buffer_nbytes: bytes of each buffer.
        buffer_maker: the call that made it, -1 if it existed before.
        buffer_death: the last call that began before it was freed; the number of calls if it outlives the block.
        use_call, use_buffer: pairs of a call and a buffer that the call reads or writes.
        write_call, write_buffer: pairs of a call and a buffer that the call writes, but did not make.
        write_module: the module that runs the call of such a pair, -1 outside of all modules.
        pack_buffer: the buffer of each saved tensor, in the order of saving; -1 if unknown.
        pack_call: the call whose backward needs it. If a custom autograd function saved it, this is the last call in
            the forward of the function.
        pack_saved: the number of calls that had begun when it was saved.
        pack_read: the call before which backward first read it, -1 if never.
        pack_released: the last call that had begun when autograd dropped it; the number of calls if never.
        module_path: the names of the modules that lead to each module, the root first. The last is its own.
        module_class: the class of each module.
        run_module: the module of each call of a module.
        run_start, run_end: the calls inside it, a half-open range.
        run_depth: the number of module calls around it.
        again_start, again_end: half-open ranges of calls that a checkpoint of the program computed again.
        device: the planned device, such as `cpu` or `cuda:0`.
    """

    overloads: list[str]
    call_overload: IntArray
    call_phase: IntArray
    call_price: IntArray
    call_workspace_bytes: IntArray
    call_mode_bytes: IntArray
    call_savable: IntArray
    call_repeatable: IntArray
    buffer_nbytes: IntArray
    buffer_maker: IntArray
    buffer_death: IntArray
    use_call: IntArray
    use_buffer: IntArray
    write_call: IntArray
    write_buffer: IntArray
    write_module: IntArray
    pack_buffer: IntArray
    pack_call: IntArray
    pack_saved: IntArray
    pack_read: IntArray
    pack_released: IntArray
    module_path: list[list[str]]
    module_class: list[str]
    run_module: IntArray
    run_start: IntArray
    run_end: IntArray
    run_depth: IntArray
    again_start: IntArray
    again_end: IntArray
    device: str

    @property
    def num_calls(self) -> int:
        """Number of calls."""
        return len(self.call_overload)

    @property
    def is_on_host(self) -> bool:
        """Whether the planned device is the host, where saved random states take planned memory."""
        return is_host(self.device)

    def content(self) -> dict[str, Any]:
        """Return the step as plain data for JSON."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()
        }

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> TrainingStep:
        """Return the step that `content` wrote.

        Raises:
            KeyError, TypeError, ValueError: the content is damaged.
        """
        values: dict[str, Any] = {
            entry.name: content[entry.name] if entry.name in _PLAIN else _array_of(content[entry.name])
            for entry in fields(cls)
        }
        return cls(**values)


_PLAIN: Final = frozenset({"overloads", "module_path", "module_class", "device"})
"""The fields of a step that are not arrays."""
_ADD: Final = "aten.add.Tensor"
_ADD_IN_PLACE: Final = "aten.add_.Tensor"
_PRODUCT: Final = "aten.mm.default"
_FORMER: Final = PLACES_OF_MODULES.index("former")


def _array_of(numbers: Any) -> IntArray:
    """Return the array of a list in a plan file, which may be damaged."""
    try:
        array = np.array(numbers, dtype=np.int64)
    except OverflowError as error:
        raise ValueError(str(error)) from error
    if array.ndim != 1:
        raise ValueError(f"{numbers!r} is not a list of integers")
    return array


def read_step(capture: Capture, recorded: Recorded) -> TrainingStep:
    """Return the training step of a recorded program."""
    return _Reader(capture, recorded).read()


class _Reader:
    def __init__(self, capture: Capture, recorded: Recorded) -> None:
        self._capture, self._recorded = capture, recorded
        self._calls = recorded.program.calls
        self._buffers = recorded.program.buffers
        self._ops = np.array([call.op for call in self._calls], dtype=np.int64)
        self._known_places: dict[int, tuple[str, int]] | None = None

    def read(self) -> TrainingStep:
        graph, device = self._recorded.graph, self._recorded.device
        ops = self._capture.tables["ops"]
        row = np.searchsorted(ops["op"], self._ops)
        names = [call.name for call in self._calls]
        biases = self._biases()
        for place in biases:
            names[place] = _ADD
        mode_bytes = np.zeros(len(names), dtype=np.int64)
        mode_bytes[biases] = graph.makes.sum_per_row(graph.buffer_nbytes)[np.array(biases, dtype=int) - 1]
        overloads = sorted(set(names))
        number = {name: index for index, name in enumerate(overloads)}
        written = {buffer for call in self._calls for buffer in call.writes}
        uses = [(i, b) for i, call in enumerate(self._calls) for b in {*call.reads, *call.writes}]
        writes = [(i, b) for i, call in enumerate(self._calls) for b in call.writes]
        module = ops["module"][row].tolist()
        numbers = {module: index for index, module in enumerate(sorted(self._places()))}
        again = self._capture.tables["recomputes"]
        return TrainingStep(
            overloads=overloads,
            call_overload=_ints(number[name] for name in names),
            call_phase=ops["phase"][row],
            call_price=np.ceil(graph.op_cost).astype(np.int64),
            call_workspace_bytes=graph.op_workspace_bytes,
            call_mode_bytes=mode_bytes,
            call_savable=_ints(
                _is_savable(call, int(effect), written)
                for call, effect in zip(self._calls, graph.op_effect.tolist(), strict=True)
            ),
            call_repeatable=_ints(
                _is_repeatable(call, int(effect))
                for call, effect in zip(self._calls, graph.op_effect.tolist(), strict=True)
            ),
            buffer_nbytes=_ints(item.nbytes if item.device == device else 0 for item in self._buffers),
            buffer_maker=_ints(item.maker for item in self._buffers),
            buffer_death=self._deaths(),
            use_call=_ints(call for call, _ in uses),
            use_buffer=_ints(buffer for _, buffer in uses),
            write_call=_ints(call for call, _ in writes),
            write_buffer=_ints(buffer for _, buffer in writes),
            write_module=_ints(numbers.get(module[call], NONE) for call, _ in writes),
            **self._packs(),
            module_path=[self._path(module) for module in numbers],
            module_class=self._classes(numbers),
            **self._runs(numbers),
            again_start=self._call_at(again["start_op"]),
            again_end=self._call_at(again["end_op"]),
            device=device,
        )

    def _biases(self) -> list[int]:
        """Return the calls that add a bias in place to the matrix product of the previous call.

        Under a dispatch mode, such as selective checkpointing, torch adds the bias out of place. Then the call has
        another name, and needs memory for a result of its own.
        """
        calls, buffers = self._calls, self._buffers
        return [
            place
            for place, call in enumerate(calls)
            if call.name == _ADD_IN_PLACE
            and place
            and calls[place - 1].name == _PRODUCT
            and buffers[call.writes[0]].maker == place - 1
        ]

    def _call_at(self, op: IntArray) -> IntArray:
        """Return for each op the index of the first call at or after it."""
        return np.searchsorted(self._ops, op).astype(np.int64)

    def _deaths(self) -> IntArray:
        death = np.full(len(self._buffers), len(self._calls), dtype=np.int64)
        newest: dict[int, int] = {}
        for number, item in enumerate(self._buffers):
            former = newest.get(item.storage)
            if former is not None:  # a call changed the size of the storage, which made a new buffer
                death[former] = max(item.maker, 0)
            newest[item.storage] = number
        for buffer, call in self._recorded.program.deaths.items():
            death[buffer] = call
        return death

    def _packs(self) -> dict[str, IntArray]:
        packs, unpacks, ops = (self._capture.tables[name] for name in ("packs", "unpacks", "ops"))
        count = len(packs["pack"])
        read, released = (np.full(count, NONE, dtype=np.int64) for _ in range(2))
        is_read = unpacks["released"] == 0
        # in reverse order, so that the first read is written last and stays
        read[unpacks["pack"][is_read][::-1]] = unpacks["op"][is_read][::-1]
        released[unpacks["pack"][~is_read]] = unpacks["op"][~is_read]
        of_storage = {item.storage: number for number, item in enumerate(self._buffers)}
        buffer = _ints(of_storage.get(storage, NONE) for storage in packs["storage"].tolist())
        forward = np.flatnonzero((ops["phase"] != BACKWARD) & (ops["sequence"] != NONE))
        first_op: dict[int, int] = {}
        for number, op in zip(ops["sequence"][forward].tolist(), ops["op"][forward].tolist(), strict=True):
            first_op.setdefault(number, op)
        sequence, saved = packs["sequence"], self._call_at(packs["op"])
        own = _ints(first_op.get(number, NONE) for number in sequence.tolist())
        # Two kinds of saved tensors have no op of their own. A checkpoint saves the inputs of its region, which begins
        # with the next call. A custom autograd function saves its tensors after the last call of its forward.
        without_op = np.where(sequence == NONE, saved, np.maximum(saved - 1, 0))
        never = len(self._calls)
        return {
            "pack_buffer": buffer,
            "pack_call": np.where(own == NONE, without_op, self._call_at(own)),
            "pack_saved": saved,
            "pack_read": np.where(read == NONE, NONE, self._call_at(read)),
            "pack_released": np.where(released == NONE, never, self._call_at(released) - 1),
        }

    def _places(self) -> dict[int, tuple[str, int]]:
        """Return the name and the parent of each module, by its number. Former places do not count."""
        if self._known_places is None:
            table = self._capture.tables["modules"]
            names = self._capture.text(table["name"])
            columns = (table[key].tolist() for key in ("module", "parent", "state"))
            rows = zip(*columns, names, strict=True)
            self._known_places = {
                module: (name, parent) for module, parent, state, name in rows if state != _FORMER
            }
        return self._known_places

    def _path(self, module: int) -> list[str]:
        places = self._places()
        path: list[str] = []
        while module in places and len(path) <= len(places):
            name, module = places[module]
            path.append(name)
        return path[::-1]

    def _classes(self, numbers: dict[int, int]) -> list[str]:
        modules = self._capture.tables["modules"]
        texts = self._capture.text(modules["class_name"])
        classes = dict(zip(modules["module"].tolist(), texts, strict=True))
        return [classes[module] for module in numbers]

    def _runs(self, numbers: dict[int, int]) -> dict[str, IntArray]:
        runs = self._capture.tables["calls"]
        rows = np.lexsort((runs["depth"], runs["start_op"]))
        return {
            "run_module": _ints(numbers.get(module, NONE) for module in runs["module"][rows].tolist()),
            "run_start": self._call_at(runs["start_op"][rows]),
            "run_end": self._call_at(runs["end_op"][rows]),
            "run_depth": runs["depth"][rows],
        }


def _is_savable(call: Call, effect: int, written: set[int]) -> bool:
    """Return True if selective checkpointing may save the results of a call.

    The results must be new buffers, because a view of older memory cannot be saved by itself. No call may write them,
    because torch refuses to save such results. The call must have no effect. For example, if a random op did not run
    again, the random ops after it would draw other numbers.
    """
    results = [item for item in leaves(call.result) if item is not None]
    if (
        effect != Effect.NONE
        or not call.makes
        or call.writes
        or not all(isinstance(item, Window) for item in results)
    ):
        return False
    buffers = {call.buffers[item.slot] for item in results}
    return buffers <= set(call.makes) and not buffers & written


def _is_repeatable(call: Call, effect: int) -> bool:
    if effect == Effect.RNG:  # torch restores only the default generators
        arguments = leaves([call.positional, list(call.keyword.values())])
        return not any(isinstance(item, GeneratorNumber) and item.number != NONE for item in arguments)
    return effect == Effect.NONE


def _ints(values: object) -> IntArray:
    return np.fromiter(values, dtype=np.int64)  # type: ignore[call-overload,no-any-return]
