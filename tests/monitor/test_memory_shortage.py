"""When memory runs out, or nearly does, a report names the holders, and the program ends as it would have."""

from __future__ import annotations

import gc
import json
import re
import resource
import sys
import threading

import failing_programs
import pytest

import memwatch
from memwatch.devices import is_out_of_memory
from memwatch.devices.adapters import Reserved
from memwatch.errors import MemoryLimitError
from memwatch.monitor import live_memory as live_memory_module
from memwatch.monitor.limits import ADDRESS_SPACE, MemoryLimits
from memwatch.monitor.live_memory import NOBODY, Container, Group, LiveMemory, live_memory
from memwatch.monitor.shortage import Shortage

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the address space")
MIB = 1 << 20
SAMPLED = [
    "tensors in a list", "losses with their graphs", "the state of an optimizer", "gradients", "numpy arrays",
    "a log of requests", "a buffer that grows in place", "a few large pieces of bytes",
    "a thread", "a cached function", "an error that was raised again", "a child process",
    "a hook of the program for errors", "a worker of a DataLoader", "arrays in a worker of a DataLoader",
]  # fmt: skip
"""`reports/out_of_memory.py` runs all programs."""
TWINS = ["a cache in an object", "activations of a deep model", "a worker of a DataLoader"]


def record_in(folder):
    """Return the record of the only report in a folder. Its three files belong together."""
    files = sorted(folder.glob("*.oom.*"))
    assert [file.suffix for file in files] == [".html", ".json", ".txt"], files
    record = json.loads(files[1].read_text())
    text, page = files[2].read_text(), files[0].read_text()
    for holder in (group["holder"] for group in record["live"][:1]):
        assert holder in text
        assert holder.partition("`")[0] in page
    tables = page.partition("<h2>Everything as text</h2>")[0]
    assert "`" not in re.sub(
        "<pre>.*?</pre>", "", tables, flags=re.DOTALL
    )  # names are code; an error keeps its text
    assert '<p class="lead">' in tables
    return record


@pytest.mark.parametrize("name", SAMPLED)
def test_the_report_names_what_filled_the_memory(name, fresh_python, tmp_path):
    program = failing_programs.PROGRAMS[name]
    done = fresh_python(failing_programs.code_of(program))
    record = record_in(tmp_path)
    assert failing_programs.is_named(program, record), record["live"][:3]
    assert program.error in done.stderr or "hook" in name, done.stderr
    assert record["process"]["rss_bytes"] > 0
    assert any(limit["name"] == ADDRESS_SPACE for limit in record["limits"])
    assert all(change["basis"] == "estimated" for change in record["changes"])
    assert done.stderr.count("memwatch: memory ran out; the report is in") == 1


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_that_stays_below_the_limit_has_no_report_and_no_output(name, fresh_python, tmp_path):
    done = fresh_python(failing_programs.code_of(failing_programs.PROGRAMS[name], twin=True))
    assert (done.returncode, done.stdout, done.stderr) == (0, "the program ended\n", "")
    assert list(tmp_path.iterdir()) == []


def test_the_error_and_the_end_are_those_of_the_program_alone(fresh_python):
    program = failing_programs.PROGRAMS["one large request"]
    plain = fresh_python(failing_programs.code_of(program, start=""))
    seen = fresh_python(failing_programs.code_of(program))
    assert (seen.returncode, seen.stdout) == (plain.returncode, plain.stdout) == (1, "")
    told, traceback = seen.stderr.split("\n", 1)
    assert told.startswith("memwatch: memory ran out; the report is in ")
    assert traceback.startswith(plain.stderr)
    if sys.version_info >= (3, 11):  # 3.10 prints the note before the traceback
        note = traceback.removeprefix(plain.stderr)
        assert note.startswith("memwatch: memory ran out; the request that failed: ")
        assert "local `scores` of attend" in note
        assert "the request itself is the problem (1.00 GiB in one piece)" in note


POOL = """
import gc, multiprocessing, torch
gc.unfreeze()
from pathlib import Path
from memwatch.monitor.guard import start_guard
start_guard(Path("run"))
kept = torch.ones(1 << 22)
def work(number):
    torch.empty(1 << 50)
with multiprocessing.get_context("fork").Pool(1) as pool:
    pool.map(work, [0])
"""


