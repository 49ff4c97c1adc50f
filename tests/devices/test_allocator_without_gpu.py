"""torch's CUDA caching allocator without a GPU: its recorded answers, its own code if a CUDA build exists."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import zlib

import numpy as np
import pytest

from memwatch import build_cache
from memwatch.devices.cuda_allocator import (
    ANY_DEVICE_BYTES,
    FREE,
    Model,
    SettingsError,
    Trace,
    choose_allocator,
    find_torchs_own,
)
from memwatch.devices.cuda_allocator import torchs_own as torchs_own_module
from memwatch.devices.cuda_allocator.torchs_own import VARIABLE
from memwatch.errors import MemwatchError

MIB = 1 << 20
RECORDED = json.loads((pathlib.Path(__file__).parent / "allocator_traces.json").read_text(encoding="utf-8"))

HEADERS = {
    "c10/core/Allocator.h": "struct C10_API Allocator {\n virtual ~Allocator() = default;\n"
    " virtual DataPtr allocate(size_t n) = 0;\n virtual DeleterFnPtr raw_deleter() const;\n};\n",
    "c10/core/CachingDeviceAllocator.h": "struct C10_API DeviceAllocator : public c10::Allocator {\n};\n",
    "c10/cuda/CUDACachingAllocator.h": "class CUDAAllocator : public DeviceAllocator {\n"
    " virtual void* raw_alloc(size_t nbytes) = 0; // virtual not_one()\n virtual void init(int count) = 0;\n};\n",
}
"""The headers of a class that is laid out as torch's, with fewer functions."""


def trace_of(recorded):
    return Trace(*(np.array(recorded[name]) for name in ("blocks", "sizes", "streams")))


def checksum(after):
    return zlib.crc32(np.ascontiguousarray(after, dtype="<i8").tobytes())


def figures_of(outcome):
    return [
        outcome.most_reserved_bytes,
        checksum(outcome.reserved_bytes),
        checksum(outcome.allocated_bytes),
        outcome.retries,
        outcome.refused_event,
    ]


@pytest.fixture
def torchs_own():
    try:
        return find_torchs_own()
    except MemwatchError as error:
        pytest.skip(f"torch's own CUDA allocator is not here: {error}")


@pytest.mark.parametrize("number", range(len(RECORDED["traces"])))
def test_the_model_answers_as_torchs_allocator_did(number):
    """Recorded by `reports/allocator.py --record`: bytes after each event, retries and refused allocations."""
    recorded = RECORDED["traces"][number]
    trace = trace_of(recorded)
    answers = {
        settings: figures_of(Model().run(trace, settings, recorded["device_bytes"]))
        for settings in recorded["outcomes"]
    }
    assert answers == recorded["outcomes"]


def test_the_recorded_traces_fill_devices_retry_and_use_streams():
    outcomes = [each for recorded in RECORDED["traces"] for each in recorded["outcomes"].values()]
    assert sum(each[3] > 0 for each in outcomes) >= 20
    assert sum(each[4] is not None for each in outcomes) >= 20
    assert sum(len(set(recorded["streams"])) > 1 for recorded in RECORDED["traces"]) >= 10


def test_torchs_own_allocator_answers_as_it_was_recorded(torchs_own):
    for recorded in RECORDED["traces"][:5]:
        settings = list(recorded["outcomes"])
        outcomes = torchs_own.run_many(trace_of(recorded), settings, recorded["device_bytes"])
        assert {each.settings: figures_of(each) for each in outcomes} == recorded["outcomes"]


def test_torchs_own_allocator_rejects_settings_that_it_does_not_know(torchs_own):
    trace = Trace.of_events([(0, MIB, 0)])
    with pytest.raises(SettingsError, match="Unrecognized key 'nonsense'"):
        torchs_own.run(trace, "nonsense:1", ANY_DEVICE_BYTES)


@pytest.mark.parametrize(
    "settings",
    ["nonsense:1", "max_split_size_mb", "max_split_size_mb:many", "backend:cudaMallocAsync",
     "expandable_segments:maybe", "roundup_power2_divisions:3", "garbage_collection_threshold:2"],
)  # fmt: skip
def test_the_model_rejects_settings_that_it_does_not_know(settings):
    with pytest.raises(SettingsError):
        Model().run(Trace.of_events([(0, MIB, 0)]), settings, ANY_DEVICE_BYTES)


def test_settings_of_pinned_memory_change_nothing():
    trace = trace_of(RECORDED["traces"][0])
    plain, pinned = (
        Model().run(trace, settings, ANY_DEVICE_BYTES)
        for settings in ("", "pinned_use_background_threads:True, backend:native")
    )
    assert figures_of(plain) == figures_of(pinned)


