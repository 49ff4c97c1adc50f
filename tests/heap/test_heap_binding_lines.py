"""A global variable of a running script is reported with the line that binds it, not with the running line."""

from __future__ import annotations

import os

import pytest

from memwatch.heap.names import binding_line, line_in_source

SCRIPT = """\
import torch
import memwatch

log = []

def act(x):
    log.append(layer(x).exp().sum())

with memwatch.profile() as prof:
    layer = torch.nn.Linear(64, 64)
    for _ in range(3):
        for _ in range(4):
            act(torch.ones(256, 64))
        layer(torch.ones(16, 64)).exp().sum().backward()
"""


@pytest.mark.parametrize(
    ("name", "at", "line"),
    [
        ("a", 3, 1),  # bound before
        ("a", 6, 5),  # bound anew since
        ("b", 3, 4),  # a loop's second pass: it is bound by a line that comes later
        ("elsewhere", 3, 3),  # bound by no line of the text
        ("f", 6, 7),
    ],
)
def test_the_last_line_that_bound_a_name_is_told(name, at, line):
    """If several lines bind a name, it is the last one before the running line of the module."""
    text = "a = 1\nwhile a:\n    print(b)\n    b = a\n    a = 0\nprint(elsewhere)\ndef f(): ...\n"
    assert binding_line(compile(text, "script.py", "exec"), name, at) == line


SETTERS = """\
losses = []; feats = []
used = feats and cache

def start():
    global cache
    used = 0
    cache = []

class Store:
    def first(self):
        global several
        several = {}

    def second(self):
        global several
        several = None
"""


@pytest.mark.parametrize(
    ("name", "line"),
    [("losses", 1), ("feats", 1), ("used", 2), ("cache", 7), ("several", None), ("other", 99)],
)
def test_a_name_that_only_a_function_binds_has_the_line_of_the_function(name, line, tmp_path):
    """For a running script, and for an imported module, of which only the text is left."""
    assert binding_line(compile(SETTERS, "script.py", "exec"), name, 99) == line
    (file := tmp_path / "module.py").write_text(SETTERS)
    assert line_in_source(str(file), name, 99) == line


def test_a_text_that_is_no_python_has_no_further_lines(tmp_path, recwarn):
    """And one that the compiler warns of warns nobody again."""
    (file := tmp_path / "module.py").write_text("a = 1\nb = = 2; c = 3\n")
    assert [line_in_source(str(file), name, 99) for name in "abc"] == [1, 2, 99]
    (file := tmp_path / "warned.py").write_text("a = 1 is 1; b = 2\n")
    assert line_in_source(str(file), "b", 99) == 1
    assert not recwarn.list


def test_names_beyond_the_first_256_are_found():
    """Their number takes more than one byte of the module's code."""
    text = "".join(f"name_{number} = {number}\n" for number in range(600))
    code = compile(text, "script.py", "exec")
    assert [binding_line(code, f"name_{number}", 600) for number in range(600)] == [*range(1, 601)]


def test_a_finding_on_a_global_list_is_at_the_line_of_the_list(tmp_path):
    """At the peak the script runs another line, which is not the line to edit."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    variables = {"__name__": "script_of_a_test", "__file__": str(script)}
    exec(compile(SCRIPT, str(script), "exec"), variables)
    (finding,) = variables["prof"].findings
    assert (finding.kind, finding.site) == ("graph", f"{script}:4")
    assert "`log`" in finding.holder


def test_a_script_from_a_pipe_is_not_read_again():
    """`python <(...)` has a pipe as its file. Text that waits in the pipe belongs to the program."""
    reading, writing = os.pipe()
    os.write(writing, b"x = 1\n")
    os.close(writing)
    try:
        assert line_in_source(f"/dev/fd/{reading}", "x", 7) == 7
        assert os.read(reading, 64) == b"x = 1\n"
    finally:
        os.close(reading)