def test_memory_of_a_process_that_did_not_run_out_is_said_to_be_that(fresh_python, tmp_path):
    done = fresh_python(POOL)
    text, record = (tmp_path / "run.oom.txt").read_text(), record_in(tmp_path)
    assert "another process ran out of memory. The figures below are about this process" in text
    assert "another process ran out of memory" in done.stderr or sys.version_info < (3, 11)
    assert record["live"][0]["holder"].startswith("global `kept`")
    assert record["changes"] == []


AGAIN = "Caught {kind} in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  File"


class BatchMemoryError(MemoryError):
    """Has arguments that torch does not know, so torch raises a RuntimeError in its place."""


@pytest.mark.parametrize("kind", ["MemoryError", "BatchMemoryError"])
def test_an_error_of_a_worker_is_recognised_by_the_class_in_its_text(kind):
    assert is_out_of_memory(RuntimeError(AGAIN.format(kind=kind)))


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(AGAIN.format(kind="ValueError") + "\nMemoryError"),
        RuntimeError("Caught MemoryError in the text of a user"),
        ValueError(AGAIN.format(kind="MemoryError")),
    ],
)
def test_another_error_that_has_such_words_is_none(error):
    assert not is_out_of_memory(error)


ALONE = """
import gc, numpy as np, sys, torch
gc.unfreeze()
from pathlib import Path
from memwatch.monitor.guard import start_guard
start_guard(Path("run"))
kept = torch.ones(1 << 22)
exec(sys.argv[1])
"""


@pytest.mark.parametrize("code", ["torch.empty(1 << 50)", "np.zeros((1 << 22, 1 << 22))"])
def test_a_request_that_no_change_makes_possible_is_the_problem_itself(code, fresh_python, tmp_path):
    done = fresh_python(ALONE, code)
    record, text = record_in(tmp_path), (tmp_path / "run.oom.txt").read_text()
    assert record["changes"] == []
    assert record["asked_bytes"] == (1 << 52 if "torch" in code else 1 << 47)
    assert "the request itself is the problem" in text
    assert "the request that failed: " in text
    assert "free earlier" not in text + done.stderr
    if "np" in code:
        assert record["error"].startswith("_ArrayMemoryError: Unable to allocate 128. TiB for an array")


WRAPPED = """
try:
    {}
except Exception as error:
    raise MemoryError("cannot allocate the batch"){}
"""


@pytest.mark.parametrize(
    ("code", "head", "advice"),
    [
        (
            "bytes(10**15)",
            "a request for memory failed",
            "the request itself is the problem (its size is not known",
        ),
        (
            "raise MemoryError('too many tokens')",
            "the program raised a MemoryError itself",
            "memwatch suggests no change",
        ),
        (
            WRAPPED.format("bytes(10**15)", " from error"),
            "a request for memory failed",
            "its size is not known",
        ),
        (WRAPPED.format("bytes(10**15)", ""), "a request for memory failed", "its size is not known"),
        (
            WRAPPED.format("torch.empty(1 << 50)", " from None"),
            "a request for memory failed",
            "its size is not known",
        ),
        (
            WRAPPED.format("raise MemoryError('too many tokens')", " from error"),
            "the program raised a MemoryError itself",
            "memwatch suggests no change",
        ),
        (
            WRAPPED.format("{}['key']", ""),
            "the program raised a MemoryError itself",
            "memwatch suggests no change",
        ),
    ],
)
def test_an_error_far_from_all_limits_has_no_changes(code, head, advice, fresh_python, tmp_path):
    done = fresh_python(ALONE, code)
    text, record = (tmp_path / "run.oom.txt").read_text(), record_in(tmp_path)
    assert text.startswith(f"memwatch: {head}, and no limit of memory was near\n")
    assert advice in text
    assert record["changes"] == []
    assert "ran out" not in text + done.stderr


def shortage(error, **facts):
    found = Shortage(
        live=LiveMemory(groups=[Group("cpu", "other tensors", "local `kept`", 64 * MIB)]), **facts
    )
    found.set_error(error)
    return found


def test_no_code_of_an_error_runs_when_its_causes_are_read():
    class Meta(type):
        __eq__ = __hash__ = __instancecheck__ = __subclasscheck__ = property(pytest.fail)

    class Error(RuntimeError, metaclass=Meta):
        __str__ = __getattribute__ = __eq__ = property(pytest.fail)

    class Text:
        __str__ = __repr__ = property(pytest.fail)

    error = MemoryError("cannot allocate the batch")
    error.__cause__, error.__context__ = RuntimeError(Text()), Error()
    try:
        raise error
    except MemoryError:
        assert shortage(error).is_raised