def test_a_full_device_gives_free_segments_back_before_it_refuses():
    """Two segments are free and too small each; without them a third fits."""
    events = [(0, 30 * MIB, 0), (1, 30 * MIB, 0), (0, FREE, 0), (1, FREE, 0), (2, 50 * MIB, 0)]
    outcome = Model().run(Trace.of_events(events), "", 70 * MIB)
    assert outcome.fits
    assert outcome.retries == 1
    assert outcome.reserved_bytes.tolist() == [30 * MIB, 60 * MIB, 60 * MIB, 60 * MIB, 50 * MIB]
    assert Model().run(Trace.of_events(events), "", 40 * MIB).refused_event == 1


def test_a_trace_ends_at_the_allocation_that_does_not_fit():
    events = [(0, 30 * MIB, 0), (1, 60 * MIB, 0), (2, 2 * MIB, 0)]
    outcome = Model().run(Trace.of_events(events), "", 70 * MIB)
    assert outcome.refused_event == 1
    assert outcome.reserved_bytes.tolist() == [30 * MIB, 30 * MIB, 30 * MIB]


def test_a_free_block_serves_its_own_stream_alone():
    events = [(0, 30 * MIB, 0), (0, FREE, 0), (1, 30 * MIB, 1), (2, 30 * MIB, 0)]
    assert Model().run(Trace.of_events(events), "", ANY_DEVICE_BYTES).most_reserved_bytes == 60 * MIB


def test_lives_become_a_trace_in_which_deaths_come_first():
    sizes, births, deaths = np.array([10, 20, 30]), np.array([0, 1, 2]), np.array([1, -1, -1])
    trace = Trace.of_lives(sizes, births, deaths)
    assert trace.blocks.tolist() == [0, 0, 1, 2]
    assert trace.sizes.tolist() == [10, FREE, 20, 30]
    assert trace.live_bytes.tolist() == [10, 0, 20, 50]


def test_a_torch_without_cuda_leaves_the_model_and_says_why(monkeypatch):
    monkeypatch.setenv(VARIABLE, "/nowhere/libc10_cuda.so")
    allocator, reason = choose_allocator()
    assert isinstance(allocator, Model)
    assert "/nowhere/libc10_cuda.so, which is not a file" in reason
    assert "\n" not in reason


def test_a_real_library_of_cuda_in_the_child_is_noticed(tmp_path):
    """With it the process could touch a GPU, so the child refuses to run."""
    import _ctypes

    library = tmp_path / "libcudart.so.99"
    library.write_bytes(pathlib.Path(_ctypes.__file__).read_bytes())
    code = (
        f"import ctypes, runpy; ctypes.CDLL({str(library)!r})\n"
        f"foreign = runpy.run_path({str(torchs_own_module._CHILD)!r})['_foreign']\n"
        f"print(foreign('/elsewhere'), foreign({str(tmp_path)!r}) == '')"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(library), "True"]


@pytest.mark.skipif(os.name != "posix", reason="builds a library")
class TestForeignLibraries:
    """A file that is not torch's ends in one clear line, whatever it does."""

    @pytest.fixture
    def foreign(self, tmp_path, monkeypatch):
        """Return a function that runs a trace on a library with this content."""

        def run(content, headers=HEADERS):
            (tmp_path / "lib").mkdir()
            library = tmp_path / "lib" / "libc10_cuda.so"
            library.write_bytes(content)
            (tmp_path / "lib" / "libc10.so").write_bytes(content)
            for name, text in headers.items():
                file = tmp_path / "include" / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            monkeypatch.setenv(VARIABLE, str(library))
            allocator = find_torchs_own()
            assert allocator.places == {"allocate": 2, "raw_deleter": 3, "init": 5}
            return allocator.run(Trace.of_events([(0, MIB, 0)]), "", ANY_DEVICE_BYTES)

        return run

    def test_no_library_at_all(self, foreign):
        with pytest.raises(
            MemwatchError, match=r"could not be run: .*(too short|invalid ELF header)"
        ) as caught:
            foreign(b"not a library")
        assert "\n" not in str(caught.value)

    def test_a_library_that_is_not_torchs(self, foreign):
        import _ctypes

        with pytest.raises(MemwatchError, match=r"could not be run: ") as caught:
            foreign(pathlib.Path(_ctypes.__file__).read_bytes())
        assert "\n" not in str(caught.value)

    def test_a_library_that_crashes(self, foreign, tmp_path):
        made = tmp_path / "crash.so"
        source = "#include <cstdlib>\n__attribute__((constructor)) static void crash() { std::abort(); }\n"
        command = [build_cache.compiler("a test", ""), "-shared", "-fPIC", "-x", "c++", "-", "-o", str(made)]
        subprocess.run(command, input=source.encode(), check=True)
        with pytest.raises(MemwatchError, match="its process was ended by signal 6") as caught:
            foreign(made.read_bytes())
        assert "\n" not in str(caught.value)

    def test_no_headers(self, foreign):
        with pytest.raises(MemwatchError, match=r"Allocator\.h cannot be read"):
            foreign(b"", headers={})

    def test_other_headers(self, foreign):
        headers = HEADERS | {"c10/cuda/CUDACachingAllocator.h": "class Other {};\n"}
        with pytest.raises(MemwatchError, match="not the one that memwatch knows"):
            foreign(b"", headers=headers)
