"""Workers of a DataLoader: their memory beside that of the program, and the objects that they copy."""

from __future__ import annotations

import json

import pytest
from forked import run_forked

from memwatch.monitor import copies
from memwatch.monitor.copies import Fork, _of_one_age

MIB = 1 << 20
PROGRAM = """
import json, sys, warnings
import numpy as np, torch, memwatch

warnings.simplefilter("ignore")  # about the number of processors

class Data(torch.utils.data.Dataset):
    def __init__(self, unread=(), **read):
        self.unread = unread
        self.__dict__.update(read)
        self.names = list(read)
    def __len__(self):
        return 60
    def __getitem__(self, number):
        for name in self.names:
            items = getattr(self, name)
            part = max(len(items) // 60, 1)
            if isinstance(items, dict):
                [list(items[key].values()) for key in range(number * part, (number + 1) * part)]
            elif name == "nested":
                [list(each) for each in items[number * part : (number + 1) * part]]
            elif name == "objects":
                items[number * part : (number + 1) * part].tolist()
            else:
                items[number * part : (number + 1) * part]
        return number

def read_by_workers(dataset):
    loader = torch.utils.data.DataLoader(dataset, num_workers=2, persistent_workers=True)
    with memwatch.monitor(interval_s=1000.0, oom=False) as watch:
        batches = iter(loader)
        watch.sample()
        list(batches)
        memory = memwatch.process_memory()
        watch.sample()
        workers = [
            {"uss": child["uss_bytes"], "private": int(memory[f"{child['name']} {child['pid']}"].sum())}
            for child in memory.attrs["children"]
        ]
        sums = [int(memory[column].sum()) for column in ("nbytes", "private_nbytes")]
        attrs = memory.attrs
        wanted = [attrs["rss_bytes"], attrs["uss_bytes"]]
        return [attrs["findings"], watch.findings, watch.report(), workers, sums, wanted]
"""
LISTS = """
copied = Data(
    texts=[f"text number {number}" for number in range(400_000)],
    pairs=tuple([number % 7] for number in range(200_000)),
)
print(json.dumps([read_by_workers(copied)]))
"""
SHARED = """
shared = Data(
    buffer=b"x" * 40_000_000,
    unread=[{"label": number % 7} for number in range(100_000)],
    array=np.arange(4_000_000),
    tensor=torch.arange(4_000_000),
    arrays=[np.ones(100_000) for _ in range(30)],
)
print(json.dumps([read_by_workers(shared)]))
"""
OTHER_STRUCTURES = """
objects = np.empty(400_000, dtype=object)
objects[:] = [f"object number {number}" for number in range(400_000)]
nested = Data(
    records={number: {"label": 1000 + number, "path": f"{number}.jpg"} for number in range(80_000)},
    nested=[[f"text {number} {each}" for each in range(400)] for number in range(1000)],
    objects=objects,
)
del objects
print(json.dumps([read_by_workers(nested)]))
"""