def test_an_error_close_to_a_limit_has_changes():
    far, near = (
        {"free_bytes": 900 * MIB, "peak_bytes": 500 * MIB},
        {"free_bytes": 100 * MIB, "peak_bytes": 500 * MIB},
    )
    assert not shortage(MemoryError(), **far).changes
    assert shortage(MemoryError(), **near).changes
    assert shortage(MemoryError(), free_bytes=None, peak_bytes=500 * MIB).changes
    assert shortage(MemoryLimitError("the block may take 64 MiB"), **far).changes
    with_size = RuntimeError(
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1048576 bytes."
    )
    assert shortage(with_size, **far).changes


def test_the_peak_of_the_process_counts_for_the_free_memory(tmp_path, monkeypatch):
    """A failed call has freed its memory when the error arrives."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    folder = control_group(tmp_path, 2, usage_mib=300)
    status = tmp_path / "proc/self/status"
    status.write_text("Name:\tx\nVmPeak:\t 999 kB\nVmHWM:\t 204800 kB\nVmRSS:\t 204800 kB\n")
    assert MemoryLimits(tmp_path).free_at_peak_bytes() == 700 * MIB
    status.write_text("Name:\tx\nVmPeak:\t 999 kB\nVmHWM:\t 819200 kB\nVmRSS:\t 204800 kB\n")
    assert MemoryLimits(tmp_path).free_at_peak_bytes() == 100 * MIB
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    (tmp_path / "proc/sys/vm/overcommit_memory").write_text("2\n")
    assert MemoryLimits(tmp_path).free_at_peak_bytes() is None
    assert folder.exists()


def test_arrays_in_a_container_are_in_one_change():
    groups = [
        Group("cpu", "numpy arrays", holder, 64 * MIB) for holder in ("global `replay`", "global `mean`")
    ]
    found = Shortage(live=LiveMemory(groups, [Container("list", "global `replay`", 64, 65 * MIB)]))
    assert [each.change.rpartition("global ")[2] for each in found.changes] == ["`replay`", "`mean`"]


FAILED_SEARCH = """
import gc, torch
from memwatch.heap import snapshot
from memwatch.monitor.live_memory import live_memory

class Index:
    def __init__(self):
        self.postings = {i: [i, (i, str(i))] for i in range(100_000)}

index = Index()

def fail(*_, **__):
    raise MemoryError

snapshot.Snapshot._build = fail
print(live_memory().containers[0].holder)
print(sum(type(obj) is snapshot.Snapshot for obj in gc.get_objects()))
"""


def test_a_search_without_memory_for_it_leaves_no_objects_and_accuses_the_program(fresh_python):
    done = fresh_python(FAILED_SEARCH)
    holder, left = done.stdout.splitlines()
    assert holder == "global `index` of module __main__, attribute .postings of Index", done.stderr
    assert left == "0"


@pytest.mark.parametrize("is_of_host", [True, False])
def test_changes_are_of_the_memory_that_ran_out(is_of_host):
    """Memory of the host is no help to a GPU that ran out, nor the reverse."""
    groups = [
        Group(device, "other tensors", f"local `kept` on {device}", 64 * MIB) for device in ("cpu", "cuda:0")
    ]
    containers = [Container("list", "global `LOG`", 1000, 32 * MIB)]
    reserved = Reserved(reserved_bytes=20 * MIB, allocated_bytes=12 * MIB, largest_free_bytes=4 * MIB)
    found = Shortage(
        is_of_host=is_of_host,
        asked_bytes=6 * MIB,
        live=LiveMemory(groups=groups, containers=containers),
        reserved={"cuda:0": reserved},
    )
    changes = [each.change for each in found.changes]
    assert len(changes) == 2
    assert any("local `kept` on cpu" in change for change in changes) is is_of_host
    assert any("global `LOG`" in change for change in changes) is is_of_host
    assert any("local `kept` on cuda:0" in change for change in changes) is not is_of_host
    assert any("expandable_segments" in change for change in changes) is not is_of_host


OTHER_ENDS = """
import sys, torch
from memwatch.monitor.guard import start_guard
start_guard()
if sys.argv[1] == "caught":
    try:
        torch.empty(1 << 50)
    except RuntimeError:
        print("caught")
elif sys.argv[1] == "another error":
    raise KeyError("no batch")
else:
    sys.exit("stopped")
