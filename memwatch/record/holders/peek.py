"""Peek: verify the known holders of the program at a new peak, in a hundredth of the time of a sample.

A program without backward, such as the generation of tokens with a cache, may have a higher peak in every pass. Each
pass puts new tensors into the same places. A peek reads the places that samples have found, and the tables of the
modules, in the middle of the op. It searches nothing. So the absence of a tensor means nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.capture.schema import NONE
from memwatch.heap.search_roots import calls_with
from memwatch.record.tables.parts import tensor_bytes
from memwatch.record.tables.storages import WatchedStorage, address_of
from memwatch.signal_handlers import suppress

if TYPE_CHECKING:
    from types import FrameType

    from memwatch.kinds.edges import Edge
    from memwatch.record.holders.state import SamplingState


def peek(state: SamplingState, device: int, frame: FrameType | None) -> None:
    """Append a row for each large storage of a device that lies in a known place now.

    Args:
        state: the state that samples share.
        device: string id of the device's name.
        frame: the innermost call.
    """
    state.context.role_ends.verify_modules(frame)
    least_bytes, live = state.least_bytes(device), state.storages.live
    told: set[int] = set()
    of_views: dict[int, tuple[Edge, ...]] = {}
    met: set[tuple[int, tuple[tuple[int, object], ...]]] = set()
    for root in calls_with(frame, state.ways.names_in):
        for tensor, edges in state.ways.tensors(root, met):
            with suppress(RuntimeError, NotImplementedError, AttributeError):  # it shows no storage
                alive = live.get(address_of(tensor))
                if (
                    alive.__class__ is not WatchedStorage
                    or alive.device != device
                    or alive.nbytes < least_bytes
                ):
                    continue
                if tensor_bytes(tensor) < alive.nbytes:
                    of_views.setdefault(alive.number, edges)
                elif alive.number not in told:
                    told.add(alive.number)
                    state.rows += (NONE, state.op_counter[0], alive.number, state.paths(edges))
    for number, edges in of_views.items():
        if number not in told:
            state.rows += (NONE, state.op_counter[0], number, state.paths(edges))
