"""A recorded training step, as far as a checkpoint policy needs it: sizes, lives, what autograd saved, who was called.

Time is counted in calls: the recorded ops that make or write memory or return a number. A plan file holds the step as
plain lists, so that a loaded plan can drive training without its recording.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from memwatch.device_names import is_host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memwatch.capture.packed import IntArray


@dataclass(frozen=True, eq=False)
class TrainingStep:
    """What happened in a recorded block, in arrays of equal length for each sort of thing.

    Attributes:
        overloads: names of overloads, such as `aten.mm.default`.
        call_overload: of each call, an index into `overloads`.
        call_phase: index into `PHASES`.
        call_price: what computing the call costs (FLOPs, bytes moved priced as FLOPs).
        call_workspace_bytes: bytes that it allocates and frees while it runs.
        call_mode_bytes: bytes that it takes beyond these under a dispatch mode, as selective checkpointing is one.
        call_savable: 1 where selective checkpointing may save its results.
        call_repeatable: 1 where it may run again: it changes nothing but what `write_buffer` lists.
        buffer_nbytes: bytes of each buffer.
        buffer_maker: the call that made it, -1 if it was there before.
        buffer_death: the last call that began before it was freed, the number of calls if it was not freed.
        use_call, use_buffer: which calls read or write which buffers.
        write_call, write_buffer: which calls write which buffers that they did not make.
        write_module: the module in which they do, -1 outside any.
        pack_buffer: the buffer of each saved tensor, in the order of saving.
        pack_call: the call whose backward needs it.
        pack_saved: how many calls had begun when it was saved.
        pack_read: the call before which backward first read it, -1 if never.
        pack_released: the last call that had begun when autograd let go of it.
        module_path: the names of the modules that lead to each module, the root first.
        module_class: its class.
        run_module: of each call of a module, the module.
        run_start, run_end: its calls, a half-open range.
        run_depth: how many module calls were running above it.
        again_start, again_end: calls that a checkpoint of the program computed again, half-open ranges.
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
        """Whether the planned device is the host, on which random states count."""
        return is_host(self.device)

    def content(self) -> dict[str, Any]:
        """Return the step as what JSON can hold."""
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
            entry.name: content[entry.name]
            if entry.name in _PLAIN
            else np.array(content[entry.name], dtype=np.int64)
            for entry in fields(cls)
        }
        return cls(**values)


_PLAIN: Final = frozenset({"overloads", "module_path", "module_class", "device"})