"""


@pytest.mark.parametrize("end", ["caught", "another error", "exit"])
def test_other_ends_have_no_report(end, fresh_python, tmp_path):
    done = fresh_python(OTHER_ENDS, end)
    assert "memwatch" not in done.stderr.replace("memwatch.monitor", "")
    assert list(tmp_path.iterdir()) == []


BROKEN = """
import gc, importlib, sys, torch
gc.unfreeze()
guard = importlib.import_module("memwatch.monitor.guard")
from pathlib import Path
def fail(*args, **kwargs):
    raise RuntimeError("smaps is odd")
path = Path("run")
if sys.argv[1] == "no folder":
    Path("run").write_text("a file")
    path = Path("run/report")
elif sys.argv[1] == "full disk":
    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")
    guard.write_whole = fail
elif sys.argv[1] == "a disk that fills":
    write_whole = guard.write_whole
    def write_first(file, *args, **kwargs):
        if file.suffix != ".txt":
            raise OSError(28, "No space left on device")
        write_whole(file, *args, **kwargs)
    guard.write_whole = write_first
elif sys.argv[1] == "no facts":
    guard.live_memory = guard.rows_of = guard.tensor_memory = fail
else:
    guard.Shortage = fail
guard.start_guard(path)
torch.empty(1 << 50)
"""


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ("no folder", "memwatch could not write the report: "),
        ("full disk", "memwatch could not write the report: [Errno 28] No space left on device"),
        ("a disk that fills", "run.oom.txt could be written: [Errno 28] No space left on device"),
        ("no facts", "the report is in "),
        ("no record", "the report failed: RuntimeError"),
    ],
)
def test_a_problem_of_memwatch_is_one_line_and_the_error_stays(problem, words, fresh_python, tmp_path):
    done = fresh_python(BROKEN, problem)
    assert done.returncode == 1
    first, second = done.stderr.splitlines()[:2]
    assert first.startswith("memwatch: memory ran out")
    assert words in first
    assert second == "Traceback (most recent call last):"
    assert "can't allocate memory: you tried to allocate" in done.stderr
    if problem == "a disk that fills":
        assert [file.name for file in tmp_path.glob("*.oom.*")] == ["run.oom.txt"]
    if problem == "no facts":
        notes = json.loads((tmp_path / "run.oom.json").read_text())["notes"]
        assert "the holders: not known (RuntimeError: smaps is odd)" in notes


TRAINING = """
import random, sys, torch
torch.manual_seed(0)
if sys.argv[1] == "guarded":
    from memwatch.monitor.guard import start_guard
    start_guard()
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(10):
    model(torch.randn(8, 16)).sum().backward()
    optimizer.step()
print(torch.rand(1).item(), *(float(each.sum()) for each in model.parameters()))
"""


def test_a_healthy_program_computes_the_same(fresh_python, tmp_path):
    plain, guarded = (fresh_python(TRAINING, word) for word in ("plain", "guarded"))
    assert (plain.returncode, plain.stdout, plain.stderr) == (
        guarded.returncode,
        guarded.stdout,
        guarded.stderr,
    )
    assert list(tmp_path.iterdir()) == []


LIMIT_OF_MEMWATCH = """
import gc, torch, memwatch
gc.unfreeze()
watch = memwatch.monitor("memory.jsonl", interval_s=1000)
kept = []
with memwatch.profile(limit_bytes=64 << 20):
    while True:
        kept.append(torch.ones(4 << 20))
