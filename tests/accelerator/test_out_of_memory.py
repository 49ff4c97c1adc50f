"""When a device has no memory left: the error, and the note that memwatch adds to it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pretend
import pytest
import torch

import memwatch
from memwatch.devices import adapter_of, is_out_of_memory
from memwatch.devices.adapters import reserved_in
from memwatch.monitor.guard import start_guard
from memwatch.words.processes import reserved_text

MIB = 1 << 20
DEVICE = "pretend:0"
NATIVE = pytest.mark.parametrize("native", ["1", "0"])


def make(nbytes):
    return torch.empty(nbytes, dtype=torch.uint8, device=DEVICE)


def run_out(native):
    """Hold 6 of 20 MiB in three pieces, then allocate 8 MiB while 14 are free."""
    os.environ["MEMWATCH_NATIVE"] = native
    pretend.set_limit(0, 20 * MIB)
    held = [make(4 * MIB) for _ in range(5)]
    del held[1], held[2]
    prof = memwatch.profile()
    with pytest.raises(torch.OutOfMemoryError) as raised, prof:
        make(8 * MIB)
    left = reserved_in(adapter_of(DEVICE).segments(DEVICE))  # nothing was freed since
    del held
    return prof, raised.value, left


@NATIVE
def test_the_error_says_why_though_enough_was_free(native):
    """Reserved, allocated, free and the largest free block, as they were when memory ran out."""
    prof, error, held = run_out(native)
    notes = [text for kind, text in prof.notes if kind == "out of memory"]
    assert notes == [f"{DEVICE}: when memory ran out {reserved_text(held)}"]
    assert (held.reserved_bytes, held.allocated_bytes) == (20 * MIB, 12 * MIB)
    assert held.free_bytes == 8 * MIB
    assert held.largest_free_bytes == 4 * MIB
    assert is_out_of_memory(error)
    assert "the largest free block has 4.00 MiB" in " ".join(error.__notes__[0].split())


@NATIVE
def test_an_op_that_fails_otherwise_says_nothing_of_memory(native):
    """The allocator counts how often memory ran out, so other errors are distinguished from it."""
    os.environ["MEMWATCH_NATIVE"] = native
    tensor = make(16).float()
    with memwatch.profile() as prof, pytest.raises(RuntimeError):
        tensor.view(3)
    assert not [kind for kind, _ in prof.notes if kind == "out of memory"]


@NATIVE
def test_a_limit_of_one_device(native):
    """Memwatch's own limit stops the op before the allocator has to."""
    os.environ["MEMWATCH_NATIVE"] = native
    with memwatch.profile(limit_bytes={"pretend:0": 8 * MIB}):
        kept = [torch.empty(9 * MIB, dtype=torch.uint8, device="pretend:1"), make(5 * MIB)]
    with (
        pytest.raises(memwatch.MemoryLimitError, match="pretend:0"),
        memwatch.profile(limit_bytes={"pretend:0": 8 * MIB}),
    ):
        kept.append(make(5 * MIB))


@NATIVE
def test_memory_that_runs_out_at_any_allocation_changes_nothing_of_the_program(native):
    """At the n-th allocation, for every n: torch's error as it is without memwatch, a note, and the same tensors."""
    os.environ["MEMWATCH_NATIVE"] = native

    def work(kept):
        for _ in range(6):
            kept.append(make(12 * MIB))

    for count in range(6):
        errors = []
        for observed in (False, True):
            kept = []
            torch.accelerator.empty_cache()
            pretend.set_limit(0, (12 * count + 2) * MIB)
            run = memwatch.profile()(work) if observed else work
            with pytest.raises(torch.OutOfMemoryError) as raised:
                run(kept)
            assert len(kept) == count
            errors.append(raised.value)
            pretend.set_limit(0, 1 << 40)
            kept.clear()  # the error keeps the call, which has the list
        plain, seen = errors
        assert type(seen) is type(plain)
        assert str(seen) == str(plain)
        note = " ".join("".join(seen.__notes__).split())
        live = f"{12 * count}.00 MiB were live on {DEVICE}" if count else "nothing of this block was live"
        assert note.startswith(f"memwatch: {live}")
        assert "when memory ran out, and the program requested 12.00 MiB more" in note


HELD = []


def test_the_report_of_the_guard_has_the_device_and_its_reserved_memory():
    """An uncaught error in a program that recorded nothing: the holder, and why the free memory was no help."""
    pretend.set_limit(0, 20 * MIB)
    guard = start_guard(Path("run").absolute())
    HELD.extend(make(4 * MIB) for _ in range(5))
    try:
        del HELD[1], HELD[2]
        with pytest.raises(torch.OutOfMemoryError) as raised:
            make(8 * MIB)
        text = str(raised.value)
        guard.report_error(raised.value)
    finally:
        HELD.clear()
        guard.stop()
    record = json.loads(Path("run.oom.json").read_text())
    (first,) = [group for group in record["live"] if group["device"] == DEVICE]
    assert (first["nbytes"], first["count"], first["category"]) == (12 * MIB, 3, "other tensors")
    assert "global `HELD`" in first["holder"]
    (held,) = [each for each in record["reserved"] if each["device"] == DEVICE]
    assert (held["reserved_bytes"], held["free_bytes"], held["largest_free_bytes"]) == (
        20 * MIB,
        8 * MIB,
        4 * MIB,
    )
    assert any("expandable_segments" in change["change"] for change in record["changes"])
    assert str(raised.value) == text
