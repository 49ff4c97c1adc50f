"""The name of a whole buffer comes before the name of a slice. A slice that alone keeps the buffer is named itself."""

from __future__ import annotations

import pytest
import torch

import memwatch

ROWS, WIDE = 1000, 1000
BUFFER_BYTES = ROWS * WIDE * 4


class Ring:
    def __init__(self):
        self.buffer = torch.zeros(ROWS, WIDE)

    def read(self, start):
        window = self.buffer[start : start + 50]
        return window @ torch.ones(WIDE, 700)


def use(view):
    return view + torch.ones(600, WIDE)[: len(view)]


def pass_a_slice():
    buffer = torch.zeros(ROWS, WIDE)
    for start in range(0, 80, 10):
        use(buffer[start : start + 10])


def read_an_attribute():
    ring = Ring()
    for start in range(3):
        ring.read(start)


def keep_slices_too():
    ring = Ring()
    slices = [ring.buffer[row] for row in range(10)]
    return slices, torch.ones(500, 500)


def keep_many_slices_too():
    ring = Ring()
    slices = [ring.buffer[row] for row in range(400)]
    return slices, torch.ones(500, 500)


def keep_a_slice():
    def first_row():
        return torch.zeros(ROWS, WIDE)[:1]

    row = first_row()
    return row, torch.ones(500, 500)


def keep_many_slices():
    def rows():
        return list(torch.zeros(ROWS, WIDE))

    slices = rows()
    return slices, torch.ones(500, 500)


def holders_of_buffer(program):
    with memwatch.profile() as prof:
        program()
    peak = prof.at_peak
    (holder,) = peak.holder[peak.nbytes == BUFFER_BYTES]
    return holder


@pytest.mark.parametrize(
    ("program", "holder"),
    [
        (pass_a_slice, "`buffer`, local variable of `pass_a_slice`"),
        (read_an_attribute, "`self.buffer`, argument of `read`"),
        (keep_slices_too, "`ring.buffer`, local variable of `keep_slices_too`"),
        (keep_many_slices_too, "`ring.buffer`, local variable of `keep_many_slices_too`"),
    ],
)
def test_a_name_of_the_whole_buffer_is_told_before_a_slice(program, holder):
    assert holders_of_buffer(program).startswith(holder)


@pytest.mark.parametrize(("program", "name"), [(keep_a_slice, "row"), (keep_many_slices, "slices")])
def test_a_slice_that_alone_keeps_the_buffer_is_told(program, name):
    assert holders_of_buffer(program).startswith(f"`{name}`, local variable of `{program.__name__}`")