"""


def test_the_limit_of_a_block_has_a_report_of_the_monitor_too(fresh_python, tmp_path):
    """The note is the one of the block, which recorded the ops."""
    done = fresh_python(LIMIT_OF_MEMWATCH)
    record = record_in(tmp_path)
    assert record["live"][0]["holder"].startswith("global `kept`")
    assert record["error"].startswith("MemoryLimitError: ")
    assert (tmp_path / "memory.oom.txt").exists()
    assert "when they passed the limit" in done.stderr or sys.version_info < (3, 11)
    assert "the request that failed" not in done.stderr


def control_group(root, version, *, usage_mib, limit_mib=1000, cached_mib=0):
    """Write the files of a process in the control group `/job`, below a folder that stands for `/`."""
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    if version == 2:
        group, line, kind, files = (
            "sys/fs/cgroup",
            "0::/job",
            "cgroup2 cgroup rw",
            ("memory.max", "memory.current"),
        )
        stat = f"anon 5\ninactive_file {cached_mib * MIB}\nactive_file 0\n"
    else:
        group, line, kind = "sys/fs/cgroup/memory", "4:memory:/job", "cgroup cgroup rw,memory"
        files = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        stat = f"inactive_file 7\ntotal_inactive_file {cached_mib * MIB}\ntotal_active_file 0\n"
    (root / "proc/self/cgroup").write_text(f"9:cpu:/other\n{line}\n")
    (root / "proc/self/mountinfo").write_text(
        f"30 23 0:9 / /proc rw - proc proc rw\n31 23 0:28 / /{group} rw,relatime shared:4 - {kind}\n"
    )
    folder = root / group / "job"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / files[0]).write_text(f"{limit_mib * MIB}\n")
    (folder / files[1]).write_text(f"{usage_mib * MIB}\n")
    (folder / "memory.stat").write_text(stat)
    return folder


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_a_control_group_is_read_without_cached_files(version, tmp_path):
    control_group(tmp_path, version, usage_mib=900, cached_mib=300)
    (limit,) = [each for each in MemoryLimits(tmp_path).read() if each.name != ADDRESS_SPACE]
    assert (limit.limit_bytes, limit.used_bytes) == (1000 * MIB, 600 * MIB)
    assert limit.room_bytes == 400 * MIB


def test_the_limit_of_a_parent_group_counts_too(tmp_path):
    folder = control_group(tmp_path, 2, usage_mib=100)
    (folder.parent / "memory.max").write_text(f"{500 * MIB}\n")
    (folder.parent / "memory.current").write_text(f"{450 * MIB}\n")
    first = MemoryLimits(tmp_path).read()[0]
    assert (first.limit_bytes, first.used_bytes) == (500 * MIB, 450 * MIB)


def test_a_container_sees_its_own_part_of_the_tree(tmp_path):
    """The file of the process has the path on the host, and the mount shows which part of it the container has."""
    folder = control_group(tmp_path, 1, usage_mib=100)
    for file in folder.iterdir():
        file.rename(folder.parent / file.name)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/docker/0a1b\n")
    (tmp_path / "proc/self/mountinfo").write_text(
        "31 23 0:28 /docker/0a1b /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    )
    assert MemoryLimits(tmp_path).read()[0].limit_bytes == 1000 * MIB


def test_a_group_whose_name_begins_like_the_mounted_one_is_not_in_it(tmp_path):
    """The container sees the group `/docker/0a`, and the process is in `/docker/0ab`."""
    control_group(tmp_path, 1, usage_mib=100)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/docker/0ab\n")
    (tmp_path / "proc/self/mountinfo").write_text(
        "31 23 0:28 /docker/0a /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    )
    folders = [group.folder for group in MemoryLimits(tmp_path)._groups]
    assert folders == [tmp_path / "sys/fs/cgroup/memory"]


def test_the_address_space_in_use_is_read_below_the_root(tmp_path, monkeypatch):
    control_group(tmp_path, 2, usage_mib=100)
    (tmp_path / "proc/self/statm").write_text("256 9 9 9 0 9 0\n")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1 << 40, 1 << 40))
    (limit,) = [each for each in MemoryLimits(tmp_path).read() if each.name == ADDRESS_SPACE]
    assert limit.used_bytes == 256 * resource.getpagesize()


@pytest.mark.parametrize(("version", "text"), [(1, "9223372036854771712"), (2, "max")])
def test_a_group_without_a_limit_is_none(version, text, tmp_path):
    folder = control_group(tmp_path, version, usage_mib=100)
    (folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")).write_text(text)
    assert not [each for each in MemoryLimits(tmp_path).read() if each.name != ADDRESS_SPACE]
    assert not [each for each in MemoryLimits(tmp_path / "missing").read() if each.name != ADDRESS_SPACE]


def test_memory_pressure_is_read(tmp_path):
    folder = control_group(tmp_path, 2, usage_mib=100)
    assert MemoryLimits(tmp_path).stalled_percent() == 0.0
    (folder / "memory.pressure").write_text(
        "some avg10=12.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=3.00\n"
    )
    assert MemoryLimits(tmp_path).stalled_percent() == 12.5


NEAR = """
import gc, sys, time, torch
gc.unfreeze()
from pathlib import Path
from memwatch.monitor.guard import start_guard
root, files = Path(sys.argv[1]), Path(sys.argv[2])
start_guard(Path("run"), root=root)
class Loader:
    def __init__(self):
        self.prefetched = [torch.ones(4 << 20) for _ in range(4)]
