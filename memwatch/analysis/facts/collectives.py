"""Find the ops that communicate between processes, and the storages that they read and write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.capture.schema import ACCESSES, BACKWARD, NONE
from memwatch.kinds.roles import OF_TRAINING

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwatch.analysis.facts.allocations import Allocations
    from memwatch.analysis.facts.coded import Coded
    from memwatch.capture import Capture

_FUNCTIONAL: Final = ("_c10d_functional.", "c10d_functional.", "_dtensor.")
"""Beginnings of the names of collectives that leave their arguments unchanged and return new memory."""
_COLLECTIVES: Final = ("c10d.", *_FUNCTIONAL)
"""Beginnings of the names of the ops that processes communicate with."""
_RECEIVES: Final = ("c10d.recv_",)
_SENDS: Final = ("c10d.send",)
_UNDEFINED: Final = ("aten.empty", "aten.new_empty")
"""Beginnings of the names of ops that make memory with undefined content."""
COMMUNICATION: Final = ("communication", "unsharded parameter")
"""Categories of memory that collectives need."""
"""Categories that memory keeps even if a collective writes into it, as a broadcast does that makes ranks start alike.
"""


def collective_ops(capture: Capture) -> NDArray[np.bool_]:
    """Return, per op, whether processes communicate in it."""
    return _named(capture, _COLLECTIVES)


def _named(capture: Capture, beginnings: tuple[str, ...]) -> NDArray[np.bool_]:
    """Return, per op, whether its name begins with one of some texts."""
    names = capture.tables["ops"]["name"]
    known, of_op = np.unique(names, return_inverse=True)
    is_named = np.array([text.startswith(beginnings) for text in capture.text(known)], dtype=bool)
    found: NDArray[np.bool_] = is_named[of_op] if len(known) else np.zeros(0, dtype=bool)
    return found


def communicated_in_backward(
    capture: Capture, collective: NDArray[np.bool_], named: int
) -> NDArray[np.bool_]:
    """Return the storages that a collective used during a backward, such as buckets made before the block.

    A storage that collectives only read does not become a buffer: a gradient in flight stays a gradient.
    """
    taken = np.zeros(named, dtype=bool)
    uses, phase = capture.tables["uses"], capture.tables["ops"]["phase"]
    if collective.any():
        works_on = collective & (phase == BACKWARD) & ~_named(capture, (*_FUNCTIONAL, *_SENDS))
        taken[uses["storage"][works_on[uses["op"]]]] = True
    return taken


def received_into(capture: Capture, collective: NDArray[np.bool_], named: int) -> NDArray[np.bool_]:
    """Return the storages into which a process received data.

    torch's schemas do not mark the arguments that a collective writes. A receive only writes. For the other
    collectives, a storage with undefined contents that a collective uses first is an output, because there is nothing
    in it to send.
    """
    received = np.zeros(named, dtype=bool)
    if not collective.any():
        return received
    uses, births = capture.tables["uses"], capture.tables["births"]
    received[uses["storage"][_named(capture, _RECEIVES)[uses["op"]]]] = True
    touched = uses["access"] != ACCESSES.index("output")
    none = len(collective)
    first_op = np.full(named, none, dtype=np.int64)
    np.minimum.at(first_op, uses["storage"][touched], uses["op"][touched].astype(np.int64))
    writes = np.append(collective & ~_named(capture, _SENDS), False)
    undefined = np.append(_named(capture, _UNDEFINED), False)
    made = np.where(births["op"] == NONE, none, births["op"])
    received[births["storage"][undefined[made] & writes[first_op[births["storage"]]]]] = True
    return received


def for_collectives(capture: Capture, allocations: Allocations, category: Coded) -> NDArray[np.bool_]:
    """Return, per allocation of a tensor, whether it is there for a collective: one needs it, made or received it.

    This holds for memory with other uses too: autograd may save a collective's result, and a module may take received
    memory.
    """
    collective = collective_ops(capture)
    made = np.append(collective, False)[np.where(allocations.op == NONE, len(collective), allocations.op)]
    received = np.append(received_into(capture, collective, allocations.named), False)[allocations.storage]
    found: NDArray[np.bool_] = allocations.storage != NONE
    found &= category.isin(COMMUNICATION) | ((made | received) & ~category.isin(OF_TRAINING))
    return found
