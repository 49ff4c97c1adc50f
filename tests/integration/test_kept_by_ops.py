"""Memory that an op allocates below all others and keeps after it, as a collective does until its work is done."""

from __future__ import annotations

import time

import pytest
import torch

import memwatch

NBYTES = 1_234_567
kept = []


@pytest.fixture
def _ops():
    """Two ops: one keeps memory without a tensor, the other drops it."""
    library = torch.library.Library("keeps", "DEF")
    library.define("some(Tensor x) -> Tensor")
    library.define("none(Tensor x) -> Tensor")

    def some(x):
        kept.append(torch.UntypedStorage(NBYTES))
        time.sleep(0.001)  # it is not made just before the next op
        return x.clone()

    def none(x):
        result = x.clone()
        kept.clear()
        return result

    library.impl("some", some, "CPU")
    library.impl("none", none, "CPU")
    yield
    library._destroy()


@pytest.mark.usefixtures("_ops")
@pytest.mark.parametrize("recorder", ["native", "python"])
def test_what_an_op_keeps_is_no_workspace_of_the_next(recorder, monkeypatch):
    """It was made in the one op and is gone in the other: the kernel of neither needs it while it runs."""
    if recorder == "python":
        monkeypatch.setenv("MEMWATCH_NATIVE", "0")
    x = torch.ones(7)
    torch.ops.keeps.none(torch.ops.keeps.some(x))
    with memwatch.profile() as prof:
        torch.ops.keeps.none(torch.ops.keeps.some(x))
    (row,) = [row for row in prof.storages.itertuples() if row.nbytes == NBYTES]
    assert (row.category, row.op_name) == ("unknown", "keeps.some.default")


@pytest.mark.parametrize("recorder", ["native", "python"])
def test_what_is_made_between_ops_is_no_workspace_of_the_next(recorder, monkeypatch):
    """A storage that C++ makes and a variable holds while one op runs: no kernel requested it."""
    if recorder == "python":
        monkeypatch.setenv("MEMWATCH_NATIVE", "0")
    with memwatch.profile() as prof:
        held = torch.UntypedStorage(NBYTES)
        time.sleep(0.001)
        torch.ones(7)
        del held
        torch.ones(7)
    (row,) = [row for row in prof.storages.itertuples() if row.nbytes == NBYTES]
    assert (row.category, row.op_name) == ("unknown", "")
