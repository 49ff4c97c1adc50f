"""Places as people say them: short, and the whole path in the capture."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from memwatch.words.places import own_place_in_file, short_own_place, short_place

TRAINER = "/usr/lib/python3/site-packages/transformers/models/gpt2.py:300"


@pytest.mark.parametrize(
    ("site", "told"),
    [
        ("{cwd}/models/train.py:12", "models/train.py:12"),
        ("/somewhere/else/train.py:12", "train.py:12"),
        (TRAINER, "transformers/models/gpt2.py:300"),
        ("train.py:12", "train.py:12"),
        ("<stdin>:3", "<stdin>:3"),
        ("(no line)", "(no line)"),
        ("", ""),
    ],
)
def test_a_place_is_as_short_as_a_person_says_it(site, told, tmp_path, monkeypatch):
    """It is relative to the current folder, or begins with the package, or is the file alone. Other texts stay."""
    monkeypatch.chdir(tmp_path)
    assert short_place(site.format(cwd=tmp_path)) == told


def test_the_own_line_of_a_library_is_short_too():
    """The program's line comes first, the library's file behind it."""
    told = short_own_place(TRAINER, "/somewhere/else/train.py:12")
    assert told == "train.py:12, in transformers (gpt2.py:300)"
    assert own_place_in_file(TRAINER, "/somewhere/else/train.py:12") == told


def test_a_cell_of_a_notebook_is_called_as_ipython_calls_it(monkeypatch):
    """The file that IPython compiled a cell by says nothing to a person; the number of the cell does."""
    ipython = pytest.importorskip("IPython.core.compilerop")
    compiler = ipython.CachingCompiler()
    file = compiler.cache("x = 1\n\ny = 2", number=3)
    shell = SimpleNamespace(compile=compiler)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert short_place(f"{file}:3") == "Cell In[3], line 3"
    assert short_place("/tmp/ipykernel_7/123.py:3") == "123.py:3"
