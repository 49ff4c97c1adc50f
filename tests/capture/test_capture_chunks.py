"""Chunks: every column of integers comes back as it was, in few bytes where its values lie close together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memwatch.capture.columns import decode, deflated, encoded
from memwatch.errors import CaptureError

LEAST, MOST = -(2**63), 2**63 - 1


def encode(values):
    (chunk,) = encoded(values.reshape(-1, 1))
    return chunk


def back(chunk):
    values = np.empty(chunk.rows, dtype=np.int64)
    decode(chunk, values)
    return values.tolist()


@given(st.lists(st.integers(LEAST, MOST) | st.sampled_from([LEAST, 0, 1, MOST]), min_size=1, max_size=30))
@settings(deadline=None, max_examples=100)
def test_every_integer_of_64_bits_comes_back(values):
    """In memory and deflated; the extremes are known without decoding."""
    chunk = encode(np.array(values, dtype=np.int64))
    assert (chunk.low, chunk.high) == (min(values), max(values))
    assert back(chunk) == back(deflated(chunk)) == values


@pytest.mark.parametrize(
    ("values", "nbytes"),
    [
        (np.arange(10_000) + 2**60, 30),  # numbers count up
        (np.full(10_000, -1), 30),
        (np.arange(10_000) % 200, 10_030),
        (np.cumsum(np.arange(10_000) % 60_000) + 2**60, 20_030),  # times follow each other
    ],
)
def test_neighbours_that_are_close_take_few_bytes(values, nbytes):
    """A column takes the bytes that its offsets or its differences need, not eight for each value."""
    chunk = encode(values)
    assert len(chunk.data) <= nbytes
    assert back(chunk) == values.tolist()


@given(data=st.data())
@settings(deadline=None, max_examples=100)
def test_a_damaged_chunk_is_refused_or_read(data):
    """Whatever the bytes, and whatever they claim to be, there is a column of that length or one clear error."""
    values = np.array(data.draw(st.lists(st.integers(0, 2**40), min_size=1, max_size=40)), dtype=np.int64)
    chunk = deflated(encode(values))
    damaged = bytearray(chunk.data)
    for _ in range(data.draw(st.integers(1, 5))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert len(back(chunk._replace(data=bytes(damaged)))) == len(values)
    except CaptureError as error:
        assert "record it again" in str(error)  # noqa: PT017  # both ways are right
