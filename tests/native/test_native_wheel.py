"""A wheel that was built with MEMWATCH_BUILD_NATIVE=1 has the native recorder, for machines without a compiler.

The build takes the library that `memwatch build` left in the cache, so these tests compile nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
import torch

from memwatch.build_cache import release_of
from memwatch.record.native import library

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import memwatch, torch
with memwatch.profile() as prof:
    torch.ones(3)
print(memwatch.__file__, prof.meta["recorder"], *(text for kind, text in prof.notes if kind == "recorder"), sep="\\n")
"""


def build_wheel(folder: Path, **variables: str) -> Path:
    """Build a wheel of this checkout as a front end does; return it."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, env=os.environ | variables, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("wheel"), MEMWATCH_BUILD_NATIVE="1")


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    """Install the wheel in an environment of its own, which finds the others' packages; return its folder."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel]
    subprocess.run(command, check=True, capture_output=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_paths()["purelib"])
    return packages


def use(site, tmp_path):
    """Profile with the installed memwatch and without a compiler; return its folder, the recorder and the notes."""
    hidden = {"PATH": "", "CXX": "no-compiler", "MEMWATCH_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [site.parents[2] / "bin" / "python", "-I", "-c", PROGRAM],
        env={**os.environ, **hidden}, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def test_it_is_of_this_platform_and_the_plain_one_of_any(wheel, tmp_path):
    """An installer takes the wheel only if its library can be loaded.

    Without the variable nothing is compiled in.
    """
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{python}-{python}-" in wheel.name
    assert wheel.name.endswith(f"{sysconfig.get_platform().replace('-', '_').replace('.', '_')}.whl")
    assert build_wheel(tmp_path, MEMWATCH_BUILD_NATIVE="0").name.endswith("-py3-none-any.whl")


def test_it_records_natively_without_a_compiler(site, tmp_path):
    """The library lies in the installed package; no cache is made."""
    module, *rest = use(site, tmp_path)
    assert (site / "memwatch.pth").read_text().startswith("import os;")  # the files that MEMWATCH=1 needs
    assert Path(module).is_relative_to(site)
    assert rest == ["native"]
    assert not (tmp_path / "cache").exists()


def test_it_estimates_for_cuda_without_a_compiler(site, tmp_path):
    """A torch for the host alone needs a library of the wheel before a fake tensor can move to CUDA."""
    (tmp_path / "train.py").write_text("import torch\ntorch.ones(1 << 20).cuda()\n")
    hidden = {"PATH": "", "CXX": "no-compiler", "MEMWATCH_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [site.parents[2] / "bin" / "python", "-I", "-m", "memwatch", "estimate", "--device", "cuda", "train.py"],
        env={**os.environ, **hidden}, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Estimated peak 4.00 MiB on cuda" in done.stdout, done.stderr
    assert not (tmp_path / "cache").exists()


def test_with_another_torch_python_records_and_one_line_says_so(site, tmp_path):
    """A library of another torch is never loaded: it would crash, or read wrong memory."""
    (built,) = (site / "memwatch" / "record" / "native" / "built").iterdir()
    other = built.rename(
        built.with_name(built.name.replace(f"torch{release_of(torch.__version__)}-", "torch2.12.9-"))
    )
    _, recorder, note = use(site, tmp_path)
    assert recorder == "python"
    assert "for torch 2.12.9, and none of them loads" in note
    assert f"this torch {torch.__version__}" in note
    assert "memwatch build" not in note  # there is no compiler
    other.rename(built)


def test_a_checkout_has_no_library_in_it():
    """A wheel's library is not built in the sources."""
    assert not library.BUILT.exists()
    assert library.torch_releases_in_wheel() == []


def test_a_library_that_does_not_load_gives_way_to_python_and_one_line_says_so(site, tmp_path):
    """As where a torch was compiled in another way."""
    (built,) = (site / "memwatch" / "record" / "native" / "built").iterdir()
    content = built.read_bytes()
    built.write_bytes(b"no library")
    _, recorder, note = use(site, tmp_path)
    assert recorder == "python"
    assert "none of them loads with this torch" in note
    built.write_bytes(content)
