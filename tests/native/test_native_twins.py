"""The recorder in C++ and the one in Python write the same rows."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from native_programs import PROGRAMS, lists_of_lists

import memwatch
from memwatch.capture.schema import NONE
from memwatch.profile import verify

COMPARED = {
    "ops": ("op", "name", "stack", "module", "phase", "sequence", "failed"),
    "uses": ("op", "storage", "access"),
    "births": ("storage", "op", "nbytes", "device", "origin", "shape"),
    "deaths": ("storage", "op"),
    "resizes": ("storage", "op", "nbytes"),
    "packs": ("pack", "storage", "op", "sequence", "module", "nbytes", "shape"),
    "unpacks": ("pack", "op", "released"),
    "roles": ("storage", "role", "name", "op"),
    "calls": ("module", "start_op", "end_op", "depth"),
    "views": ("op", "sequence", "stack", "module", "node"),
    "lifts": ("storage", "stack", "module"),
    "numbers": ("op", "argument", "value", "dimensions", "size", "stride"),
}
TEXTS = {"name", "device", "shape"}


def rows(prof: memwatch.Profile) -> dict[str, list[tuple[object, ...]]]:
    """Return the rows of a capture without times, addresses and the numbering of strings and stacks."""
    capture = prof.capture
    found = {}
    for table, names in COMPARED.items():
        columns = []
        for name in names:
            column = capture.tables[table][name]
            if name in TEXTS:
                column = capture.text(column)
            elif name in ("sequence", "node") and table in ("ops", "packs", "views"):
                column = np.where(column == NONE, NONE, column - capture.tables["ops"]["sequence"].max())
            elif name == "stack":
                column = [stack_of(prof, number) for number in column.tolist()]
            columns.append(list(column) if isinstance(column, list) else column.tolist())
        found[table] = list(zip(*columns, strict=True))
    for table in ("deaths", "unpacks"):  # within one op they come in the order of its clean-up
        found[table].sort(key=lambda row: (row[1], row[0], row[-1]))
    return found


def stack_of(prof: memwatch.Profile, number: int) -> tuple[object, ...]:
    stacks = prof.capture.tables["stacks"]
    here = stacks["stack"] == number
    text = prof.capture.text
    frames = zip(text(stacks["file"][here]), stacks["line"][here].tolist(), strict=True)
    return tuple((file, line) for file, line in frames if file != __file__)  # the two calls are on two lines


def recorded(program, intercept: str) -> memwatch.Profile:
    torch.manual_seed(0)
    gc.collect()
    gc.disable()  # a collection in one run and not in the other frees at other ops
    try:
        with memwatch.profile(intercept=intercept, holders=False) as prof:
            program()
    finally:
        gc.enable()
    return prof


LET_GO_BY_THREADS = {lists_of_lists}
"""Programs whose last references are dropped by threads of torch's own, at any op."""


def same_rows(program, intercept, monkeypatch) -> None:
    """Compare the rows of both recorders for a program that has run once, because torch does some things only once."""
    native = recorded(program, intercept)
    with monkeypatch.context() as patch:
        patch.setenv("MEMWATCH_NATIVE", "0")
        python = recorded(program, intercept)
    assert native.capture.meta["recorder"] == "native"
    assert python.capture.meta["recorder"] == "python"
    expected, found = rows(python), rows(native)
    if program in LET_GO_BY_THREADS:
        for each in (expected, found):
            each["deaths"] = [row[:1] for row in sorted(each["deaths"])]
    for table in COMPARED:
        different = [pair for pair in zip(found[table], expected[table], strict=False) if pair[0] != pair[1]]
        assert (table, different[:3]) == (table, [])
        assert (table, len(found[table])) == (table, len(expected[table]))
    assert len(found["ops"]) > 0


@pytest.mark.parametrize("intercept", ["key", "mode"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_cpp_and_python_record_the_same(program, intercept, monkeypatch):
    """Every row of every table, times and addresses aside."""
    program()
    same_rows(program, intercept, monkeypatch)


_STEP = 40


@pytest.fixture(scope="module")
def op_database():
    """Return one program that runs a sample of every fortieth entry of torch's op database, with gradients."""
    from compat_opinfo import entries, programs  # torch's database takes seconds to import

    samples = [sample for op in entries()[::_STEP] for sample in programs(op, 1)]

    def program():
        for sample in samples:
            sample()

    program()
    return program


@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_cpp_and_python_record_the_same_of_torchs_op_database(op_database, intercept, monkeypatch):
    """Ops that no program above calls: complex and integer results, lists of tensors, many returns, `out`."""
    same_rows(op_database, intercept, monkeypatch)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_native_recorder_does_not_change_the_peak(program):
    """Behind the key in C++ the peak is the plain program's to the byte: nothing is kept while an op runs."""
    program()
    assert verify(program, intercept="key").difference_bytes == 0
