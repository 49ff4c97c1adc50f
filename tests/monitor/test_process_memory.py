"""process_memory: rows that sum to RSS and USS, each with the memory that belongs to it."""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import pickle
import subprocess
import sys
import textwrap
import threading

import numpy as np
import psutil
import pytest

import memwatch
from memwatch.errors import OptionError
from memwatch.host_allocators import PAGE_BYTES, malloc_figures
from memwatch.monitor import copies, mappings, process, rows
from memwatch.monitor.mappings import ProcessError, Use
from memwatch.sizes import format_bytes

MIB = 1 << 20


def test_the_printed_table_has_the_bytes_with_units():
    table = memwatch.process_memory(children=False)
    printed = repr(table).splitlines()
    assert len(printed) == len(table) + 1
    assert all(format_bytes(nbytes) in line for nbytes, line in zip(table.nbytes, printed[1:], strict=True))
    assert max(len(line.split("  how")[0]) for line in printed[:1]) < 80
    again = pickle.loads(pickle.dumps(table))
    assert (repr(again), again.attrs) == (repr(table), table.attrs)
    with_process = table.copy()
    table["python 4242"] = 1 << 20
    assert " python 4242  how" in repr(table).splitlines()[0]
    assert with_process.equals(again)


def test_what_pandas_makes_of_the_table_is_a_plain_frame():
    import pandas as pd

    table = memwatch.process_memory(children=False)
    for made in (table[["row", "nbytes"]], table.sort_values("row"), table.head(2), table.copy()):
        assert type(made) is pd.DataFrame
    assert repr(table[["row", "nbytes"]]) == repr(pd.DataFrame(table)[["row", "nbytes"]])
    del table["how"]
    assert repr(table) == repr(pd.DataFrame(table))


