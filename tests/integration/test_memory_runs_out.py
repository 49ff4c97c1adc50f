"""When memory runs out, the program's own error goes on unchanged and gets a note about the live memory."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing

import pytest
import torch
from torch import nn

import memwatch
from memwatch.devices import asked_bytes
from memwatch.sizes import format_bytes

WAYS = pytest.mark.parametrize("intercept", ["key-native", "mode-native", "key-python"], indirect=True)
TOO_MUCH = 1 << 60
FEWEST_BYTES = 1 << 12


def step(model, data):
    """Return the loss of a forward and a backward."""
    loss = model(data).square().sum()
    loss.backward()
    return loss


def model_and_data():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), torch.ones(32, 64)


@pytest.fixture
def no_garbage():
    """Drop the objects that errors of earlier tests keep, so that every block begins with the same bytes."""
    gc.collect()


def note_of(error):
    """Return the text that memwatch adds to an error."""
    (note,) = error.__notes__
    return note


@WAYS
def test_the_error_of_the_allocator_goes_on_with_a_note(intercept, tmp_path):
    """Type and words are torch's; capture and page are there; the note has bytes, categories, holders and lines."""
    with pytest.raises(RuntimeError) as plain:
        torch.empty(TOO_MUCH)
    path, kept = tmp_path / "run.memwatch", None
    prof = memwatch.profile(path, intercept=intercept)

    @prof
    def runs_out():
        nonlocal kept
        kept = torch.ones(1 << 18)
        torch.empty(TOO_MUCH)

    with pytest.raises(RuntimeError) as raised:
        runs_out()
    assert type(raised.value) is type(plain.value)
    assert str(raised.value) == str(plain.value)
    note = note_of(raised.value)
    assert "were live on cpu when memory ran out, and the program requested 4194304.00 TiB more" in note
    assert "in empty at " in note
    assert "test_memory_runs_out.py" in note
    assert "1.00 MiB" in note
    assert memwatch.load(path).peak_bytes == prof.peak_bytes
    assert str(path) in note
    assert prof.page == path.with_suffix(".html")
    assert "runs_out" in prof.page.read_text()
    assert kept.numel() == 1 << 18


def test_memory_error_of_python_has_the_note(no_garbage):
    """Any code may raise it."""
    prof = memwatch.profile()

    @prof
    def runs_out():
        kept = torch.ones(1000)
        raise MemoryError("too much" * len(kept.shape))

    with pytest.raises(MemoryError, match="too much") as raised:
        runs_out()
    live = format_bytes(prof.baseline_bytes + 4000)
    assert f"{live} were live on cpu when this error left the block" in note_of(raised.value)


def test_what_is_told_is_of_the_moment_of_this_error():
    """A peak that is long gone, and an op whose error the program caught, are not where memory ran out now."""
    prof = memwatch.profile()

    @prof
    def runs_out():
        torch.ones(100_000)
        with contextlib.suppress(RuntimeError):
            torch.empty(TOO_MUCH)
        kept = torch.ones(1000)
        torch.ones(500)
        raise MemoryError(kept.shape)

    with pytest.raises(MemoryError) as raised:
        runs_out()
    note = note_of(raised.value)
    live = format_bytes(prof.baseline_bytes + 4000)
    assert f"{live} were live on cpu when this error left the block\n" in note
    assert "in empty" not in note


def fails_on(index):
    if index == 1:
        torch.empty(TOO_MUCH)
    return torch.ones(4)


class Failing(torch.utils.data.Dataset):
    """Runs out of memory where it is read."""

    def __len__(self):
        """Return how many items there are."""
        return 2

    def __getitem__(self, index):
        """Return an item."""
        return fails_on(index)


def load():
    for _ in torch.utils.data.DataLoader(Failing(), num_workers=1):
        pass


def work_in_pool():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.map(fails_on, range(2))


@pytest.mark.parametrize("work", [load, work_in_pool])
def test_memory_that_ran_out_in_another_process_is_told_so(work):
    """An error that is raised here again reports the request of the worker, not of this process."""
    with pytest.raises(RuntimeError) as raised, memwatch.profile(holders=False):
        work()
    note = note_of(raised.value)
    assert "memory ran out in a worker, another process or thread, which asked for 4194304.00 TiB" in note


def test_other_errors_have_no_note(tmp_path):
    """Only memory is memwatch's subject; no page is written."""
    prof = memwatch.profile(tmp_path / "run.memwatch")
    with pytest.raises(ValueError, match="other") as raised, prof:
        raise ValueError("other")
    assert not getattr(raised.value, "__notes__", [])
    assert prof.page is None


def test_a_page_that_is_there_stays(tmp_path):
    """Only `force` replaces files of others."""
    page = tmp_path / "run.html"
    page.write_text("mine")
    prof = memwatch.profile(tmp_path / "run.memwatch", limit_bytes=FEWEST_BYTES)
    with pytest.raises(memwatch.MemoryLimitError), prof:
        torch.ones(FEWEST_BYTES)
    assert page.read_text() == "mine"


def test_an_error_at_every_allocation_of_a_step_leaves_the_program_as_it_was(no_garbage):
    """A limit at each height of the live curve: the same type, a note, the same parameters, and the next step runs."""
    torch.manual_seed(0)
    model, data = model_and_data()
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    with memwatch.profile() as prof:
        step(model, data)
    model.zero_grad()
    highs = sorted(set(prof.timeline["live_bytes"].cummax()))
    for high_bytes in highs[:-1]:
        with pytest.raises(memwatch.MemoryLimitError) as raised, memwatch.profile(limit_bytes=high_bytes):
            step(model, data)
        assert "when they passed the limit" in note_of(raised.value)
        assert all(torch.equal(before, now) for before, now in zip(weights, model.parameters()))
        model.zero_grad()
    assert len(highs) > 5
    step(model, data)
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("holders", [True, False])
def test_gradients_count_for_a_limit_amid_their_backward(no_garbage, holders):
    """A gradient's first tensor is gone once it is a parameter's: its bytes count all the same, searched for or not."""
    model, data = nn.Sequential(*[nn.Linear(128, 128) for _ in range(4)]), torch.ones(2, 128)
    with memwatch.profile() as prof:
        step(model, data)
    model.zero_grad()
    largest = model[0].weight.nbytes
    with memwatch.profile(limit_bytes=prof.peak_bytes, holders=holders):
        step(model, data)
    model.zero_grad()
    for high_bytes in range(prof.peak_bytes - 3 * largest, prof.peak_bytes, largest):
        with (
            pytest.raises(memwatch.MemoryLimitError),
            memwatch.profile(limit_bytes=high_bytes, holders=holders),
        ):
            step(model, data)
        model.zero_grad()


@pytest.mark.parametrize(
    ("words", "nbytes"),
    [
        ("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 8 GiB", 5 << 29),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 400 bytes. Error code 12", 400),
        ("something else", None),
    ],
)
def test_what_was_asked_for_is_what_the_allocator_says(words, nbytes):
    """Without a figure from the allocator, the result is None."""
    assert asked_bytes(RuntimeError(words)) == nbytes
