"""Memory that was alive when another process started may have been read there: its use is not known."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import memwatch
from memwatch.record.process import StartedProcesses, _may_send_tensors

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
SIZE = 1 << 16


class Rows(Dataset):
    """A data set of one tensor."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        """Return the number of rows."""
        return len(self.data)

    def __getitem__(self, index):
        """Return a row."""
        return self.data[index].sum()


def load(rows):
    for _ in DataLoader(rows, batch_size=2, num_workers=1):
        pass


def start_process(rows):
    worker = multiprocessing.get_context("fork").Process(target=len, args=(rows,))
    worker.start()
    worker.join()


def fork(rows):
    child = os.fork()
    if not child:
        os._exit(0 if len(rows) else 1)
    assert os.waitpid(child, 0)[1] == 0


def start_program(rows):
    """Start a program, which cannot read this process's memory."""
    assert len(rows)
    subprocess.run([sys.executable, "-S", "-c", ""], check=True)


def work():
    used = torch.ones(SIZE)
    for _ in range(3):
        (used + 1).sum()


def hold(start, *, before):
    """Make a data set that no op of this process reads, before or after another process starts."""
    if not before:
        start([1])
    rows = Rows(torch.ones(4, SIZE // 4))
    if before:
        start(rows)
    work()
    assert len(rows) == 4


def use_then_start(start, *, before):
    """Use a tensor for the last time before or after another process starts."""
    kept = torch.ones(SIZE)
    kept.sum()
    if not before:
        start([1])
        kept.sum()
    else:
        start(kept)
    work()


def found(program, *args, **options):
    with memwatch.profile() as prof:
        program(*args, **options)
    return prof, {str(finding.kind) for finding in prof.findings}


@pytest.mark.parametrize("start", [start_process, fork])
@pytest.mark.parametrize(("program", "kind"), [(hold, "void"), (use_then_start, "drag")])
def test_memory_that_a_started_process_may_read_is_no_finding(start, program, kind):
    prof, kinds = found(program, start, before=True)
    assert kind not in kinds
    assert kind not in set(prof.at_peak["phase"][prof.at_peak["nbytes"] == SIZE * 4])
    prof, kinds = found(program, start, before=False)
    assert kind in kinds
    assert kind in set(prof.at_peak["phase"])


def test_the_data_set_of_loader_workers_is_no_finding():
    assert "void" not in found(hold, load, before=True)[1]


def test_a_tensor_from_after_the_workers_is_judged():
    assert "void" in found(hold, lambda _: load(Rows(torch.ones(4, 4))), before=False)[1]


def test_a_started_program_reads_no_memory_of_this_one():
    assert "void" in found(hold, start_program, before=True)[1]


def test_a_file_keeps_when_processes_started(tmp_path):
    with memwatch.profile(tmp_path / "run.memwatch"):
        hold(fork, before=True)
    reading = memwatch.load(tmp_path / "run.memwatch")
    ((first_ns, last_ns),) = reading.meta["processes_started_ns"]
    assert reading.meta["start_ns"] < first_ns == last_ns < reading.meta["end_ns"]
    assert reading.findings == []


def test_many_starts_become_one_stretch(monkeypatch):
    """The times of some starts are kept. After these, memory of the whole rest counts as read."""
    monkeypatch.setattr("memwatch.record.process._MOST_TIMES", 2)
    with memwatch.profile() as prof:
        for _ in range(4):
            fork([1])
    (first, second) = prof.meta["processes_started_ns"]
    assert first[0] == first[1] < second[0] < second[1]


def test_the_line_where_a_local_variables_call_stands_is_not_said_to_set_it():
    prof, _ = found(hold, lambda _: None, before=True)
    (finding,) = (finding for finding in prof.findings if finding.kind == "void")
    assert "`rows.data`" in finding.holder
    assert finding.variable == ""
    assert " at " in str(finding)
    assert "is set at" not in str(finding)


class Values(Dataset):
    """A data set that a worker reads."""

    def __init__(self, count):
        self.data = torch.ones(count, SIZE // 64)

    def __len__(self):
        """Return the number of rows."""
        return len(self.data)

    def __getitem__(self, index):
        """Return a row."""
        return self.data[index]


def keep_results(start, *, epochs=4):
    """Keep a result of each of two iterations per epoch; each epoch starts processes."""
    net, kept = torch.nn.Linear(SIZE // 64, SIZE // 64), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    rows = Values(256)
    for _ in range(epochs):
        for (batch,) in start(rows):
            out = net(batch)
            kept.append(out.detach().clone())
            out.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert len(kept) == 2 * epochs


def in_workers(rows):
    return ((batch,) for batch in DataLoader(rows, batch_size=128, num_workers=1, collate_fn=as_batch))


def as_batch(rows):
    return torch.stack(rows)


def with_fork(rows):
    fork(rows)
    return ((batch,) for batch in rows.data.split(128))


@pytest.mark.parametrize("start", [in_workers, with_fork])
def test_results_of_iterations_are_no_data_set_of_a_started_process(start):
    """A list that grows is found, though each epoch starts processes."""
    prof, _ = found(keep_results, start)
    (growing,) = (finding for finding in prof.findings if finding.growth_bytes)
    assert growing.nbytes == 8 * growing.growth_bytes == 8 * 128 * (SIZE // 64) * 4


def make_folds():
    """Make a data set for each fold, which a forked process reads, and train in many iterations."""
    net = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        rows = Rows(torch.ones(4, SIZE // 4))
        fork(rows)
        for _ in range(4):
            net(torch.ones(64, 64)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert len(rows) == 4


def test_the_data_set_of_each_fold_is_no_finding():
    assert "void" not in found(make_folds)[1]


def test_numbers_and_texts_are_no_tensors():
    context = multiprocessing.get_context("spawn")
    assert not _may_send_tensors(context.Process(target=len, args=(1, "a"), kwargs={"value": None}))
    assert _may_send_tensors(context.Process(target=len, args=(Rows([1]),)))
    assert _may_send_tensors(context.Process(target=len, kwargs={"value": [torch.ones(1)]}))


def test_no_code_of_the_programs_process_class_runs():
    """It may record each look, or raise."""
    looks = []

    class Recording(type):
        def __getattribute__(cls, name):
            looks.append(name)
            return super().__getattribute__(name)

    class Process(multiprocessing.get_context("spawn").Process, metaclass=Recording):
        def __getattribute__(self, name):
            looks.append(name)
            return super().__getattribute__(name)

    process = Process(target=len, args=(1,))
    looks.clear()
    assert not _may_send_tensors(process)
    assert looks == []


def test_a_spawned_process_without_tensors_reads_no_memory():
    context = multiprocessing.get_context("spawn")

    def start(_):
        worker = context.Process(target=abs, args=(1,))
        worker.start()
        worker.join()

    assert "void" in found(hold, start, before=True)[1]


def test_a_program_that_fails_to_start_reads_no_memory():
    """`preexec_fn` makes `Popen` fork."""

    def start(_):
        with pytest.raises(FileNotFoundError):
            subprocess.Popen(["/nonexistent"], preexec_fn=int)  # noqa: PLW1509

    prof, kinds = found(hold, start, before=True)
    assert "void" in kinds
    assert prof.meta["processes_started_ns"] == []
    assert prof.notes == []


def test_a_fork_of_another_thread_counts_while_a_program_starts():
    """The thread forks while `Popen` runs."""
    started = StartedProcesses()
    started.start()
    try:

        def init(*_):
            fork([1])
            thread = threading.Thread(target=fork, args=([1],))
            thread.start()
            thread.join()

        started._popen(init, None, ["true"])
    finally:
        started.stop()
    assert len(started.times) == 1
