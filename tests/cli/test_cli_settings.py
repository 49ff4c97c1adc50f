"""The table [tool.memwatch] of pyproject.toml: the command line, pytest and profile() use it, and name its mistakes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import memwatch
from memwatch.settings import KEYS, Settings, SettingsError, project_settings

ROOT = Path(__file__).parents[2]
LEAKING = """
import gc, torch
class Owner: pass
def make():
    owner = Owner()
    owner.me, owner.tensor = owner, torch.ones(1000)
gc.disable()
make()
"""
TRAIN = "import torch\nmodel = torch.nn.Linear(8, 8)\nmodel(torch.ones(4, 8)).sum().backward()\n"
TESTS = """
import gc, pytest, torch
class Owner: pass
@pytest.mark.no_tensor_leaks
def test_leaks():
    owner = Owner()
    owner.me, owner.tensor = owner, torch.ones(1000)
def test_peak():
    torch.ones(1000)
"""


@pytest.fixture
def project(tmp_path):
    """Write pyproject.toml, and programs, into the folder of the commands."""

    def write(settings, **programs):
        (tmp_path / "pyproject.toml").write_text(settings)
        for name, text in programs.items():
            (tmp_path / f"{name}.py").write_text(text)
        return tmp_path

    return write


def run_pytest(command, *words):
    own = ("-p", "no:cacheprovider", "-p", "no:anyio", "-p", "no:asyncio")
    return command(sys.executable, "-m", "pytest", *own, *words)


def test_run_takes_its_defaults_from_the_table(project, shell_memwatch):
    """The table's switches, counts and file apply to a run without options."""
    folder = project(
        "[tool.memwatch.run]\noutput = 'a.memwatch'\nstacks = false\nreplay = true\nquiet = true\nhtml = true\n",
        train=TRAIN,
    )
    done = shell_memwatch("run", "train.py", whole_end=True)
    assert (done.returncode, done.stderr) == (0, "")
    reading = memwatch.load(folder / "a.memwatch")
    assert reading.capture.rows("arguments")
    assert set(reading.ops["line"]) == {""}
    assert (folder / "a.html").exists()


def test_the_command_line_comes_before_the_table(project, shell_memwatch):
    """An option that is given wins, and so does its opposite."""
    folder = project(
        "[tool.memwatch.run]\noutput = 'a.memwatch'\nstacks = false\nreplay = true\nhtml = true\n",
        train=TRAIN,
    )
    shell_memwatch("run", "-o", "b.memwatch", "--stacks", "--no-replay", "--no-html", "train.py")
    reading = memwatch.load(folder / "b.memwatch")
    assert not reading.capture.rows("arguments")
    assert any(line.endswith("train.py:3") for line in reading.ops["line"])
    assert not list(folder.glob("*.html"))


def test_the_nearest_file_with_the_table_counts(project, command, tmp_path):
    """A file nearer by that has no such table is passed over, and so is one above the nearest table."""
    project("[tool.memwatch.run]\noutput = 'top.memwatch'\n")
    inner = tmp_path / "inner"
    (inner / "deep").mkdir(parents=True)
    (inner / "pyproject.toml").write_text("[project]\nname = 'x'\ndependencies = ['memwatch']\n")
    (inner / "deep" / "train.py").write_text(TRAIN)
    command(sys.executable, "-m", "memwatch", "run", "train.py", cwd=inner / "deep")
    assert (tmp_path / "top.memwatch").exists()
    (inner / "pyproject.toml").write_text("[tool.memwatch.run]\noutput = 'inner.memwatch'\n")
    command(sys.executable, "-m", "memwatch", "run", "train.py", cwd=inner / "deep")
    assert (inner / "inner.memwatch").exists()


def test_run_stops_the_program_at_the_limit_of_the_table(project, shell_memwatch):
    """limits.live is --limit; the one of another device does not matter."""
    big = "import torch\ntorch.ones(1 << 20)\nprint('after')\n"
    project("[tool.memwatch.limits]\nlive = '1 MiB'\n", big=big)
    assert "MemoryLimitError" in shell_memwatch("run", "big.py", whole_end=True).stderr
    project("[tool.memwatch.limits.live]\n'cuda:0' = '1 MiB'\n", big=big)
    assert shell_memwatch("run", "big.py").stdout == "after\n"


