"""The overloads that get a kernel on the dispatch key, and the questions to torch that this takes."""

from __future__ import annotations

import pytest
import torch

from memwatch._torch.dispatch import op_names
from memwatch.record import interception


@pytest.fixture
def _user_library():
    library = torch.library.Library("memwatch_test_key", "DEF")
    library.define("look(Tensor(a) x) -> Tensor(a)")
    library.define("make(Tensor x) -> Tensor")
    yield
    library._destroy()


@pytest.mark.usefixtures("_user_library")
def test_the_compiled_kernel_asks_for_the_overloads_alone_that_may_pass_it_by(monkeypatch):
    """A lookup of an overload makes an object in torch. For all overloads this takes longer than a block."""
    asked, overloads = [], interception._overloads
    monkeypatch.setattr(interception, "_overloads", lambda names: asked.extend(names) or overloads(names))
    monkeypatch.setattr(interception, "kernel_library", lambda space, file: Passing(space))
    passing = []

    class Passing:
        def __init__(self, space):
            self.space = space

        def impl(self, name, *_):
            passing.append(f"{self.space}::{name}")

    interception.put_kernels(None)
    few, alone = len(asked), list(passing)
    passing.clear()
    interception.put_kernels(lambda space, overload: None)  # looks up all
    assert alone == passing
    assert {"memwatch_test_key::look", "aten::detach"} <= set(alone)
    assert few < len(op_names()) / 20
