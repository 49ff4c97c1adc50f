"""Take a holder sample at the end of every op. This is the highest sampling rate possible.

A block takes a few samples and chooses their moments by the clock. So an ordinary run would miss most of the moments
at which a sample could change the program. Used by `tests/compat`, `tests/cuda` and reports.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any
from unittest import mock

from memwatch.record.flush import FlushPace
from memwatch.record.holders.state import SamplingCosts, SamplingState
from memwatch.record.session import Session
from memwatch.record.tables.storages import NEVER


@contextlib.contextmanager
def sample_every_op(*, deep_every: int = 1, whole_ops: int | None = None) -> Iterator[list[int]]:
    """Let the blocks that are opened inside take a sample after each op, below autograd, where samples are taken.

    Args:
        deep_every: every `deep_every`-th sample also searches the heap through gc, which is slow.
        whole_ops: the gap between two samples is the number of the op divided by this, and at least 1. So the first
            2 x `whole_ops` ops are all sampled, and a program of a million ops ends in minutes. None: a sample at
            every op.

    Yields:
        A list with the number of samples so far, so that a test can assert that there were some.
    """
    count = [0]
    next_op = 0
    flush_due = Session.flush_due

    def sample_and_flush(session: Session) -> None:
        nonlocal next_op
        holders, op = session._holders, session.op_counter[0]
        if holders is not None and not holders._is_sampling and op >= next_op:
            next_op = op + 1 if whole_ops is None else op + max(1, op // whole_ops)
            for device in sorted(session.storages.devices):
                holders.sample(device)
                count[0] += 1
        flush_due(session)

    def call_after_every_op(pace: FlushPace) -> None:
        pace._flush_at(0, NEVER)

    samples = itertools.count(1)

    def is_deep(*args: Any) -> bool:
        return next(samples) % deep_every == 0

    with (
        mock.patch.object(Session, "flush_due", sample_and_flush),
        mock.patch.object(FlushPace, "_set_next_call", call_after_every_op),
        mock.patch.object(SamplingState, "least_bytes", return_value=1),
        mock.patch.object(SamplingState, "is_time_to_search_again", is_deep),
        mock.patch.object(SamplingCosts, "may_look_at_roles", return_value=True),
        mock.patch.object(SamplingCosts, "may_scan_heap", is_deep),
    ):
        yield count
