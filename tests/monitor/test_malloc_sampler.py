"""The sampler of malloc names the library, and the program runs as without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import textwrap
import venv
from pathlib import Path

import growing_programs
import pytest

import memwatch
from memwatch.monitor import malloc_sampler

ROOT = Path(memwatch.__file__).parents[1]


@pytest.fixture
def sampled_python(tmp_path):
    """Run code in a process that has the sampler."""

    def run(code, *, preload=True):
        environment = dict(os.environ)
        if preload:
            environment["LD_PRELOAD"] = str(malloc_sampler.build_sampler()[0])
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_the_library_that_leaks_is_named(tmp_path):
    name = "strings of a C++ library"
    program = growing_programs.PROGRAMS[name]
    rows, coverage, report = growing_programs.run(name, twin=False, folder=str(tmp_path), sampled=True)
    assert rows[0] == program.row, report
    assert f"allocated by {program.library}" in report
    assert coverage >= 0.95


def test_a_library_that_frees_its_blocks_is_not_accused(tmp_path):
    rows, coverage, report = growing_programs.run(
        "strings of a C++ library", twin=True, folder=str(tmp_path), sampled=True
    )
    assert rows == [], report
    assert "libkeeper.so" not in report
    assert coverage >= 0.95


EXECUTABLE = """
#include <stdlib.h>
int Py_BytesMain(int count, char** arguments);
int main(int count, char** arguments) {
    void* (*volatile allocate)(size_t) = malloc;
    free(allocate(1));
    return Py_BytesMain(count, arguments);
}
"""
OTHER_MALLOC = """
#include <stddef.h>
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void __libc_free(void*);
void* malloc(size_t nbytes) { return __libc_malloc(nbytes); }
void* calloc(size_t count, size_t nbytes) { return __libc_calloc(count, nbytes); }
void* realloc(void* block, size_t nbytes) { return __libc_realloc(block, nbytes); }
void free(void* block) { __libc_free(block); }
"""
REFUSAL = "from memwatch.monitor import malloc_sampler; print(malloc_sampler._refusal())"


@pytest.fixture(scope="module")
def python_at_a_fixed_address(tmp_path_factory):
    """Link a Python as Debian does: the address of malloc is a stub in its executable."""
    folder = tmp_path_factory.mktemp("fixed")
    (folder / "main.c").write_text(EXECUTABLE)
    place = sysconfig.get_config_var("LIBDIR")
    library = Path(place, sysconfig.get_config_var("LDLIBRARY") or "")
    if not library.name.endswith(".so") or not library.exists():
        pytest.skip("this Python has no shared library to link with")
    command = ["cc", "-no-pie", "-fno-pie", "-o", "python", "main.c", str(library), f"-Wl,-rpath,{place}"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "python"


@pytest.mark.parametrize("preloaded", ["nothing", "another malloc"])
@pytest.mark.parametrize("linked", ["at a fixed address", "as usual"])
def test_only_another_malloc_is_refused(python_at_a_fixed_address, tmp_path, linked, preloaded):
    python = python_at_a_fixed_address if linked == "at a fixed address" else sys.executable
    environment = os.environ | {"PYTHONHOME": sys.base_prefix, "PYTHONPATH": os.pathsep.join(sys.path)}
    if preloaded == "another malloc":
        (tmp_path / "other.c").write_text(OTHER_MALLOC)
        command = ["cc", "-shared", "-fPIC", "-fno-builtin", "-o", "other.so", "other.c"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        environment["LD_PRELOAD"] = str(tmp_path / "other.so")
    done = subprocess.run(
        [python, "-c", REFUSAL], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    expected = "" if preloaded == "nothing" else "the program uses another malloc than glibc's"
    assert done.stdout.strip() == expected


ESTIMATE = """
import ctypes, json
from memwatch.monitor import malloc_sampler
from memwatch.monitor.rows import rows_of
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.calloc.restype = libc.realloc.restype = ctypes.c_void_p
libc.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
class User:
    pass
