"""`memwatch.estimate(step)`, cards by name, and the search for the largest batch size."""

from __future__ import annotations

import json
import textwrap

import pytest
import torch
from torch import nn

import memwatch
from memwatch.cards import CARDS, Room
from memwatch.cli.main import main
from memwatch.errors import MemwatchError
from memwatch.estimate.api import find_largest
from memwatch.report.records.schema import EstimateRecord
from memwatch.sizes import SizeError

MIB = 1 << 20
SCRIPT = """
    import sys, torch
    kept = torch.ones(int(sys.argv[1].partition("=")[2]), 1 << 20, device="cuda")
"""


@pytest.fixture(autouse=True)
def _model_of_the_allocator(monkeypatch):
    """Have memwatch's model answer, by default settings, whatever torch is installed."""
    monkeypatch.setenv("MEMWATCH_C10_CUDA", "/nowhere/libc10_cuda.so")
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)


def train(batch_size, device="cuda"):
    """Make a tensor of 4 MiB for each sample."""
    kept = torch.ones(batch_size, 1 << 20, device=device)
    kept *= 2


def test_a_function_is_estimated():
    """It runs once with its arguments, on fake tensors: 4 TiB here."""
    calls = []

    def step(width, *, scale):
        calls.append((width, scale))
        model = nn.Linear(width, width, bias=False)
        model.weight.data.mul_(scale)

    found = memwatch.estimate(step, 1 << 20, scale=2.0)
    assert calls == [(1 << 20, 2.0)]
    assert found.tensor_bytes == 4 << 40


def test_an_estimate_leaves_the_random_state_as_it_was():
    before = torch.random.get_rng_state()
    memwatch.estimate(lambda: torch.randperm(10))
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam])
def test_a_program_with_sparse_tensors_is_estimated(optimizer):
    """They have no storage whose address tells one from another, and those in rows have no strides."""

    def step():
        table = nn.Embedding(1 << 20, 64, sparse=True)
        update = optimizer(table.parameters(), lr=0.1)
        for rows in (torch.tensor([0, 1]), torch.randint(0, 8, (4,))):
            update.zero_grad()
            table(rows).sum().backward()
            update.step()
        return torch.eye(4).to_sparse_csr() @ torch.ones(4, 2)

    assert memwatch.estimate(step).tensor_bytes >= 256 << 20


def test_a_model_that_exists_already_is_refused_and_gets_no_gradient():
    model = nn.Linear(3, 4)
    with pytest.raises(
        MemwatchError, match=r"parameter of size \(4, 3\) that existed before; build the model"
    ):
        memwatch.estimate(lambda: model(torch.ones(2, 3)).sum().backward())
    assert model.weight.grad is None


def test_a_card_is_a_device_and_a_size():
    found = memwatch.estimate(train, 1000, device="T4")
    assert found.reading.device == "cuda:0"
    assert (found.fits("T4"), found.fits("h100"), found.fits("3 GiB")) == (True, True, False)


def test_the_memory_of_a_card_is_that_without_its_context_and_libraries():
    room = Room.of("rtx 4090")
    assert room.name == "RTX-4090"
    assert (
        room.tensor_bytes == room.total_bytes - sum(each.nbytes for each in room.assumed) < room.total_bytes
    )
    assert Room.of("24 GiB").tensor_bytes == 24 << 30


def test_every_card_has_a_source_and_a_name_of_its_own():
    assert len({card.name.lower() for card in CARDS}) == len(CARDS)
    assert all(card.source.startswith("https://") and card.total_bytes > 1 << 30 for card in CARDS)


def test_an_unknown_card_is_refused_with_the_known_ones():
    with pytest.raises(
        SizeError, match=r"'B9000' is neither a size such as 80GiB nor one of the cards H100, "
    ):
        Room.of("B9000")
    with pytest.raises(
        MemwatchError, match=r"--device B9000 is no device that memwatch knows; give cpu, cuda, or .* H100"
    ):
        memwatch.estimate(train, 1, device="B9000")