def test_leaks_ignores_the_leaks_of_the_table_and_prints_why(project, shell_memwatch):
    """A rule that matches makes the exit code 0; a rule for something else changes nothing."""
    project("[tool.memwatch.ignore_leaks]\n'attribute .me*' = 'known'\n", leaking=LEAKING)
    done = shell_memwatch("leaks", "leaking.py", whole_end=True)
    assert (done.returncode, done.stdout) == (0, "")
    ignored = "memwatch: ignored 1 leak of 3.91 KiB, as pyproject.toml asks (attribute .me*: known)"
    assert done.stderr.splitlines()[0] == ignored
    project("[tool.memwatch.ignore_leaks]\n'attribute .other' = 'known'\n")
    assert shell_memwatch("leaks", "leaking.py", whole_end=True).returncode == 1


@pytest.mark.parametrize(("least", "code"), [("4 KiB", 0), ("3 KiB", 1)])
def test_smaller_leaks_than_the_limit_do_not_count(project, shell_memwatch, least, code):
    """limits.leak is about the bytes of one leak."""
    project(f"[tool.memwatch.limits]\nleak = '{least}'\n", leaking=LEAKING)
    assert shell_memwatch("leaks", "leaking.py", whole_end=True).returncode == code


HOOKS = """
import torch
net = torch.nn.Linear(4, 4)
def main():
    for _ in range(21):
        handle = net.register_forward_hook(lambda module, args, out: None)
        net(torch.ones(2, 4)).detach(){then}
main()
"""


@pytest.mark.parametrize(("then", "code"), [("", 1), ("; handle.remove()", 0)])
def test_no_limit_is_too_large_for_hooks_to_count(project, shell_memwatch, then, code):
    """Hooks have no bytes."""
    project("[tool.memwatch.limits]\nleak = '1 MiB'\n", hooking=HOOKS.format(then=then))
    assert shell_memwatch("leaks", "hooking.py", whole_end=True).returncode == code


def test_diff_fails_above_the_growth_of_the_table(project, shell_memwatch, narrow, wide):
    """limits.growth is --fail-above, and the option wins."""
    project("[tool.memwatch.limits]\ngrowth = '1%'\n")
    assert shell_memwatch("diff", str(narrow), str(wide), whole_end=True).returncode == 1
    assert (
        shell_memwatch("diff", "--fail-above", "900%", str(narrow), str(wide), whole_end=True).returncode == 0
    )


def test_a_folder_of_own_code_is_the_programs_own(project, command, tmp_path):
    """An installed package is the program's code if the table names its folder, not if it names a folder around all."""
    package = tmp_path / "site-packages" / "layers"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    program = (
        "import sys; sys.path.insert(0, 'site-packages')\nimport layers\n"
        "from memwatch.own_code import code_owner\nprint(code_owner(layers.__file__).name)\n"
    )
    project("[tool.other]\nx = 'memwatch'\n", program=program)
    assert command(sys.executable, "program.py").stdout == "INSTALLED\n"
    project("[tool.memwatch]\nown_code = ['site-packages/lay*']\n")
    assert command(sys.executable, "program.py").stdout == "PROGRAM\n"
    project("[tool.memwatch]\nown_code = ['.']\n")
    assert command(sys.executable, "program.py").stdout == "INSTALLED\n"