PROGRAM = """
import ctypes, json, mmap, os, sys, threading
import numpy as np, torch, memwatch
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
def malloc(nbytes):
    address = libc.malloc(nbytes)
    ctypes.memset(address, 1, nbytes)
    return address
def rows():
    table = memwatch.process_memory(children=False)
    assert table.nbytes.sum() == table.attrs["rss_bytes"]
    assert table.private_nbytes.sum() == table.attrs["uss_bytes"]
    assert (table.private_nbytes <= table.nbytes).all()
    return dict(zip(table.row, table.nbytes.tolist())), table.attrs["coverage"]
before, _ = rows()
kept = []
{code}
after, coverage = rows()
print(json.dumps([{{name: after.get(name, 0) - before.get(name, 0) for name in {{*before, *after}}}}, coverage]))
os._exit(0)  # threads may be waiting
"""
GROWING = {
    "one large tensor": ("tensors", "kept.append(torch.ones(24 << 18))"),
    "many small tensors": ("tensors", "kept += [torch.ones(500) for _ in range(12_000)]"),
    "tensors that only autograd holds": (
        "tensors",
        """
        x = torch.ones(3 << 18, requires_grad=True)
        for _ in range(8):
            x = x.sin().exp()
        kept.append(x.sum())
        del x
        """,
    ),
    "a numpy array": ("Python objects", "kept.append(np.ones(3 << 20))"),
    "a view whose array nothing else holds": (
        "Python objects",
        "kept.append(np.ones(3 << 20).reshape(-1, 64))",
    ),
    "an array over bytes": ("Python objects", "kept.append(np.frombuffer(b'x' * (24 << 20), np.uint8))"),
    "an array of texts": (
        "Python objects",
        "kept.append(np.array(['x' * 2000 + str(i) for i in range(12_000)], dtype=object))",
    ),
    "a frame of pandas over one array": (
        "Python objects",
        "import pandas as pd; kept.append(pd.DataFrame(np.ones((3 << 14, 64))))",
    ),
    "a buffer of Arrow": (
        "Arrow buffers",
        # an array that grows to its size would leave free memory in Arrow's allocator
        "import pyarrow; kept.append(pyarrow.allocate_buffer(24 << 20)); np.frombuffer(kept[0], np.uint8)[:] = 1",
    ),
    "a dictionary of texts": ("Python objects", "kept.append({i: 'x' * 2000 + str(i) for i in range(12_000)})"),
    "blocks in variables of running calls": (
        "Python objects",
        """
        ready = threading.Semaphore(0)
        def call():
            block = bytearray(2 << 20)
            block[:] = b"x" * len(block)
            array = np.ones(1 << 17)
            ready.release()
            threading.Event().wait()
        for _ in range(8):
            threading.Thread(target=call, daemon=True).start()
            ready.acquire()
        """,
    ),
    "objects that Python takes from malloc": (
        "Python objects",
        "import random; kept += [random.Random(i) for i in range(10_000)]",
    ),
    "objects with many slots": (
        "Python objects",
        "Row = type('Row', (), {'__slots__': [f'a{i}' for i in range(500)]}); kept += [Row() for _ in range(6000)]",
    ),
    "large buffers of ctypes": (
        "Python objects",
        "kept += [ctypes.create_string_buffer(b'x' * (1 << 20)) for _ in range(24)]",
    ),
    "buffers of ctypes": ("Python objects", "kept += [(ctypes.c_double * 500)(*range(500)) for _ in range(6000)]"),
    "views of ctypes on native memory": (
        "native",
        "kept += [(ctypes.c_char * (1 << 20)).from_address(malloc(1 << 20)) for _ in range(24)]",
    ),
    "small objects": ("Python objects", "kept += [[i] for i in range(280_000)]"),
    "native, small blocks": ("native", "kept += [malloc(2000) for _ in range(12_000)]"),
    "native, a large block": ("native", "kept.append(malloc(24 << 20))"),
    "fragmented malloc": (
        "malloc, free",
        """
        blocks = [malloc(2000) for _ in range(20_000)]
        kept += blocks[::10]
        for number, block in enumerate(blocks):
            if number % 10:
                libc.free(block)
        """,
    ),
    "a file": (
        "file mappings",
        """
        with open("data", "wb") as file:
            file.write(bytes(24 << 20))
        with open("data", "rb") as file:
            kept.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        sum(kept[0][::4096])
        """,
    ),
    "tensors in shared memory": (
        "shared memory",
        "kept += [torch.ones(3 << 18).share_memory_() for _ in range(8)]",
    ),
    "anonymous memory of mmap": (
        "Python objects",
        "kept.append(mmap.mmap(-1, 24 << 20, flags=34)); kept[0][:] = bytes(24 << 20)",
    ),
    "anonymous memory of a library": (
        "other mappings",
        """
        libc.mmap.restype = ctypes.c_void_p
        address = libc.mmap(None, ctypes.c_size_t(24 << 20), 3, 34, -1, ctypes.c_long(0))
        ctypes.memset(address, 1, 24 << 20)
        """,
    ),
    "stacks of threads": (
        "thread stacks",
        """
        free, done = threading.Semaphore(0), threading.Event()
        def use_stack(levels):
            if levels:
                return sorted([0], key=lambda _: use_stack(levels - 1))
            free.release()
            done.wait()
        sys.setrecursionlimit(10_000)
        for _ in range(8):
            kept.append(threading.Thread(target=use_stack, args=(1500,), daemon=True))
            kept[-1].start()
            free.acquire()
        """,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GROWING)
def test_memory_is_in_the_row_of_its_kind(name, fresh_python):
    """24 MiB of a kind raise one row by that, and no other by as much as a third of it."""
    row, code = GROWING[name]
    done = fresh_python(PROGRAM.format(code=textwrap.dedent(code)))
    assert done.returncode == 0, done.stderr
    grown, _ = json.loads(done.stdout)
    # code that runs for the first time is read from its file, and the search itself leaves free blocks
    others = [grown[other] for other in {*grown} - {row, "code and libraries", "malloc, free"}]
    assert grown[row] > 21 * MIB, grown
    assert max(others) < 12 * MIB, grown


ARROW = """
import ctypes, json, sys
import memwatch, pandas, pyarrow

def rows():
    table = memwatch.process_memory(children=False)
    assert table.nbytes.sum() == table.attrs["rss_bytes"]
    return dict(zip(table.row, table.nbytes.tolist()))

def map_memory(nbytes):
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    address = libc.mmap(29 << 40, nbytes, 3, 0x22, -1, 0)
    assert address == 29 << 40
    ctypes.memset(address, 1, nbytes)

assert pyarrow.default_memory_pool().backend_name == "mimalloc"
rows()
before = rows()
frames = []
if sys.argv[1] == "texts":
    for turn in range(12):
        texts = [f"text {each} of turn {turn}, " * 3 for each in range(12_000)]
        frames.append(pandas.DataFrame({"text": texts}) if turn % 2 else pyarrow.table({"text": texts}))
    del texts
else:
    frames = pyarrow.array(["a text"])
    map_memory(24 << 20)
after = rows()
print(json.dumps({name: after.get(name, 0) - before.get(name, 0) for name in {*before, *after}}))
"""


def test_free_memory_of_arrow_has_a_row(fresh_python):
    """Text in a column grows by copies, and Arrow's allocator keeps the former ones."""
    grown = json.loads(fresh_python(ARROW, "texts").stdout)
    assert grown["Arrow buffers"] > 6 * MIB
    assert grown["Arrow's allocator, free"] > MIB
    assert grown.get("other mappings", 0) < MIB


def test_memory_of_another_mimalloc_is_not_that_of_arrow(fresh_python):
    grown = json.loads(fresh_python(ARROW, "other").stdout)
    # the rows of Python's allocator may take a few MiB of mappings that are in no row before
    assert 18 * MIB < grown["other mappings"] < 26 * MIB
    assert grown.get("Arrow's allocator, free", 0) < 8 * MIB


def test_memory_that_nobody_touched_is_in_no_row(fresh_python):
    """Both have addresses, and no page."""
    done = fresh_python(PROGRAM.format(code="kept += [torch.empty(64 << 18), np.zeros(64 << 20, np.uint8)]"))
    assert done.returncode == 0, done.stderr
    grown, _ = json.loads(done.stdout)
    # code that runs for the first time is read from the disk, and the search itself leaves up to 20 MiB of free blocks
    others = [grown[row] for row in grown.keys() - {"code and libraries", "malloc, free"}]
    assert max(others) < 16 * MIB, grown
    assert grown["malloc, free"] < 40 * MIB, grown


SMALL_ARRAYS = """
import numpy as np
from memwatch.host_allocators import malloc_figures
from memwatch.monitor.objects import python_memory

def in_use():
    figures = malloc_figures()
    return figures.arena_bytes - figures.free_bytes

kept = []
for _ in range(2):  # the first search makes objects of its own
    known, used = python_memory().large_bytes, in_use()
    kept.append([np.ones(shape) for shape in [(16,), (4, 4), ()] for _ in range(20_000)])
    more = in_use() - used
print((python_memory().large_bytes - known) / more)
"""


def test_the_blocks_of_the_shapes_of_small_arrays_are_counted(fresh_python):
    """Each array has a block for its dimensions and strides beside the one for its numbers."""
    done = fresh_python(SMALL_ARRAYS)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(1.0, abs=0.05)


OWN_ARRAYS = """
import numpy as np
from memwatch.monitor.objects import python_memory

python_memory()
found = []

def keep_large(obj, nbytes):
    if type(obj) is np.ndarray:
        found.append(nbytes)

python_memory(keep_large=keep_large)
print(max(found, default=0) < 1 << 18)
"""


def test_the_search_finds_no_array_of_its_own(fresh_python):
    done = fresh_python(OWN_ARRAYS)
    assert done.stdout == "True\n", done.stderr


COVERAGE = """
import memwatch, torch
from memwatch.monitor.rows import rows_of
found = rows_of(children=False)
print(found.coverage, found.nbytes("native, at start") >> 20)
"""


def test_the_native_memory_of_torch_is_explained():
    # not a fork, which has the memory of the tests
    code = [sys.executable, "-c", COVERAGE]
    done = subprocess.run(code, capture_output=True, text=True, check=False)
    coverage, at_start_mib = done.stdout.split()
    assert float(coverage) >= 0.95, done.stderr
    assert int(at_start_mib) > 20


NATIVE_LEAK = """
import ctypes, sys
{imports}
from memwatch.monitor.rows import rows_of
malloc = ctypes.CDLL(None).malloc
malloc.restype = ctypes.c_void_p
nbytes = int(sys.argv[1]) << 20
if nbytes:
    ctypes.memset(malloc(ctypes.c_size_t(nbytes)), 1, nbytes)
found = rows_of(children=False)
print(found.nbytes("native, at start") >> 20, found.nbytes("native") >> 20)
"""


def native_mib(imports, leaked_mib):
    """Return the MiB of the rows for native memory: from the start, and since then."""
    code = [sys.executable, "-c", NATIVE_LEAK.format(imports=imports), str(leaked_mib)]
    done = subprocess.run(code, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [int(mib) for mib in done.stdout.split()]


@pytest.mark.parametrize("leaked_mib", [0, 64])
def test_memory_that_the_program_frees_after_the_import_of_torch_hides_no_leak(leaked_mib):
    imports = "import memwatch, numpy; array = numpy.ones(128 << 17); import torch; del array"
    at_start_mib, mib = native_mib(imports, leaked_mib)
    assert at_start_mib > 20
    assert leaked_mib <= mib < leaked_mib + 30


def test_with_torch_imported_first_the_tensors_of_the_program_hide_no_large_leak():
    """They are among the blocks of malloc at the import of memwatch. A figure without a limit would hide 300 MiB."""
    imports = "import torch; kept = [torch.ones(32 << 18) for _ in range(8)]; import memwatch"
    at_start_mib, mib = native_mib(imports, 64)
    assert 20 < at_start_mib < 96
    assert mib >= 32


def test_without_the_figure_of_malloc_the_memory_of_torch_is_native(monkeypatch):
    monkeypatch.setattr(rows, "malloc_bytes_of_import", lambda: None)
    found = rows.rows_of(children=False)
    assert not found.nbytes(rows.NATIVE_AT_START)
    assert found.nbytes(rows.NATIVE)


SUBCLASS = """
import numpy as np
from memwatch.monitor.objects import python_memory

is_ready = False

def fail(*args):
    if is_ready:
        raise RuntimeError("code of the program ran")
    return NotImplemented

class Meta(type):
    __eq__ = __hash__ = fail

class Matrix(np.ndarray, metaclass=Meta):
    __array_finalize__ = __getattribute__ = __iter__ = __len__ = fail
    base = dtype = ndim = __array_interface__ = property(fail)

kept = [np.ndarray.__new__(Matrix, (1 << 17,), buffer=bytes(1 << 20))]
is_ready = True
print(sorted(nbytes >> 20 for nbytes in python_memory().large.values() if nbytes >= 1 << 20))
"""


def test_no_code_of_a_subclass_of_arrays_runs(fresh_python):
    done = fresh_python(SUBCLASS, unfrozen=False)  # the imports of the process have made large objects too
    assert done.stdout == "[1]\n", done.stderr


def test_the_sums_are_those_of_the_system():
    memwatch.process_memory()  # the first call imports modules and leaves free memory in malloc
    system = psutil.Process().memory_full_info()
    table = memwatch.process_memory()
    assert list(table.columns)[:4] == ["row", "nbytes", "private_nbytes", "how"]
    assert table.nbytes.sum() == table.attrs["rss_bytes"] == pytest.approx(system.rss, rel=0.1)
    assert table.private_nbytes.sum() == table.attrs["uss_bytes"] == pytest.approx(system.uss, rel=0.1)
    assert table.how.str.len().min() > 0
    assert table.row.is_unique


def test_the_blocks_that_are_found_are_those_of_malloc():
    """The search for large blocks finds what malloc says that it gave, to the byte."""
    found = mappings.read_mappings(os.getpid(), is_heap_of_arena=mappings.is_heap_of_arena)
    figures = malloc_figures()
    residency = mappings.Residency(found, os.getpid())
    found = mappings.cut_joined(found, residency)
    residency = mappings.Residency(found, os.getpid())
    blocks = mappings.mmapped_blocks([each for each in found if each.use is Use.ANONYMOUS], residency)
    assert (blocks[:, 1] - blocks[:, 0]).sum() == pytest.approx(figures.mmapped_bytes, rel=0.02)
    assert figures.mmapped_bytes > 0


@pytest.fixture
def sparse_memory():
    """Memory with far more addresses than pages: the addresses of its pages, and of its begin and end."""
    nbytes, apart = 256 << 30, 16 << 30
    try:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    except OSError:
        pytest.skip("this system reserves memory for all addresses")
    memory.madvise(mmap.MADV_DONTDUMP)  # so the kernel doesn't join it with the memory beside it
    for place in range(0, nbytes, apart):
        memory[place] = 1
    buffer = np.frombuffer(memory, dtype=np.uint8)
    begin = buffer.ctypes.data
    yield np.arange(begin, begin + nbytes, apart), range(begin, begin + nbytes)
    del buffer
    memory.close()


_MAP_NORESERVE = 0x4000  # of Linux; the module has it since Python 3.13


@pytest.fixture
def entries_read(monkeypatch):
    """Count the entries of pages that are read."""
    read, pread = [], os.pread

    def counted(*arguments):
        data = pread(*arguments)
        read.append(len(data) // 8)
        return data

    monkeypatch.setattr(os, "pread", counted)
    return lambda: sum(read)


def resident_and_private(memory):
    """Return the bytes in memory of a range of addresses, the private ones, and whether all pages were read."""
    residency = mappings.Residency(mappings.read_mappings(os.getpid()), os.getpid())
    parts = residency.of_ranges(*residency.split(np.array([[memory.start, memory.stop]])))
    return *(int(part.sum()) for part in parts), residency.is_whole


def test_the_pages_of_a_sparse_mapping_cost_as_much_as_is_in_memory(sparse_memory, entries_read):
    touched, memory = sparse_memory
    half = range(memory.start, memory.start + len(memory) // 2)
    *found, is_whole = resident_and_private(half)
    if not is_whole:
        pytest.skip("Linux before 6.7 cannot skip pages that are not in memory")
    assert found == [len(touched) // 2 * PAGE_BYTES] * 2
    assert entries_read() <= 512 * len(touched)
    (pages,) = copies._copied_pages([os.getpid()])
    assert np.isin(touched // PAGE_BYTES, pages).all()
    assert entries_read() < 1 << 22


def _refuse(*_):
    raise OSError(errno.ENOTTY, "no such request")


def _do_nothing(*_):
    return 0


@pytest.mark.parametrize("ioctl", [_refuse, _do_nothing])
def test_an_older_kernel_reads_a_bounded_number_of_pages(sparse_memory, entries_read, monkeypatch, ioctl):
    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    touched, memory = sparse_memory
    resident, private, is_whole = resident_and_private(memory)
    assert not is_whole
    assert resident == private == len(touched) * PAGE_BYTES
    assert entries_read() <= mappings.MOST_ENTRIES
    copies._copied_pages([os.getpid()])
    assert entries_read() <= 2 * mappings.MOST_ENTRIES


FORK = """
import json, os, torch, memwatch
kept = torch.ones(8 << 18)
def tensors():
    table = memwatch.process_memory().set_index("row")
    return table.loc["tensors", ["nbytes", "private_nbytes"]].tolist()
read, write = os.pipe()
if os.fork():
    print(os.read(read, 1000).decode())
    os.wait()
else:
    shared = tensors()
    kept[: 4 << 18] = 2
    os.write(write, json.dumps([shared, tensors()]).encode())
    os._exit(0)
"""


def test_a_fork_shares_its_tensors_until_it_writes(fresh_python):
    done = fresh_python(FORK)
    assert done.returncode == 0, done.stderr
    (first, private), (second, written) = json.loads(done.stdout)
    assert first >= 8 * MIB
    assert second >= 8 * MIB
    assert private < MIB
    assert 4 * MIB <= written <= second


TWO_WAIT = """
import importlib.util, sys
from memwatch.children import when_torch_is_imported
assert "torch" not in sys.modules
when_torch_is_imported(lambda: print("one"))
when_torch_is_imported(lambda: print("two"))
before = len(sys.meta_path)
for _ in range(2):
    assert importlib.util.find_spec("torch").name == "torch"
import torch
print(torch.ones(1).item())
assert len(sys.meta_path) == before - 2
"""


def test_two_may_wait_for_the_import_of_torch_that_a_library_has_looked_up_before():
    """The import of transformers does so."""
    done = subprocess.run([sys.executable, "-c", TWO_WAIT], capture_output=True, text=True, check=False)
    assert sorted(done.stdout.split()) == ["1.0", "one", "two"], done.stderr


OWN_TORCH = """
import sys
print("torch")
sys.attempts = getattr(sys, "attempts", 0) + 1
if sys.attempts == 1:
    raise ImportError
"""
FAILS_ONCE = """
import sys
from memwatch.children import when_torch_is_imported
when_torch_is_imported(lambda: print("after"), before=lambda: print("before"))
when_torch_is_imported(lambda: print("then"))
for _ in range(2):
    try:
        import torch
    except ImportError:
        print("failed")
when_torch_is_imported(lambda: print("now"), before=lambda: print("too late"))
"""


def test_a_function_is_called_before_each_attempt_to_import_torch(tmp_path):
    (tmp_path / "torch.py").write_text(OWN_TORCH)
    done = subprocess.run(
        [sys.executable, "-c", FAILS_ONCE], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.stdout.split() == [
        "before", "torch", "failed", "before", "torch", "after", "then", "now"
    ], done.stderr  # fmt: skip


@pytest.fixture
def other_process():
    """Return a process of a Python that has no torch, and has made 8 MiB."""
    code = "import sys; kept = bytes([1]) * (8 << 20); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        yield process
        process.stdin.close()


@pytest.mark.whole
def test_another_process_is_read_from_proc(other_process):
    table = memwatch.process_memory(other_process.pid)
    assert table.nbytes.sum() == pytest.approx(
        psutil.Process(other_process.pid).memory_full_info().rss, rel=0.01
    )
    nbytes = table.set_index("row").nbytes
    assert nbytes["malloc and anonymous memory"] > 8 * MIB
    assert table.attrs["coverage"] < 0.9
    mine = memwatch.process_memory()
    assert other_process.pid in [child["pid"] for child in mine.attrs["children"]]
    assert not memwatch.process_memory(children=False).attrs["children"]


def test_ps_prints_the_rows(other_process, shell_memwatch):
    done = shell_memwatch("ps", str(other_process.pid))
    assert done.returncode == 0, done.stderr
    assert f"process {other_process.pid} (" in done.stdout
    assert "code and libraries" in done.stdout
    record = json.loads(shell_memwatch("ps", "--json", str(other_process.pid)).stdout)
    assert sum(row["nbytes"] for row in record["rows"]) == record["rss_bytes"]
    assert other_process.pid in [each["pid"] for each in json.loads(shell_memwatch("ps", "--json").stdout)]


@pytest.fixture(params=[True, False], ids=["grows", "stays"])
def living_process(request):
    """Return a process that makes 2 MiB in each tenth of a second, or drops as much, and whether it grows."""
    drop = "" if request.param else "kept.clear()"
    code = f"""
import time
kept = []
while True:
    kept.append(bytes([1]) * (2 << 20))
    print("ready", flush=True)
    time.sleep(0.1)
    {drop}
"""
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, text=True) as process:
        for _ in range(3):
            process.stdout.readline()
        yield process, request.param
        process.kill()


def test_ps_shows_the_growth_between_two_readings(living_process, shell_memwatch):
    process, grows = living_process
    words = ["ps", "--seconds", "2", "--json"]
    record = json.loads(shell_memwatch(*words, str(process.pid)).stdout)
    grown = {row["row"]: row["growth_bytes"] for row in record["rows"]}
    assert sum(row["nbytes"] for row in record["rows"]) == record["rss_bytes"]
    assert record["growth_s"] >= 2
    assert (grown.pop("malloc and anonymous memory") > 3 * MIB) == grows
    assert all(abs(nbytes) < MIB for nbytes in grown.values())
    (listed,) = [each for each in json.loads(shell_memwatch(*words).stdout) if each["pid"] == process.pid]
    assert (listed["growth_bytes"] > 3 * MIB) == grows


def test_ps_says_that_a_process_ended_between_two_readings(shell_memwatch):
    code = "import time; print('ready', flush=True); time.sleep(4)"
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        threading.Thread(target=process.wait, daemon=True).start()  # no zombie is left
        done = shell_memwatch("ps", "--seconds", "6", str(process.pid))
    assert f"process {process.pid} has ended" in done.stderr


@pytest.mark.parametrize("is_root", [True, False])
def test_the_reason_for_no_reading_fits_the_user(is_root, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError

    monkeypatch.setattr(mappings, "open", refuse, raising=False)
    monkeypatch.setattr(mappings.os, "geteuid", lambda: 0 if is_root else 1000)
    with pytest.raises(ProcessError, match="CAP_SYS_PTRACE" if is_root else "or as root"):
        mappings.read_mappings(1)


def test_ps_prints_the_growth(other_process, shell_memwatch):
    pid = str(other_process.pid)
    done = shell_memwatch("ps", "--seconds", "0.1", pid)
    assert "; growth in " in done.stdout
    assert done.stdout.splitlines()[1].split() == ["bytes", "private", "growth", "how", "it", "is", "known"]
    assert "USS growth" in shell_memwatch("ps", "--seconds", "0.1").stdout
    record = json.loads(shell_memwatch("ps", "--json", pid).stdout)
    assert record["growth_s"] is None
    assert {row["growth_bytes"] for row in record["rows"]} == {None}


def test_the_growth_of_rows_and_processes_that_come_and_go():
    row, child = rows.Row("tensors", 5, 5, "x"), rows.Child(7, "worker", 1, 1, 1, 0)
    found = rows.ProcessRows(1, "python", 5, 5, 5, [row], children=[child])
    earlier = process.Earlier(1.0, {"file mappings": 3}, {8: 1})
    grown = [
        (each["row"], each["nbytes"], each["growth_bytes"])
        for each in process.record_of(found, earlier)["rows"]
    ]
    assert grown == [("tensors", 5, 5), ("file mappings", 0, -3)]
    assert process.record_of(found, earlier)["children"][0]["growth_bytes"] is None
    printed = process.of_process(found, earlier=earlier)
    assert "there is none any more" in printed
    (line,) = [line for line in printed.splitlines() if line.endswith("worker")]
    assert " new " in line


@pytest.mark.parametrize("earlier", [None, process.Earlier(1.0, {"file mappings": 3}, {8: 1})])
def test_no_line_about_a_process_is_longer_than_the_terminal(earlier):
    """What is known of a row stands in a column, or below its row where no column fits."""
    how = "smaps; /proc doesn't tell tensors, Python objects and other blocks of malloc apart"
    found = rows.ProcessRows(1, "python", 5, 5, 5, [rows.Row("tensors", 5, 5, how)], notes=[how + how])
    lines = process.of_process(found, earlier=earlier, width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(lines).split()).count(" ".join(how.split()[-3:])) == 3
    assert f"  {how}" in process.of_process(found, earlier=earlier)


def test_ps_says_what_is_wrong(shell_memwatch):
    for words, message in (
        (["ps", "4194303"], "there is no process 4194303"),
        (["ps", "train.py"], "'train.py' is not a process"),
        (["ps", "0"], "'0' is not a process"),
        (["ps", "١٢٣"], "'١٢٣' is not a process"),
        (["ps", "--seconds", "nan"], "'nan' is not a number of seconds above 0"),
        (["ps", "--seconds", "-1"], "'-1' is not a number of seconds above 0"),
    ):
        done = shell_memwatch(*words)
        assert done.returncode in (1, 2)
        assert message in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("raised", "message"), [(PermissionError, "another user"), (FileNotFoundError, "no process")]
)
def test_a_process_that_cannot_be_read_is_an_error(raised, message, monkeypatch):
    def refuse(*args, **kwargs):
        raise raised

    monkeypatch.setattr(mappings, "open", refuse, raising=False)
    with pytest.raises(ProcessError, match=message):
        memwatch.process_memory(os.getppid())


def test_a_system_without_proc_is_an_error(monkeypatch):
    monkeypatch.setattr(mappings.os.path, "exists", lambda path: False)
    with pytest.raises(ProcessError, match="Linux"):
        memwatch.process_memory()


@pytest.mark.parametrize("pid", [0, -1, "1", True, 1.5])
def test_what_is_no_process_is_an_error(pid):
    with pytest.raises(OptionError, match="not a process"):
        memwatch.process_memory(pid)


def test_without_the_allocators_figures_the_sums_are_still_true(monkeypatch):
    """As with musl, or a Python of another allocator."""
    monkeypatch.setattr(rows, "malloc_figures", lambda: None)
    monkeypatch.setattr(rows, "python_figures", lambda: None)
    table = memwatch.process_memory()
    assert table.nbytes.sum() == table.attrs["rss_bytes"]
    assert any("small objects are not a row" in note for note in table.attrs["notes"])
    assert "malloc, free" not in table.row.tolist()


FROZEN_CHAIN = """
import gc, torch
from memwatch.monitor import objects

chain = [torch.ones(1000)]
for _ in range(3000):
    chain = [chain]
gc.freeze()
sorts, sort = [], objects.np.sort
objects.np.sort = lambda ids: sorts.append(len(ids)) or sort(ids)
print(objects.tensor_memory().count, len(sorts) < 100)
"""


def test_a_long_linked_list_that_gc_has_frozen_is_followed_without_a_sort_for_each_link(fresh_python):
    """A monitor stops the program's main thread for that time; a server calls gc.freeze() before it forks."""
    done = fresh_python(FROZEN_CHAIN)
    assert done.stdout == "1 True\n", done.stderr


def test_no_torch_is_imported(fresh_python, tmp_path):
    """A program that has not imported torch gets its rows without it."""
    code = "import sys, memwatch; memwatch.process_memory(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
