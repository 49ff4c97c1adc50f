"""The expressions of a capture stand in code that a user pastes, so they may only name a variable or a part of it."""

from __future__ import annotations

import pytest

from memwatch.capture.check import split_by_validity


def _meta(optimizer, function="main"):
    names = {"function": function, "optimizers": [optimizer], "models": {"0": "net"}}
    return {"expressions": names}


@pytest.mark.parametrize("name", ["opt", "self.opt", "trainer.opts['g'].inner", "opts[0]", ""])
def test_names_of_variables_and_their_parts_are_kept(name):
    assert split_by_validity(_meta(name)) == (_meta(name), {})


@pytest.mark.parametrize("name", ["f()", "a; b", "a\nb", "opts['']'x", "a = b", "[0]", "a" * 201, 1])
def test_anything_else_is_left_out(name):
    assert split_by_validity(_meta(name)) == ({}, _meta(name))
    assert split_by_validity(_meta("opt", "main\nimport os"))[0] == {}
