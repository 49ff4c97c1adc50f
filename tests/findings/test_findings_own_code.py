"""The owner of a file follows from the folders of Python and torch, never from a word in its path."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import textwrap

import pytest
import pytest_memwatch
import torch

import memwatch
from memwatch.own_code import CodeOwner, code_owner

SCRIPTS = sysconfig.get_path("scripts")

PROGRAM = """
    import torch

    def first(batch):
        return (batch * 2).sum()

    def second(batch):
        wide = torch.cat([batch] * 8)
        return wide.sum()

    def train():
        batch = torch.ones(256, 1024)
        first(batch * 1)
        kept = torch.ones(1024, 1024)
        first(kept)
        for _ in range(2):
            second(batch)
"""


def load_program(folder, name):
    """Import a program from a file in a folder."""
    folder.mkdir(parents=True)
    file = folder / "program.py"
    file.write_text(textwrap.dedent(PROGRAM))
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, file


@pytest.mark.parametrize("folder", ["torch", "lib/python3", "models/torch/layers"])
def test_a_program_in_a_folder_named_like_torch_keeps_its_findings(folder, tmp_path):
    """A user's package may lie in a folder named `torch`: its variables are the program's and can be edited."""
    module, file = load_program(tmp_path / folder, "program_beside_torch")
    with memwatch.profile() as prof:
        module.train()
    assert [finding.kind for finding in prof.findings] == ["drag"]
    assert prof.findings[0].holder.startswith("`kept`")
    assert prof.findings[0].site.startswith(f"{file}:")


def test_an_installed_package_is_no_program_code(tmp_path, monkeypatch):
    """Files in a site-packages folder on the import path belong to an installed package, also through links."""
    packages, elsewhere = tmp_path / "site-packages", tmp_path / "cache" / "site.py"
    elsewhere.parent.mkdir()
    packages.mkdir()
    elsewhere.touch()
    (packages / "linked.py").symlink_to(elsewhere)
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])
    assert code_owner(str(packages / "package" / "module.py")) is CodeOwner.INSTALLED
    assert code_owner(str(packages / "linked.py")) is CodeOwner.INSTALLED
    assert code_owner(str(tmp_path / "my-site-packages-notes" / "module.py")) is CodeOwner.PROGRAM


def test_what_an_installer_put_elsewhere_is_no_program_code(tmp_path, monkeypatch):
    """After `pip install --target`, the folder lists the files of packages. All other files are the program's."""
    folder = tmp_path / "vendor"
    (folder / "library" / "parts").mkdir(parents=True)
    (folder / "library-1.2.dist-info").mkdir()
    (folder / "library-1.2.dist-info" / "RECORD").write_text(
        "library/__init__.py,sha256=x,1\nlibrary/parts/a.py,,\nsingle.py,,\n../bin/tool,,\n"
    )
    before = tmp_path / "vendor" / "library" / "early.py"
    assert code_owner(str(before)) is CodeOwner.PROGRAM  # on no path yet
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    owners = {
        file: code_owner(str(folder / file))
        for file in ("library/parts/a.py", "single.py", "train.py", "models/net.py", "library2/a.py")
    }
    assert owners == {
        "library/parts/a.py": CodeOwner.INSTALLED,
        "single.py": CodeOwner.INSTALLED,
        "train.py": CodeOwner.PROGRAM,
        "models/net.py": CodeOwner.PROGRAM,
        "library2/a.py": CodeOwner.PROGRAM,
    }


INSTALLED = """
    import memwatch
    import torch

    def keep():
        unused = torch.ones(64, 1024)
        return torch.ones(256, 1024).sum()

    def check():
        torch.autograd.gradcheck(torch.sin, torch.randn(64, dtype=torch.double, requires_grad=True))

    for function in (keep, check):
        with memwatch.profile() as prof:
            function()
        print(function.__name__, [finding.holder.split(",")[0] for finding in prof.findings])
"""


def test_where_only_installed_code_runs_its_lines_count_and_torchs_do_not(tmp_path):
    """The tests of an installed package are such code. The rows of `gradcheck` are variables of torch."""
    package = tmp_path / "site-packages" / "installed"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text(textwrap.dedent(INSTALLED))
    path = os.pathsep.join([str(package.parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "installed"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert done.stdout.splitlines() == ["keep ['`unused`']", "check []"], done.stderr


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        (torch.__file__, CodeOwner.TORCH),
        (pytest.__file__, CodeOwner.INSTALLED),
        (json.__file__, CodeOwner.PYTHON),
        ("<frozen importlib._bootstrap>", CodeOwner.PYTHON),
        (memwatch.__file__, CodeOwner.MEMWATCH),
        (pytest_memwatch.__file__, CodeOwner.MEMWATCH),
        (__file__, CodeOwner.PROGRAM),
        ("<stdin>", CodeOwner.PROGRAM),
        (os.path.join(os.path.dirname(torch.__file__) + "_tools", "x.py"), CodeOwner.INSTALLED),
        (os.path.join(SCRIPTS, "memwatch"), CodeOwner.MEMWATCH),
        (os.path.join(SCRIPTS, "torchrun"), CodeOwner.TORCH),
        (os.path.join(SCRIPTS, "pytest"), CodeOwner.INSTALLED),
        (os.path.join(SCRIPTS, "train"), CodeOwner.PROGRAM),  # no installer has it in its list
    ],
)
def test_every_file_has_one_owner(file, owner):
    """The innermost known folder decides. A name that is not a path is code that the program typed or generated."""
    assert code_owner(file) is owner