user = User()
assert malloc_sampler.start(user)
def named():
    found = rows_of(children=False)
    return sum(nbytes for name, nbytes in found.by_library.items() if "ffi" in name) / (1 << 20)
def filled(address, nbytes):
    ctypes.memset(address, 1, nbytes)
    return address
blocks = []
for turn in range(32):  # 1 MiB in each turn: blocks of one size would not show a wrong weight
    nbytes = (100, 1000, 10_000, 100_000)[turn % 4]
    blocks += [filled(libc.malloc(nbytes), nbytes) for _ in range((1 << 20) // nbytes)]
found = [named()]
blocks = [filled(libc.realloc(block, 200_000), 200_000) for block in blocks[-10 * 8 :]] + blocks[: -10 * 8]
found.append(named())
for block in blocks:
    libc.free(block)
found.append(named())
malloc_sampler.stop(user)
found.append(named())
print(json.dumps(found))
"""


def test_the_estimate_fits_blocks_of_many_sizes(sampled_python):
    done = sampled_python(ESTIMATE)
    assert done.returncode == 0, done.stderr
    allocated, grown, freed, stopped = json.loads(done.stdout)
    # one sample for 128 KiB: 32 MiB have a deviation of 2 MiB
    assert 32 * 0.6 < allocated < 32 * 1.4
    assert grown > allocated + 4
    assert freed == stopped == 0


MALLOC = """
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
from memwatch.monitor import malloc_sampler
class User:
    pass
user = User()
if "sampled" in sys.argv or malloc_sampler._library() is not None:
    assert malloc_sampler.start(user)
word, pointer = ctypes.c_size_t, ctypes.c_void_p
for name, arguments in {
    "malloc": [word], "calloc": [word, word], "realloc": [pointer, word], "aligned_alloc": [word, word],
    "memalign": [word, word], "reallocarray": [pointer, word, word],
}.items():
    getattr(libc, name).restype, getattr(libc, name).argtypes = pointer, arguments
libc.posix_memalign.argtypes = [ctypes.POINTER(pointer), word, word]
libc.free.argtypes = [pointer]
huge = (1 << 63) - 1
def failed(block):
    return block, ctypes.get_errno()
print(failed(libc.malloc(huge)), failed(libc.calloc(huge, 16)), failed(libc.aligned_alloc(64, huge)))
block = libc.malloc(1 << 20)
ctypes.memset(block, 7, 1 << 20)
print(failed(libc.realloc(block, huge)), failed(libc.reallocarray(block, huge, 16)))
print(ctypes.string_at(block, 1 << 20) == b"\\x07" * (1 << 20))
block = libc.realloc(block, 3 << 20)
print(ctypes.string_at(block, 1 << 20) == b"\\x07" * (1 << 20))
print(libc.realloc(block, 0))
print(ctypes.string_at(libc.calloc(1 << 20, 3), 3 << 20) == bytes(3 << 20))
print([libc.aligned_alloc(each, 1 << 20) % each for each in (16, 64, 4096)], libc.memalign(256, 1 << 20) % 256)
found = pointer()
print([libc.posix_memalign(ctypes.byref(found), each, 100) for each in (0, 3, 4, 24, 8, 4096)], found.value % 4096)
print(libc.posix_memalign(ctypes.byref(found), 64, huge) == errno.ENOMEM)
libc.free(None)
"""


def test_malloc_answers_as_without_the_sampler(sampled_python):
    plain, sampled = sampled_python(MALLOC, preload=False), sampled_python(MALLOC)
    assert plain.returncode == sampled.returncode == 0, plain.stderr + sampled.stderr
    assert sampled.stdout == plain.stdout


FORKS = """
import ctypes, os, threading
from memwatch.monitor import malloc_sampler
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
class User:
    pass
user = User()
assert malloc_sampler.start(user)
done = threading.Event()
def allocate():
    while not done.is_set():
        for block in [libc.malloc(100_000) for _ in range(50)]:
            libc.free(block)
threads = [threading.Thread(target=allocate) for _ in range(3)]
for thread in threads:
    thread.start()
for number in range(60):
    pid = os.fork()
    if not pid:
        for block in [libc.malloc(100_000) for _ in range(50)]:
            libc.free(block)
        os._exit(len(malloc_sampler.samples()) > 1 << 15)
    assert os.waitpid(pid, 0)[1] == 0
done.set()
for thread in threads:
    thread.join()
print("done")
"""


@pytest.mark.whole
def test_forks_of_a_program_whose_threads_allocate_go_on(sampled_python):
    done = sampled_python(FORKS)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_the_library_needs_no_other_than_libc(sampled_python):
    """A library that is loaded first must not bring an old C++ library in front of the program's own."""
    names = "[line.split()[-1] for line in open('/proc/self/maps') if '.so' in line]"
    code = f"import os; print(sorted(set(os.path.basename(name) for name in {names})))"
    plain, sampled = (set(eval(sampled_python(code, preload=each).stdout)) for each in (False, True))
    assert {name.split("-")[0] for name in sampled - plain} == {"_malloc_sampler"}


PROGRAM = """
import os, subprocess, sys, torch
print(sys.stdin.read(), sys.argv[1:], os.environ.get("LD_PRELOAD"), "MEMWATCH_RESTARTED" in os.environ)
print(subprocess.run(["cat", "/proc/self/maps"], capture_output=True, text=True).stdout.count("malloc_sampler"))
with open("/proc/self/maps") as maps:
    print("malloc_sampler" in maps.read())
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Return a Python that finds memwatch and the others' packages, with the line that the wheel installs."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "a.pth").write_text(f"{ROOT}\n{sysconfig.get_paths()['purelib']}\n")
    (packages / "memwatch.pth").write_bytes((ROOT / "memwatch/cli/memwatch.pth").read_bytes())
    return folder / "bin" / "python"


def run_program(python, folder, code=PROGRAM, **variables):
    (folder / "program.py").write_text(code)
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_PRELOAD")
    }
    return subprocess.run(
        [python, "-X", "utf8", "program.py", "a b", ""],
        cwd=folder,
        env=environment | variables,
        input="typed",
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("before", [None, "libm.so.6"])
def test_the_program_starts_once_more_with_the_sampler(before, python, tmp_path):
    preloaded = {} if before is None else {"LD_PRELOAD": before}
    done = run_program(python, tmp_path, MEMWATCH="monitor,native=1", **preloaded)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"typed ['a b', ''] {before} False\n0\nTrue\n"
    assert "memwatch: process" in done.stderr  # the report
    assert "does not name" not in done.stderr


SPAWNS = """
import multiprocessing, os, torch
def work(rows):
    with open("/proc/self/maps") as maps:
        return torch.ones(rows, 64).sum().item(), "malloc_sampler" in maps.read(), os.environ.get("LD_PRELOAD")
if __name__ == "__main__":
    for kind in ("spawn", "forkserver"):
        with multiprocessing.get_context(kind).Pool(1) as pool:
            print(pool.map(work, [1, 2]))
"""


@pytest.mark.whole
def test_processes_of_multiprocessing_start_once_more_too(python, tmp_path):
    """They have open pipes by now, which the second start keeps."""
    done = run_program(python, tmp_path, code=SPAWNS, MEMWATCH="monitor,native=1,quiet=1")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[(64.0, True, None), (128.0, True, None)]\n" * 2


def test_without_the_option_the_program_starts_once(python, tmp_path):
    done = run_program(python, tmp_path, MEMWATCH="monitor")
    assert done.stdout == "typed ['a b', ''] None False\n0\nFalse\n"


def test_a_sampler_that_cannot_be_built_is_one_line(python, tmp_path):
    done = run_program(
        python, tmp_path, MEMWATCH="monitor,native=1", MEMWATCH_CACHE=str(tmp_path / "cache"), CXX="false"
    )
    assert (done.returncode, done.stdout) == (0, "typed ['a b', ''] None False\n0\nFalse\n"), done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "sampler" in line]
    assert line.startswith("memwatch: the sampler of malloc was not built: ")
    assert line.endswith("the monitor does not name native libraries")