@pytest.mark.parametrize(("memory", "largest"), [("400 MiB", 100), ("39 MiB", 9), ("20 MiB", 5)])
def test_the_largest_batch_fits_and_the_next_does_not(memory, largest):
    found = memwatch.largest_batch_size(train, memory)
    assert found.batch_size == largest
    assert (found.tried[largest], found.tried[largest + 1]) == (True, False)
    assert len(found.tried) <= 8
    assert found.estimate.tensor_bytes == largest * 4 * MIB


def test_a_batch_of_one_that_does_not_fit_is_no_batch():
    found = memwatch.largest_batch_size(train, "1 MiB")
    assert (found.batch_size, found.tried) == (0, {1: False})
    assert str(found) == "a batch of 1 does not fit 1.00 MiB"


def test_a_search_stops_at_the_largest_size_of_interest():
    found = memwatch.largest_batch_size(train, "400 MiB", at_most=7)
    assert found.batch_size == 7
    assert 8 not in found.tried


def test_memory_that_does_not_depend_on_the_batch_size_is_reported():
    with pytest.raises(MemwatchError, match="does not depend on the batch size"):
        memwatch.largest_batch_size(lambda batch_size: train(1), "400 MiB")


def test_tensors_on_the_host_have_no_largest_batch_on_a_device():
    with pytest.raises(MemwatchError, match="its tensors on the CPU"):
        memwatch.largest_batch_size(lambda batch_size: train(batch_size, "cpu"), "400 MiB")


@pytest.mark.parametrize("shape", ["line", "square", "steps", "logarithm"])
@pytest.mark.parametrize("limit", [1, 2, 17, 1000, 77_777])
def test_the_search_is_exact_and_short_for_memory_that_is_no_line(shape, limit):
    """The program is replaced by a formula. The limit is the largest batch size that fits."""

    class Found:
        def __init__(self, batch_size):
            memory = {
                "line": 5 * batch_size + 3, "square": batch_size**2, "steps": batch_size // 20 * 20,
                "logarithm": batch_size.bit_length(),
            }  # fmt: skip
            self.reserved_bytes = memory[shape]
            self.reading = type("Reading", (), {"device": "cuda:0"})
            self.fits = batch_size <= limit
            self.most_reserved_bytes = self.reserved_bytes

        def on_device(self, device):
            return self

    limit_bytes = Found(limit).reserved_bytes
    found = find_largest(Found, limit_bytes)
    assert found.batch_size == limit
    assert len(found.tried) <= 45


def test_the_command_finds_the_largest_batch_of_a_script(tmp_path, capsys):
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    words = ["estimate", "--in-place", "--device-memory", "41MiB", "--largest-batch"]
    assert main([*words, str(tmp_path / "train.py"), "--batch={batch}"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith(
        "The largest batch size whose tensors fit 41.00 MiB is 10: it reserves 40.00 MiB, and 11 does not fit. "
        "Choose a smaller batch size, because the workspace of kernels is not counted. Estimated peak"
    )
    assert main([*words, "--json", str(tmp_path / "train.py"), "--batch={batch}"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record.keys() == EstimateRecord.__annotations__.keys()
    assert (record["largest_batch_size"], record["fits"], record["assumed_bytes"]) == (10, True, 0)


def test_the_command_names_what_it_assumes_of_a_card(tmp_path, capsys):
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    assert main(["estimate", "--in-place", "--device", "T4", str(tmp_path / "train.py"), "batch=2"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "614.00 MiB assumed the CUDA context" in out
    assert "fits T4 (14.56 GiB): 13.88 GiB are left for what is not counted" in out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ["--device", "T4", "--largest-batch", "x.py", "8"],
            r"write {batch} where the program gets its batch size",
        ),
        (["--largest-batch", "x.py", "{batch}"], "name a card with --device, or give --device-memory"),
        (
            ["--device", "T4", "--largest-batch", "-o", "a", "x.py", "{batch}"],
            "--largest-batch writes no file",
        ),
    ],
)
def test_a_search_that_lacks_something_is_wrong_usage(words, error, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["estimate", *words])
    assert stopped.value.code == 2
    assert error in " ".join(capsys.readouterr().err.split())