loader = Loader()
for used_mib in (500, 700, int(sys.argv[3])):
    for name in ("memory.current", "memory.usage_in_bytes"):
        if (files / name).exists():
            (files / name).write_text(str(used_mib << 20))
    time.sleep(0.1)
report, end_s = Path("run.oom.json"), time.monotonic() + float(sys.argv[4])
while time.monotonic() < end_s and not (report.exists() and "prefetched" in report.read_text()):
    time.sleep(0.02)
print("the program ended")
"""


@pytest.mark.parametrize("version", [1, 2])
def test_the_report_is_written_before_the_kernel_ends_the_process(
    version, fresh_python, tmp_path, tmp_path_factory
):
    root = tmp_path_factory.mktemp("root")
    folder = control_group(root, version, usage_mib=100)
    done = fresh_python(NEAR, str(root), str(folder), "980", "20")
    assert (done.returncode, done.stdout) == (0, "the program ended\n"), done.stderr
    record = record_in(tmp_path)
    assert record["limit"]["used_bytes"] == 980 * MIB
    assert record["live"][0]["holder"].endswith("attribute .prefetched of Loader")
    assert (
        done.stderr.count(
            "memwatch: memory has nearly run out: 980.00 MiB are in use, 98 % of the 1000.00 MiB"
        )
        == 1
    )


@pytest.mark.parametrize(("used_mib", "cached_mib"), [("960", 0), ("990", 100)])
def test_a_process_below_the_limit_has_no_report(
    used_mib, cached_mib, fresh_python, tmp_path, tmp_path_factory
):
    """Cached files do not count, because the kernel takes them back."""
    root = tmp_path_factory.mktemp("root")
    folder = control_group(root, 2, usage_mib=100, cached_mib=cached_mib)
    done = fresh_python(NEAR, str(root), str(folder), used_mib, "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_stop_takes_the_hooks_back():
    before = sys.excepthook, threading.excepthook
    with memwatch.monitor(interval_s=1000):
        assert sys.excepthook != before[0]
    assert (sys.excepthook, threading.excepthook) == before
    with memwatch.monitor(interval_s=1000, oom=False):
        assert sys.excepthook == before[0]


HELD = {}


def test_the_container_is_named_where_the_heap_is_too_large_to_search(monkeypatch):
    gc.unfreeze()  # gc shows no referrers that it froze before this file
    HELD["log"] = [f"{each} " * 100 for each in range(100_000)]
    monkeypatch.setattr(live_memory_module, "MOST_OBJECTS", 0)
    found = live_memory()
    HELD.clear()
    assert not found.groups
    assert "too many" in found.why_unknown
    assert "`HELD`" in found.containers[0].holder


BUFFERS = """
import array, gc, io, mmap, torch
from memwatch.monitor.live_memory import OBJECT, live_memory
gc.unfreeze()
size = 1 << 20
class Label(str):
    def __sizeof__(self):
        raise RuntimeError("code of the program ran")
    __len__ = __hash__ = __eq__ = __sizeof__
with open("data", "wb") as file:
    file.write(bytes(size))
with open("data", "rb") as file:
    mapped_file = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
text, pages, letters = Label("x" * size), io.BytesIO(bytes(size)), io.StringIO()
letters.write("x" * size)
rewound = io.StringIO("y" * size)
rewound.seek(0)
numbers, mapped = array.array("d", bytes(size)), mmap.mmap(-1, size)
plain = {1: (2, bytearray(size))}  # gc lists neither the dictionary nor the tuple
def call():
    local = "z" * size
    return live_memory()
groups = [group for group in call().groups if group.category == OBJECT and group.largest_bytes >= size]
print(sorted(group.holder.split("`")[1] for group in groups))
"""


def test_every_kind_of_large_buffer_has_its_holder(fresh_python):
    done = fresh_python(BUFFERS)
    expected = ["letters", "local", "mapped", "numbers", "pages", "plain", "rewound", "text"]
    assert done.stdout == f"{expected}\n", done.stderr + done.stdout


CYCLE = """
import gc, torch
from memwatch.monitor.live_memory import live_memory
gc.unfreeze()
gc.disable()
cycle = [torch.ones(1 << 20)]
cycle.append(cycle)
del cycle
print([group.holder for group in live_memory().groups if group.largest_bytes == 4 << 20])
"""


def test_tensors_that_no_variable_holds_are_not_attributed(fresh_python):
    """The report has no guess: such a tensor has no holder."""
    done = fresh_python(CYCLE)
    assert done.stdout == f"[{NOBODY!r}]\n", done.stderr
