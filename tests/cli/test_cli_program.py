"""A program sees the same world as under `python`."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest
import torch

import memwatch
from memwatch.cli.main import main

VIEW = """
import json, os, sys
main = sys.modules["__main__"]
names = {name: type(value).__name__ if name in ("__builtins__", "__loader__") else str(value)
         for name, value in globals().items() if name.startswith("__")}
names["__spec__"] = __spec__ and (__spec__.name, __spec__.origin, __spec__.parent, __spec__.cached)
names.pop("__conditional_annotations__", None)
print(json.dumps({"names": names, "argv": sys.argv, "first": sys.path[0], "same": main.__dict__ is globals(),
                  "pickle": main.names is names}, sort_keys=True))
"""
RUN = """
import sys
from memwatch.cli.program import Program
Program(sys.argv[1], sys.argv[2], tuple(sys.argv[3:])).load()()
"""


@pytest.fixture
def programs(tmp_path):
    """One program in every form that `python` runs."""
    (tmp_path / "view.py").write_text(VIEW)
    for folder in ("package", "folder"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__main__.py").write_text(VIEW)
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "part.py").write_text(VIEW)
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", VIEW)
    (tmp_path / "link.py").symlink_to(tmp_path / "folder" / "__main__.py")
    return tmp_path


@pytest.mark.parametrize(
    ("form", "target"),
    [
        ("script", "view.py"),
        ("script", "./folder/../view.py"),
        ("script", "link.py"),
        ("script", "folder"),
        ("script", "app.pyz"),
        ("module", "view"),
        ("module", "package"),
        ("module", "package.part"),
        ("command", VIEW),
    ],
)
def test_a_program_sees_the_names_arguments_and_path_of_python(form, target, programs, command):
    """`__main__`, `sys.argv` and `sys.path[0]` are the same as under `python`."""
    options = {"script": [], "module": ["-m"], "command": ["-c"]}[form]
    arguments = ["-x", "--html", "two words", "--", ""]
    plain = command(sys.executable, "-B", *options, target, *arguments)
    ours = command(sys.executable, "-B", "-c", RUN, form, target, *arguments)
    assert plain.returncode == 0, plain.stderr
    assert (ours.stdout, ours.stderr) == (plain.stdout, plain.stderr)


@pytest.mark.parametrize(
    ("form", "target"),
    [
        ("script", "nowhere.py"),
        ("script", "empty"),
        ("module", "nowhere"),
        ("module", "nowhere.part"),
        ("module", "plain.part"),
        ("module", "empty"),
    ],
)
def test_a_program_that_is_not_there_is_named(form, target, programs, command):
    """One clear error comes from memwatch, not from the program."""
    (programs / "empty").mkdir()
    (programs / "plain.py").write_text("")
    done = command(sys.executable, "-c", RUN, form, target)
    assert done.stderr.splitlines()[-1].startswith("memwatch.cli.program.ProgramError")
    assert repr(target) in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("verb", ["run", "leaks"])
def test_a_capture_in_place_of_a_program_is_refused_in_a_sentence(verb, tmp_path, capsys):
    """The error names the verbs that read captures."""
    capture = tmp_path / "run.memwatch"
    with memwatch.profile(capture):
        torch.ones(8)
    assert main([verb, str(capture)]) == 1
    printed = capsys.readouterr().err
    assert "has the name of a capture" in printed
    assert "memwatch summary" in printed


def test_a_module_that_a_package_lacks_is_the_programs_own_error(programs, command):
    """An import that fails inside the program does not look like a missing program."""
    Path(programs, "package", "__init__.py").write_text("import something_else")
    done = command(sys.executable, "-c", RUN, "module", "package.part")
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'something_else'"
