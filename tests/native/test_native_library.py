"""`memwatch build` builds the native recorder. memwatch finds it by its sources, and works without it."""

from __future__ import annotations

import errno
import os
import shutil
import sys

import pytest
import torch

import memwatch
from memwatch import build_cache
from memwatch.devices.cuda_allocator import torchs_own as driver
from memwatch.errors import MemwatchError
from memwatch.monitor import malloc_sampler
from memwatch.planner.native import library as kernels
from memwatch.record.native import library


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """Have an empty folder as the cache."""
    monkeypatch.setenv("MEMWATCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """Have a copy of the sources in place of them."""
    copy = shutil.copytree(library.SOURCES, tmp_path / "src")
    monkeypatch.setattr(library, "SOURCES", copy)
    library._file_name.cache_clear()
    yield copy
    library._file_name.cache_clear()


def recorder() -> str:
    with memwatch.profile() as prof:
        torch.ones(3).exp()
    assert len(prof.ops) == 2
    return prof.capture.meta["recorder"]


def test_the_tests_have_the_native_recorder():
    """`make test` builds it, so a block takes it by itself."""
    assert recorder() == "native"


def test_building_again_says_where_it_is(shell_memwatch):
    """Nothing is compiled twice."""
    done = shell_memwatch("build")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines == [
        f"already built: {file}"
        for file in (driver.driver_path(), kernels.path(), malloc_sampler.path(), library.path())
    ]


@pytest.fixture
def untold(monkeypatch):
    """Make the process forget the hints that it printed."""
    monkeypatch.setattr(library, "_remarks_made", [])


def notes():
    with memwatch.profile() as prof:
        torch.ones(3)
    return [text for kind, text in prof.notes if kind == "recorder"]


def test_who_could_have_it_is_told_once(empty_cache, untold):
    """The first block of a process says in one line that it could be built; no later one does."""
    assert notes() == [library.REMARK]
    assert notes() == []
    assert "\n" not in library.REMARK


def test_who_has_switched_it_off_is_told_nothing(empty_cache, untold, monkeypatch):
    monkeypatch.setenv("MEMWATCH_NATIVE", "0")
    assert notes() == []


@pytest.mark.parametrize(
    ("variable", "missing"),
    [(("CXX", "no-such-compiler"), "a C++ compiler"), (("MEMWATCH_CACHE", f"{__file__}/nowhere"), "nowhere")],
)
def test_who_cannot_build_it_is_told_once_what_is_missing(
    empty_cache, untold, monkeypatch, variable, missing
):
    monkeypatch.setenv(*variable)
    (note,) = notes()
    assert missing in note
    assert "\n" not in note
    assert notes() == []


def test_who_has_it_is_told_nothing(untold):
    """The native recorder is at work."""
    assert notes() == []


def test_run_tells_before_the_next_command(empty_cache, tmp_path, shell_memwatch):
    """`memwatch run` ends with the next command to type; the line about the recorder comes before, but not with -q."""
    for quiet in ([], ["-q"]):
        words = ["run", "-f", "-o", str(tmp_path / "a.memwatch"), *quiet, "-c", "import torch; torch.ones(3)"]
        done = shell_memwatch(*words)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count(library.REMARK) == (not quiet)
        assert not quiet or done.stderr == ""


def test_a_library_that_does_not_load_is_not_built(empty_cache, untold):
    """`memwatch build` then compiles it again. An example is a library whose system libraries were replaced."""
    empty_cache.mkdir(mode=0o700)
    library.path().write_bytes(b"no library")
    assert not library.is_built()
    assert notes() == [library.REMARK]


def test_without_it_python_records(empty_cache):
    """A block needs no library and makes no folder for one."""
    assert library.load() is None
    assert recorder() == "python"
    assert not empty_cache.exists()


def test_other_sources_are_another_library(sources):
    """A library of older sources is never loaded."""
    before = library.path()
    (sources / "python.h").write_text("// another\n")
    library._file_name.cache_clear()
    assert library.path() != before


def test_the_same_sources_elsewhere_are_the_same_library(tmp_path, monkeypatch):
    """A library that one checkout compiled serves another, for it lies in neither."""
    original = library.path()
    monkeypatch.setattr(library, "SOURCES", shutil.copytree(library.SOURCES, tmp_path / "src"))
    assert library.path() == original
    assert original.parent == build_cache.folder()


def test_a_library_names_its_torch_and_its_python(empty_cache):
    """A user can see which libraries to delete."""
    name = library.path().name
    assert f"-torch{torch.__version__}-cp{sys.version_info.major}{sys.version_info.minor}-" in name


def test_a_library_that_cannot_be_loaded_is_left_alone(empty_cache):
    """A damaged file does not make memwatch fail."""
    empty_cache.mkdir()
    library.path().write_bytes(b"no library")
    assert library.load() is None
    assert recorder() == "python"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"MEMWATCH_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/memwatch"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/c"}, "/c/.cache/memwatch"),
        ({"HOME": "/c"}, "/c/.cache/memwatch"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="the XDG rules are Linux's")
def test_the_cache_is_where_the_platform_has_its_caches(variables, expected, monkeypatch):
    """MEMWATCH_CACHE names the folder itself; XDG_CACHE_HOME, if absolute, and HOME name one around it."""
    for name in ("MEMWATCH_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(build_cache.folder()) == expected


def test_without_a_home_no_library_of_the_current_folder_is_loaded(monkeypatch):
    """If the list of users lacks the uid, the user has no home. The cache is then a folder that does not exist."""
    for name in ("MEMWATCH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert build_cache.folder().is_relative_to("/nonexistent")


def test_no_place_to_write_is_told_before_anything_is_compiled(tmp_path, monkeypatch):
    """The error names the folder and the variable to set."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("MEMWATCH_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(library, "_compile", lambda folder: pytest.fail("compiled first"))
    with pytest.raises(MemwatchError, match=r"file/cache cannot be written .* Set MEMWATCH_CACHE"):
        library.build()


@pytest.mark.parametrize(
    "failing", ["tempfile.TemporaryDirectory", "pathlib.Path.write_bytes", "pathlib.Path.replace"]
)
def test_a_disk_that_fails_is_told_by_its_reason_and_leaves_nothing(
    failing, empty_cache, tmp_path, monkeypatch
):
    """No temporary folder, a full disk and a refused rename are errors of one line, and no part of a library stays."""
    made = tmp_path / "made"
    made.touch()
    monkeypatch.setattr(library, "_compile", lambda folder: made)

    def fail(path=None, *rest):
        if path is not None:
            path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(failing, fail)
    with pytest.raises(MemwatchError, match=r"was not built: .*No space left on device.*Python recorder"):
        library.build()
    assert list(empty_cache.iterdir()) == []


def test_a_compiler_that_leaves_no_library_is_told(empty_cache, monkeypatch):
    """An exit status of 0 is not believed."""
    monkeypatch.setattr(library, "COMPILE", os.devnull)
    with pytest.raises(MemwatchError, match=r"was not built: the compiler left no _recorder"):
        library.build()


def test_missing_headers_of_python_are_told_by_their_path(empty_cache, tmp_path, monkeypatch):
    """The error names what to install, not the compiler."""
    monkeypatch.setattr(library.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(MemwatchError, match=r"headers of Python are missing \(.*Python\.h\).*python3-dev"):
        library.build()


def test_a_source_that_does_not_compile_is_told_by_its_first_error(empty_cache, sources, capfd):
    """The error does not blame the compiler. The cache keeps the other libraries and no part of this one."""
    empty_cache.mkdir()
    (empty_cache / "_recorder-of-another-torch.so").touch()
    for source in sources.glob("*.cpp"):
        source.write_text("int x;\n#error the first\n#error the second\n")
    with pytest.raises(
        MemwatchError, match=r"does not compile for torch .*\.cpp:2:2: error: #error the first\. It"
    ):
        library.build()
    assert [file.name for file in empty_cache.iterdir()] == ["_recorder-of-another-torch.so"]
    assert capfd.readouterr() == ("", "")


def test_without_setuptools_the_error_names_the_extra(empty_cache, tmp_path, monkeypatch):
    (tmp_path / "setuptools").mkdir()
    (tmp_path / "setuptools" / "__init__.py").write_text("raise ModuleNotFoundError(name='setuptools')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MemwatchError, match=r"setuptools is not installed: pip install 'memwatch\[build\]'"):
        library.build()


def test_a_library_is_written_beside_those_of_other_versions(empty_cache, sources):
    """Building for one torch deletes nothing that another torch needs."""
    empty_cache.mkdir()
    (empty_cache / "_recorder-of-another-torch.so").touch()
    for source in sources.glob("*.cpp"):
        source.write_text(f'extern "C" int of_{source.stem}() {{ return 1; }}\n')
    assert library.build() == library.path()
    assert {file.name for file in empty_cache.iterdir()} == {
        library.path().name,
        "_recorder-of-another-torch.so",
    }


def test_no_compiler_is_one_line_and_exit_code_1(shell_memwatch, tmp_path):
    """The line names the package to install, and everything else works."""
    done = shell_memwatch("build", CXX="no-compiler", CC="no-compiler", MEMWATCH_CACHE=str(tmp_path))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("memwatch: error: the native recorder was not built: there is no C++ compiler")
    assert "'no-compiler' was not found" in line
    assert list(tmp_path.iterdir()) == []
