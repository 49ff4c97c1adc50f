"""If a signal handler raises, as for Ctrl-C, its exception reaches the program, whatever memwatch is doing."""

from __future__ import annotations

import gc
import random
import signal
import sys
import threading

import numpy as np
import pytest
import torch

import memwatch
from memwatch.record import flush
from memwatch.record.python.ledger import PythonLedger
from memwatch.record.tables.rows import Strings, new_op_counter
from memwatch.record.tables.storages import BASELINE, Storages, address_of

SIGNALS = 300
ROUNDS = 60
FLUSH_EVERY_OPS = 40  # as often as a flush can be hit


class Interrupted(BaseException):
    """Raised by the handler of the test."""


@pytest.fixture
def alarm():
    """Let the alarm clock raise; give the list of the times it did."""
    rung = []

    def ring(number, frame):
        rung.append(number)
        raise Interrupted

    before = signal.signal(signal.SIGALRM, ring)
    gc.disable()  # Python swallows errors of gc's callbacks, and other tools of the tests have some
    yield rung
    gc.enable()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("native", ["1", "0"])
@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_no_interrupt_is_lost(intercept, native, alarm, monkeypatch, tmp_path):
    """Each of many interrupts reaches the program, none is swallowed, and the capture stays whole."""
    monkeypatch.setenv("MEMWATCH_NATIVE", native)
    monkeypatch.setattr("memwatch.record.flush.FLUSH_OPS", FLUSH_EVERY_OPS)
    swallowed = []
    monkeypatch.setattr("sys.unraisablehook", swallowed.append)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    with memwatch.profile(intercept=intercept):
        # torch imports parts of itself at first use, which is not our matter
        model(torch.ones(2, 4)).sum().backward()
    rng = random.Random(0)
    caught = 0
    with memwatch.profile(tmp_path / "a.memwatch", intercept=intercept) as prof:
        while caught < SIGNALS:
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 2e-3))
                while len(alarm) == caught:
                    model(torch.ones(2, 4)).sum().backward()
            except Interrupted:
                caught += 1
            assert len(alarm) == caught
    assert swallowed == []
    recorded = prof.capture.tables
    for table, numbers in (("ops", "op"), ("births", "storage"), ("packs", "pack")):
        rows = recorded[table][numbers]
        np.testing.assert_array_equal(rows, np.arange(len(rows)))
    # where the peak falls hangs on the interrupts: it may be in an op that is given a Python number
    assert [note for note in prof.notes if note[0] not in {"observer", "ways"}] == []
    assert prof.summary()


@pytest.mark.parametrize("native", ["1", "0"])
def test_storages_that_other_threads_resize_die_once(native, monkeypatch):
    """Several threads may report deaths at once. Each death is reported once, and every call succeeds."""
    monkeypatch.setenv("MEMWATCH_NATIVE", native)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    over, errors = threading.Event(), []

    def resize():
        try:
            while not over.is_set():
                torch.UntypedStorage(8).resize_(16)
        except Exception as error:
            errors.append(error)

    try:
        with memwatch.profile(allocator=False) as prof:
            threads = [threading.Thread(target=resize) for _ in range(3)]
            for thread in threads:
                thread.start()
            for _ in range(ROUNDS):
                held = [torch.ones(3) for _ in range(60)]
                del held
            over.set()
            for thread in threads:
                thread.join()
    finally:
        over.set()
        sys.setswitchinterval(before)
    died = prof.capture.tables["deaths"]["storage"]
    assert errors == []
    assert len(died) == len(np.unique(died)) == ROUNDS * 60


def test_an_address_may_be_in_use_again_before_its_death_is_told():
    """While another thread reports deaths, a new storage at the address of a dead one is a storage of its own."""
    ledger = PythonLedger()
    storages = Storages(Strings(), new_op_counter(), ledger)
    ledger._writing = True  # as that thread does
    numbers, addresses = [], set()
    while len(addresses) == len(numbers):  # until an address comes again
        tensor = torch.ones(3)
        addresses.add(address_of(tensor))
        numbers.append(storages.number_of(tensor, 0, BASELINE))
    assert numbers == list(range(len(numbers)))


class Handler:
    """A handler of signals whose text is never read."""

    told = 0

    def __call__(self, number, frame):
        """Do nothing."""

    def __repr__(self):
        """Count: of asyncio's handler it would be the main task with its result."""
        self.told += 1
        return "a handler"


def test_the_handlers_of_the_program_are_not_asked_for_their_text(monkeypatch, tmp_path):
    """Python's own `signal.signal` takes the text of a handler; a flush and a search of the roots do not."""
    handler = Handler()
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        monkeypatch.setattr(flush, "FLUSH_OPS", 3)
        with memwatch.profile(tmp_path / "run.memwatch"):
            kept = [torch.ones(3) for _ in range(20)]
        memwatch.why_alive(kept[0])
        assert handler.told == 0
    finally:
        signal.signal(signal.SIGUSR1, before)