def test_findings_are_about_a_package_only_if_it_is_own_code(project, command, tmp_path):
    """A variable that an installed package holds for too long is something to change only for its owner."""
    package = tmp_path / "site-packages" / "layers"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import torch\ndef run():\n    big = torch.ones(1024, 1024)\n    total = big.sum()\n"
        "    return total + torch.ones(2048, 2048).sum()\n"
    )
    program = "import sys; sys.path.insert(0, 'site-packages')\nimport layers\nlayers.run()\n"
    for settings, found in (("", []), ("[tool.memwatch]\nown_code = ['site-packages/layers']\n", ["drag"])):
        project(settings, program=program)
        command(sys.executable, "-m", "memwatch", "run", "-q", "-f", "-o", "a.memwatch", "program.py")
        reading = memwatch.load(tmp_path / "a.memwatch")
        assert [str(each.kind) for each in reading.findings] == found
        assert reading.peak_bytes > 20 << 20


def test_memwatch_in_the_environment_uses_the_table(project, command):
    """MEMWATCH=1 is a run without options; an option in the variable wins."""
    activate = "import memwatch.cli.activation as a; a.activate()\n"
    folder = project(
        "[tool.memwatch.run]\noutput = 'a.memwatch'\nstacks = false\nquiet = true\n", train=activate + TRAIN
    )
    assert command(sys.executable, "train.py", env={"MEMWATCH": "1"}).stderr == ""
    assert set(memwatch.load(folder / "a.memwatch").ops["line"]) == {""}
    command(sys.executable, "train.py", env={"MEMWATCH": "stacks=1,out=b.memwatch"})
    assert set(memwatch.load(folder / "b.memwatch").ops["line"]) != {""}


@pytest.mark.whole
def test_pytest_reads_the_table(project, command):
    """Rules and limits of the table judge the tests; without the table the same tests end otherwise."""
    project("", test_it=TESTS)
    assert run_pytest(command).returncode == 1
    ignored = "[tool.memwatch.ignore_leaks]\n'attribute .me*' = 'known'\n"
    project(ignored)
    done = run_pytest(command)
    assert (done.returncode, "attribute .me*: known" in done.stdout) == (0, True)
    project("[tool.memwatch.limits]\nleak = '1 MiB'\n")
    assert run_pytest(command).returncode == 0
    project(f"{ignored}[tool.memwatch.limits]\ntest_peak = '1 KiB'\n")
    assert "2 failed" in run_pytest(command).stdout
    assert run_pytest(command, "--memwatch-limit-peak=1MiB").returncode == 0


WRONG = {
    "[tool.memwatch]\nown_cod = []\n": "has no key 'own_cod'; the keys are own_code, ignore_leaks, limits.live, ",
    "[tool.memwatch.run]\nevry = 3\n": "has no key 'run.evry'; the keys are run.output, run.stacks, ",
    "[tool.memwatch]\nrun = 3\n": "tool.memwatch.run must be a table, not 3; its keys are run.output, ",
    "[tool]\nmemwatch = 3\n": "[tool.memwatch] must be a table, not 3; its keys are own_code, ",
    "[tool.memwatch]\nown_code = 'src'\n": "own_code must be a list of folders, relative to the file, not 'src'",
    "[tool.memwatch]\nown_code = ['nowhere']\n": "nowhere is not a folder",
    "[tool.memwatch]\nignore_leaks = ['x']\n": "ignore_leaks must be a table of patterns, each with its reason as text",
    "[tool.memwatch.ignore_leaks]\nx = ''\n": "each with its reason as text; 'x' has ''",
    "[tool.memwatch.limits]\nlive = 'much'\n": "limits.live must be a size, such as '8 GiB', or a table of sizes",
    "[tool.memwatch.limits.live]\ncpu = true\n": "limits.live must be a size, such as '8 GiB', or a table of sizes",
    "[tool.memwatch.limits]\ntest_peak = true\n": "limits.test_peak must be a size, such as '8 GiB', not True",
    "[tool.memwatch.limits]\ngrowth = 5\n": "limits.growth must be a share, such as '5%', not 5",
    "[tool.memwatch.run]\nevery = 0\n": "run.every must be a whole number of 1 or more, not 0",
    "[tool.memwatch.run]\nfirst = true\n": "run.first must be a whole number of 1 or more, not True",
    "[tool.memwatch.run]\nhtml = 'yes'\n": "run.html must be true or false, not 'yes'",
    "[tool.memwatch.run]\noutput = 3\n": "run.output must be a file name, relative to the file of the settings, not 3",
    "[tool.memwatch\n": "is not valid TOML: ",
}


