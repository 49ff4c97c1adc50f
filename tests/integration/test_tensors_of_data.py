"""Memory that torch makes of Python's data or of a file, below every op: its line, its category and its holder."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest
import torch
from torch import nn

import memwatch

COUNT = 1009
DATA = [0.5] * COUNT
MAKERS = {
    "tensor": lambda: torch.tensor(DATA),
    "tensor_with_gradient": lambda: torch.tensor(DATA, requires_grad=True).detach(),
    "as_tensor": lambda: torch.as_tensor(DATA),
    "asarray": lambda: torch.asarray(DATA),
    "legacy_tensor": lambda: torch.Tensor(DATA),
    "legacy_float": lambda: torch.FloatTensor(DATA),
    "new_tensor": lambda: torch.empty(0).new_tensor(DATA),
    "legacy_new": lambda: torch.empty(0).new(DATA),
    "list_of_tensors": lambda: torch.tensor([torch.tensor(0.5)] * COUNT),
    "subclass": lambda: torch.tensor(DATA).as_subclass(type("Named", (torch.Tensor,), {})),
}


@pytest.fixture(params=["native", "python"])
def _recorder(request, monkeypatch):
    if request.param == "python":
        monkeypatch.setenv("MEMWATCH_NATIVE", "0")


def row_of(prof, nbytes=4 * COUNT):
    """Return the row of a storage that was made of data, by its size."""
    table = prof.at_peak if (prof.at_peak["op_name"] == "data").any() else prof.storages
    (row,) = [row for row in table.itertuples() if row.nbytes == nbytes and row.op_name == "data"]
    return row


@pytest.mark.usefixtures("_recorder")
@pytest.mark.parametrize("intercept", ["key", "mode"])
@pytest.mark.parametrize("maker", MAKERS)
def test_what_is_made_of_a_list_has_its_line_and_its_variable(maker, intercept):
    """Whichever function makes it, and whichever recorder and interceptor see it; no op is counted for it."""
    make = MAKERS[maker]
    with memwatch.profile(intercept=intercept) as prof:
        kept = make()
        made = kept + 1  # the peak
        del made
    row = row_of(prof)
    assert row.line == f"{__file__}:{make.__code__.co_firstlineno}"
    assert (row.category, row.op_name, row.origin) == ("temporary", "data", "unobserved")
    assert "lift_fresh" not in " ".join(prof.ops["name"])
    assert "made outside every recorded op" not in prof.summary()
    assert prof.peak_increase_bytes >= 8 * COUNT


@pytest.mark.usefixtures("_recorder")
@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_it_has_a_holder_that_was_seen(intercept):
    """A data set that is built of lists and kept in a variable is held by that variable."""
    with memwatch.profile(intercept=intercept) as prof:
        table = torch.tensor([[0.5] * 101] * 211)
        for _ in range(3):
            (table[:97] * 2).sum()
            prof.step()
    row = row_of(prof, 4 * 101 * 211)
    assert row.category == "held"
    assert row.holder.startswith("`table`, local variable of")
    assert row.holder_evidence == "seen"


class Positions(nn.Module):
    def forward(self, x):
        return x + torch.tensor(DATA)


@pytest.mark.usefixtures("_recorder")
@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_it_has_the_module_that_made_it(intercept):
    """A constant that a forward makes anew belongs to that module, though no op of the module made it."""
    net = nn.Sequential(nn.Linear(7, COUNT), Positions())
    with memwatch.profile(intercept=intercept) as prof:
        net(torch.ones(1, 7))
    assert row_of(prof).module == "1"


class TimesTwo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return torch.tensor([2.0] * COUNT)  # the line of the tensor that backward returns


@pytest.mark.usefixtures("_recorder")
@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_a_gradient_made_of_data_is_accumulated_as_without(intercept):
    """A tensor that a backward makes from data before its first op becomes the gradient without a copy."""
    x = torch.zeros(COUNT, requires_grad=True)
    y = TimesTwo.apply(x)
    seed = torch.ones(COUNT)
    with memwatch.profile(intercept=intercept) as prof:
        torch.autograd.backward([y], [seed])
    assert x.grad.tolist() == [2.0] * COUNT
    assert prof.peak_increase_bytes == 4 * COUNT
    assert row_of(prof).line == f"{__file__}:{TimesTwo.backward.__code__.co_firstlineno + 2}"


@pytest.mark.usefixtures("_recorder")
@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_memory_of_another_library_is_not_torchs(intercept):
    """An array that torch wraps was allocated by numpy: it counts for nothing, and a copy of it counts once."""
    array = np.ones(COUNT, dtype=np.float32)
    with memwatch.profile(intercept=intercept) as prof:
        wrapped = torch.from_numpy(array)
        copied = torch.tensor(array)
        (wrapped * copied).sum()
    assert prof.peak_increase_bytes == 8 * COUNT + 4
    assert (prof.storages[prof.storages.counted].op_name == "data").sum() == 0


@pytest.mark.usefixtures("_recorder")
def test_what_a_step_that_is_left_out_made_of_data_keeps_its_line():
    """A list becomes a tensor in a step that is not recorded, and a recorded step uses it."""
    with memwatch.profile(schedule=memwatch.schedule(wait=1, active=1)) as prof:
        for _ in range(3):
            table = torch.tensor(DATA)
            (table * 2).sum()
            prof.step()
    assert prof.storages["line"].str.startswith(__file__).any()


def test_no_capture_of_before_is_refused(tmp_path):
    """The lines are in the file; a file without them is read as before."""
    path = tmp_path / "data.memwatch"
    with memwatch.profile(path=path) as prof:
        kept = torch.tensor(DATA)
        (kept * 2).sum()
    again = memwatch.load(path)
    assert row_of(again).line == row_of(prof).line
    assert "data at" in row_of(again).name


@pytest.mark.usefixtures("_recorder")
@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_what_is_loaded_or_copied_deeply_has_its_line(intercept):
    """`torch.load` and `copy.deepcopy` fill a storage below every op, and give it to an empty tensor then."""
    file = io.BytesIO()
    torch.save(torch.ones(101, 103), file)
    file.seek(0)
    with memwatch.profile(intercept=intercept) as prof:
        loaded = torch.load(file)  # marked: loaded
        copied = copy.deepcopy(torch.ones(211, 103))  # marked: copied
        (loaded * 2).sum(), (copied * 2).sum()
    for nbytes, mark in ((4 * 101 * 103, "loaded"), (4 * 211 * 103, "copied")):
        row = row_of(prof, nbytes)
        assert row.line == f"{__file__}:{line_marked(mark)}"
        assert row.category == "temporary"


def line_marked(mark):
    with open(__file__) as lines:
        return next(number for number, line in enumerate(lines, 1) if f"# marked: {mark}" in line)


@pytest.mark.usefixtures("_recorder")
def test_a_batch_that_waits_for_the_next_step_is_an_input():
    """A tensor that gets another storage is not written, so a batch that came early is not state of the program."""
    net = nn.Linear(101, 7)
    with memwatch.profile() as prof:
        waiting = []
        for step in range(4):
            while len(waiting) < 2 and step < 3:
                waiting.append(torch.empty(0).set_(torch.UntypedStorage(4 * 97 * 101), 0, (97, 101)))
            net(waiting.pop(0)).sum().backward()
            prof.step()
    batches = prof.storages[prof.storages["nbytes"] == 4 * 97 * 101]
    assert batches["category"].tolist() == ["input"] * 4
