"""`wheels/build.py`: what it decides before it downloads or compiles anything."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[2] / "wheels" / "build.py"


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("wheels_build", BUILD)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_a_version_of_torch_stands_for_its_releases(build):
    assert build.releases_of("2.12") == ["2.12.0", "2.12.1"]
    assert build.releases_of("2.99.7") == ["2.99.7"]


def test_an_unknown_version_of_torch_ends_the_build_with_a_line(build):
    with pytest.raises(SystemExit, match=r"no torch 1\.0 is known"):
        build.releases_of("1.0")
    with pytest.raises(SystemExit, match=r"no torch 2\.1 is known"):  # not 2.11, 2.12 and so on
        build.releases_of("2.1")


def test_a_python_is_described_by_itself(build):
    version = "{}.{}".format(*sys.version_info)
    tag, include, suffix = build.describe_python(version)
    assert (tag, suffix) == (f"cp{version.replace('.', '')}", sysconfig.get_config_var("EXT_SUFFIX"))
    assert Path(include).name == f"python{version}"


def test_a_python_that_is_not_there_ends_the_build_with_a_line(build):
    with pytest.raises(SystemExit, match=r"there is no Python 9\.9 here"):
        build.find_python("9.9")


def unpack(folder, version):
    (folder / "torch" / "include").mkdir(parents=True)
    (folder / "torch" / "version.py").write_text(f"__version__ = {version!r}\ngit_version = 'abc'\n")
    (folder / "complete").touch()


def test_headers_that_are_there_are_not_fetched_again(build, tmp_path):
    unpack(tmp_path / "2.13.0", "2.13.0+cpu")
    assert build.headers("2.13.0", tmp_path) == ("2.13.0", "abc", tmp_path / "2.13.0" / "torch" / "include")


def test_headers_of_another_release_are_refused(build, tmp_path):
    unpack(tmp_path / "2.13.0", "2.12.1")
    with pytest.raises(AssertionError, match=r"2\.12\.1"):
        build.headers("2.13.0", tmp_path)


@pytest.fixture
def compile_for(build, tmp_path, monkeypatch):
    """Return a function that compiles small sources against the headers of a pretended release of torch."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "a.cpp").write_text('#include <a.h>\nextern "C" const char* a() { return A; }\n')
    (sources / "b.cpp").write_text('#include <a.h>\nextern "C" const char* b() { return PLACE; }\n')
    monkeypatch.setattr(build.libraries().RECORDER, "sources", sources)
    python = build.Python("cp311", str(tmp_path / "python"), ".so")
    stubs, recorders = build.make_stubs(tmp_path / "stubs"), tmp_path / "recorders"
    recorders.mkdir()

    def compile_for(release, constant, unread=""):
        include = tmp_path / release / "torch" / "include"
        include.mkdir(parents=True)
        (include / "a.h").write_text(
            f'#pragma once\n#define A "{constant}"\n#define PLACE __FILE__\n#define UNREAD "{unread}"\n'
            "inline const char* header() { return __FILE__; }\n"
        )
        (include / "unread.h").write_text(unread)
        return build.compile_recorder(python, build.Torch(release, "abc", include), stubs, recorders)

    return compile_for


def test_releases_share_a_compilation_if_they_differ_only_in_what_no_source_reads(compile_for, tmp_path):
    one, other = compile_for("2.12.0", "same", "one"), compile_for("2.12.1", "same", "other")
    assert one.name != other.name
    assert one.read_bytes() == other.read_bytes()
    assert len(list((tmp_path / "recorders").glob("[!_]*"))) == 1
    different = compile_for("2.13.0", "different")
    assert b"different" in different.read_bytes()
    assert b"different" not in one.read_bytes()


def test_a_recorder_does_not_contain_the_folders_of_the_machine(compile_for, tmp_path):
    content = compile_for("2.12.0", "constant").read_bytes()
    assert b"src/b.cpp" in content  # the name that __FILE__ had
    assert str(tmp_path).encode() not in content


def test_the_pretended_device_of_a_release_contains_no_folder_of_the_machine(build, tmp_path, monkeypatch):
    sources, include = tmp_path / "sources", tmp_path / "torch" / "include"
    sources.mkdir()
    include.mkdir(parents=True)
    (include / "a.h").write_text("inline const char* header() { return __FILE__; }\n")
    (sources / "device.cpp").write_text(
        '#include <a.h>\nextern "C" __attribute__((visibility("default"))) const char* a() { return header(); }\n'
    )
    monkeypatch.setattr(build.libraries().DEVICE, "sources", sources)
    stubs = build.make_stubs(tmp_path / "stubs")
    file = build.compile_device(build.Torch("2.12.0", "abc", include), stubs, tmp_path)
    content = file.read_bytes()
    assert file.name == build.libraries().device_file_name("2.12.0", "abc")
    assert b"torch/include/a.h" in content
    assert str(tmp_path).encode() not in content
    assert b"libc10.so" in content  # a torch that has it must be loaded first