@pytest.mark.parametrize("settings", WRONG)
def test_a_wrong_table_is_one_line_with_the_file_and_the_key(project, shell_memwatch, tmp_path, settings):
    """Every verb that runs a program ends with wrong usage and lists the allowed keys."""
    project(settings, train=TRAIN)
    done = shell_memwatch("run", "train.py", whole_end=True)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"memwatch: error: {tmp_path / 'pyproject.toml'}")
    assert WRONG[settings] in line
    assert not list(tmp_path.glob("*.memwatch"))


def test_a_wrong_table_stops_pytest_and_the_other_verbs(project, shell_memwatch, command, narrow):
    """No traceback anywhere, and pytest ends as with any wrong option."""
    project("[tool.memwatch]\nown_cod = []\n", train=TRAIN, test_it=TESTS)
    for words in (["leaks", "train.py"], ["estimate", "train.py"], ["diff", str(narrow), str(narrow)]):
        done = shell_memwatch(*words, whole_end=True)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    done = run_pytest(command)
    assert done.returncode == 4
    assert re.fullmatch(r"ERROR: .*pyproject.toml: \[tool.memwatch\] has no key .*", done.stderr.strip())


def test_a_program_with_a_profile_runs_on_without_a_wrong_table(project, command):
    """profile() in a program says it in one line, once, and records."""
    project(
        "[tool.memwatch]\nown_cod = []\n",
        program="import memwatch, torch\nwith memwatch.profile() as p:\n    torch.ones(9)\nprint(p.peak_bytes)\n",
    )
    done = command(sys.executable, "program.py")
    assert done.stdout == "36\n"
    (line,) = done.stderr.splitlines()
    assert re.fullmatch(
        r"memwatch: .*pyproject.toml: .* has no key 'own_cod'.*; memwatch uses no settings", line
    )


@pytest.fixture
def _no_parser(monkeypatch):
    for parser in ("tomllib", "tomli"):
        monkeypatch.setitem(sys.modules, parser, None)


@pytest.mark.usefixtures("_no_parser")
def test_a_project_without_settings_needs_no_parser(project, monkeypatch):
    """Python 3.10 has none of its own."""
    monkeypatch.chdir(
        project("[project]\nname = 'x'\n[dependency-groups]\ntest = ['memwatch']\n[tool.ruff]\n")
    )
    assert project_settings() == Settings(None, {})


TABLES = {
    "a table": "[tool.memwatch]",
    "a table inside": "[tool.memwatch.limits]",
    "quoted names": "[ 'tool' . \"memwatch\" ]",
    "dotted names": "tool.memwatch.own_code = []",
    "the table of tools": "[tool]\nmemwatch.own_code = []",
    "an inline table": "tool = {memwatch = {own_code = []}}",
}


@pytest.mark.usefixtures("_no_parser")
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_python_without_a_parser_says_what_to_install(project, monkeypatch, table):
    monkeypatch.chdir(project(table + "\n"))
    with pytest.raises(SettingsError, match=r"Python 3\.10 needs tomli for it; pip install tomli"):
        project_settings()


def test_a_program_in_a_deleted_folder_has_no_settings(command):
    """It records as before, and prints nothing."""
    code = (
        "import os, torch, memwatch\nos.mkdir('gone')\nos.chdir('gone')\nos.rmdir('../gone')\n"
        "with memwatch.profile() as p:\n    torch.ones(9)\nprint(p.peak_bytes)\n"
    )
    done = command(sys.executable, "-c", code)
    assert (done.stdout, done.stderr) == ("36\n", "")


def test_the_page_of_the_settings_lists_every_key():
    """The table of the documentation is the table of the code."""
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \| (.+?) \| (.+) \|$", page, re.MULTILINE)
    assert rows == [(key.name, key.kind.value, key.meaning) for key in KEYS]