def _read(server, tmp_path_factory, program):
    folder, outputs = (tmp_path_factory.mktemp(name) for name in ("program", "outputs"))
    done = run_forked(server, PROGRAM + program, folder=folder, outputs=outputs, unfrozen=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def datasets(_leaks_fork_server, tmp_path_factory):
    """Read the process when two workers have read a dataset, and its twin without objects to copy."""
    return [
        reading
        for program in (LISTS, SHARED)
        for reading in _read(_leaks_fork_server, tmp_path_factory, program)
    ]


@pytest.fixture(scope="module")
def structures(_leaks_fork_server, tmp_path_factory):
    """Read the process when two workers have read a dataset of a dictionary, nested lists and an array of objects."""
    return _read(_leaks_fork_server, tmp_path_factory, OTHER_STRUCTURES)


@pytest.mark.parametrize("name", ["texts", "pairs"])
def test_objects_that_workers_copy_are_found_with_their_holder(datasets, name):
    container = "`tuple`" if name == "pairs" else "`list`"
    for findings in datasets[0][:2]:
        (finding,) = [each for each in findings if f"attribute .{name} of Data" in each]
        assert "2 forked processes have" in finding
        assert f"in the {container} held by" in finding
        assert "numpy array or tensor" in finding


@pytest.mark.parametrize(
    ("name", "kind"), [("records", "dict"), ("nested", "list"), ("objects", "numpy.ndarray")]
)
def test_copies_are_found_however_the_dataset_keeps_the_objects(structures, name, kind):
    for findings in structures[0][:2]:
        (finding,) = [each for each in findings if f"attribute .{name} of Data" in each]
        assert finding.startswith("2 forked processes have")
        assert f"in the `{kind}` held by" in finding


def test_data_that_workers_share_are_not_accused(datasets):
    """The twin has a list that no worker reads, a large array, a tensor, bytes, and a list of few arrays."""
    by_process_memory, by_monitor, report, *_ = datasets[1]
    assert by_process_memory == by_monitor == []
    assert "finding" not in report


def test_each_worker_is_a_column_that_sums_to_its_uss(datasets):
    for *_, workers, sums, wanted in datasets:
        assert sums == wanted
        assert len(workers) == 2
        for worker in workers:
            assert worker["private"] == pytest.approx(worker["uss"], abs=2 * MIB)


def test_the_report_has_the_growth_of_the_workers(datasets):
    report = datasets[0][2]
    assert "USS growth" in report
    assert report.count("finding: 2 forked processes have") == 2


OF_TWO_FORKS = """
import gc, json, os, signal
from memwatch.monitor.copies import copied_structures, forks_of

gc.disable()
texts = [f"text number {number}" for number in range(400_000)]

def read():
    for text in texts:
        pass

def start(work):
    done, told = os.pipe()
    if not (pid := os.fork()):
        work()
        os.write(told, b"1")
        signal.pause()
    return pid, done

def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

# this process writes the pages, and the forks sleep
idle = []
for _ in range(2):
    idle.append(start(int)[0])
    read()
found = [len(copied_structures(forks_of(idle)))]
for pid in idle:
    end(pid)

forks = [start(read), start(read)]
pids = [pid for pid, done in forks if os.read(done, 1)]
found.append(len(copied_structures(forks_of(pids))))
both = forks_of(pids)
end(pids[0])
found.append(len(copied_structures(both)))
end(pids[1])
print(json.dumps(found))
"""


def test_only_forks_that_copied_pages_are_accused(fresh_python):
    """This process may have written a page. A fork that is older than the write then has the old page alone."""
    forks_sleep, forks_read, one_has_ended = json.loads(fresh_python(OF_TWO_FORKS).stdout)
    assert forks_sleep == 0
    assert forks_read == 1
    assert one_has_ended == 0  # this process may have copied the pages of the other one


OF_OTHER_AGE = """
import gc, json, os, signal, time
from memwatch.monitor.copies import copied_structures, forks_of, note_faults

gc.disable()
texts = [f"text number {number}" for number in range(600_000)]

def read():
    for text in texts:
        pass

def busy():
    for _ in range(30_000):
        block = bytearray(1 << 20)  # malloc maps it and returns it
        block[::4096] = bytes(256)
        del block
        if int(open("/proc/self/stat").read().rpartition(")")[2].split()[7]) > 40_000:
            break

def start(work):
    done, told = os.pipe()
    if not (pid := os.fork()):
        work()
        os.write(told, b"1")
        signal.pause()
    os.read(done, 1)
    return pid

def found(*works, between=int, readings=True):
    if readings:
        note_faults()
        time.sleep(0.05)  # the kernel rounds the start of a fork down to 10 ms, which must not be before the reading
    pids = []
    for work in works:
        pids.append(start(work))
        between()
        time.sleep(1.2)
    copies = copied_structures(forks_of(pids))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return [[each.forks, each.copied_bytes, each.holder] for each in copies]

print(json.dumps([
    found(read, read, readings=False),
    found(read, read),
    found(int, int, between=read),
    found(busy, busy, between=read),
]))
"""


def test_copies_of_forks_that_started_at_other_times_are_beyond_the_faults_of_this_process(fresh_python):
    """The forks of a twin sleep or take memory, while this process reads the texts."""
    unknown, copied, asleep, busy = json.loads(fresh_python(OF_OTHER_AGE).stdout)
    assert unknown == []  # nobody has read the faults of this process before the forks
    ((forks, copied_bytes, holder),) = copied
    assert forks == 2
    assert 2 * 600_000 * 50 < copied_bytes < 2 * 600_000 * 100
    assert "`texts`" in holder
    assert asleep == []
    assert busy == []


def test_a_page_that_was_swapped_out_can_be_copied_in_a_major_fault(monkeypatch):
    fields = [b"0"] * 30
    fields[7], fields[9] = b"300", b"40"  # minflt and majflt
    monkeypatch.setattr(copies, "_fields_of", lambda _pid: fields)
    assert Fork(1, 0.0).page_faults == 340
    monkeypatch.setattr(copies, "_readings", [(0.0, 100)])
    assert copies._faults_since(Fork(1, 0.0)) == 240


def test_forks_of_different_age_are_not_compared():
    """This process may have written the pages between them."""
    forks = [Fork(number, start_s) for number, start_s in enumerate([30.0, 0.0, 0.4, 1.2, 9.0, 9.1])]
    assert [[fork.pid for fork in group] for group in _of_one_age(forks)] == [[1, 2, 3], [4, 5]]
