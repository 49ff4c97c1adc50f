"""An estimate runs the beginning of a program on fake tensors: what it counts, answers, leaves out and puts back."""

from __future__ import annotations

import gc
import json
import os
import sys
import textwrap
from typing import get_type_hints

import pytest
import torch
from torch.utils.data import DataLoader

import memwatch
from memwatch.errors import MemwatchError
from memwatch.estimate.job import Job, Shards
from memwatch.estimate.program import estimate_program
from memwatch.estimate.words import estimate_record, text_of
from memwatch.report.records.schema import EstimateRecord

TRAINING = """
    import torch
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    for _ in range(1000):
        loss = model(torch.ones(2, 8)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
READS = """
        if torch.isnan(loss) or loss.item() != 0:
            raise ValueError(loss)
        assert loss.tolist() == 0.0
"""


def estimate(source, **options):
    """Return the estimate of a program."""
    gc.collect()  # fake tensors of an earlier program would be there at entry
    code = compile(textwrap.dedent(source), "train.py", "exec")
    return estimate_program(lambda: lambda: exec(code, {"__name__": "__main__"}), **options)


def test_the_peak_is_what_the_tensors_would_take():
    """More than this machine has: two tensors of 4 TiB and half of another."""
    found = estimate("import torch; a = torch.ones(1 << 40); b = a + 1; del a; c = b[: 1 << 39] * 2")
    assert found.tensor_bytes == 8 << 40
    assert found.rounding_bytes == 0


def test_what_the_allocator_rounds_up_is_modelled_apart():
    """Three tensors of 4 bytes take three blocks of 64."""
    found = estimate("import torch; kept = [torch.ones(1) for _ in range(3)]")
    assert (found.tensor_bytes, found.rounding_bytes, found.block_bytes) == (12, 3 * 60, 64)


def test_a_resize_frees_and_makes_memory_of_fake_tensors():
    """As FSDP2 frees and gathers its whole parameters: one of the two is there at any time."""
    program = """
        import torch
        a, b = torch.ones(1000), torch.ones(10)
        a.untyped_storage().resize_(0)
        c = torch.ones(1000)
        {last}
    """
    assert estimate(program.format(last="")).tensor_bytes == 4040
    assert estimate(program.format(last="a.untyped_storage().resize_(4000)")).tensor_bytes == 8040


def test_what_is_made_of_values_counts():
    """`torch.tensor` is not an op. The op that reads its result is the first to see it."""
    assert estimate("import torch; a = torch.tensor([1.0, 2.0]); b = a + 1").tensor_bytes == 16


def test_the_run_ends_after_some_steps_of_the_optimizer():
    assert estimate(TRAINING, steps=2).steps == 2


def test_a_program_that_ends_by_itself_made_fewer_steps():
    assert estimate(TRAINING.replace("1000", "2")).steps == 2


def test_reads_of_values_are_answered_by_zero_and_named():
    """A logged loss, a check for NaN and a scaler of gradients go on as in a run that goes well."""
    found = estimate(TRAINING + READS)
    assert found.steps == 3
    assert len(found.reads) == 2
    assert found.reads[0] in " ".join(text_of(found).split())


BRANCH = """
        if (model(torch.rand(2, 8)) > 0).any():
            model(torch.ones(1000, 8)).sum()
"""
NUMBER = """
        print(loss.item())
"""


@pytest.mark.parametrize(("read", "is_branch"), [(BRANCH, True), (NUMBER, False)], ids=["branch", "number"])
def test_a_branch_on_a_value_is_said_to_skip_work(read, is_branch):
    """An expert that gets no token is not run, so the estimate lacks its memory."""
    found = estimate(TRAINING + read)
    assert (len(found.reads), len(found.branches)) == (1, is_branch)
    text = " ".join(text_of(found).split())
    assert ("the answer was no: train.py:11. If this skipped work, the peak is higher" in text) == is_branch
    assert ("it got 0: train.py:11" in text) != is_branch


@pytest.mark.parametrize(
    ("result", "note"),
    [
        (
            "model(x).masked_fill(x > 0, 0.0)",
            "up to 256 B too high: in an estimate, torch computes the backward of aten.masked_fill in another way",
        ),
        (
            "model(x) + model(x)",
            "too high: in an estimate, autograd makes a new tensor for each sum of gradients",
        ),
        ("model(x)", ""),
    ],
)
def test_a_note_says_how_much_too_high_the_peak_can_be(result, note):
    """You entered no dispatch mode, and the command has no option `intercept`: no note may name them."""
    found = estimate(f"""
        import torch
        model, x = torch.nn.Linear(8, 8), torch.ones(8, 8)
        ({result}).square().sum().backward()
    """)
    notes = found.reading.notes
    assert not [text for _, text in notes if "intercept" in text or "FakeTensorMode" in text]
    assert [note in text for kind, text in notes if kind == "observer"] == [True] * bool(note)


def test_sizes_that_depend_on_values_are_refused_with_the_line():
    with pytest.raises(MemwatchError, match=r"^train.py:3 needs the values .*aten::nonzero"):
        estimate("import torch\nx = torch.rand(3)\nx.nonzero()")


def test_what_fake_tensors_refuse_is_refused_with_the_line():
    with pytest.raises(MemwatchError, match=r"^train.py:3: .*numpy"):
        estimate("import torch\nx = torch.ones(3)\nx.numpy()")


def test_the_program_finds_the_device_that_is_pretended():
    """Only inside, and its tensors are in the figures of that device."""
    before = torch.cuda.is_available()
    program = "import torch; assert torch.cuda.is_available(); a = torch.ones(25, device='cuda:0')"
    found = estimate(program, device="cuda")
    assert torch.cuda.is_available() == before
    assert (found.reading.device, found.tensor_bytes, found.block_bytes) == ("cuda:0", 100, 512)


@pytest.mark.parametrize("raised", ["ValueError('wrong')", "SystemExit(3)"])
def test_an_error_of_the_program_is_its_own(raised):
    with pytest.raises((ValueError, SystemExit)) as caught:
        estimate(f"raise {raised}")
    assert str(caught.value) in raised


def test_no_file_of_values_is_written(tmp_path):
    """A checkpoint of a real run must not be replaced by one without values."""
    path = tmp_path / "model.pt"
    found = estimate(f"import torch; torch.save(torch.ones(3), {str(path)!r})")
    assert not path.exists()
    assert ["torch.save" in remark for remark in found.remarks] == [True]


def test_a_loader_reads_its_data_in_order_here():
    """Its workers could not send fake tensors. Each index is drawn once although the tensors have no values."""
    found = estimate("""
        import torch
        from torch.utils.data import DataLoader, Dataset
        seen = []
        class Data(Dataset):
            def __len__(self):
                return 10
            def __getitem__(self, index):
                seen.append(index)
                return torch.ones(4)
        batches = list(DataLoader(Data(), batch_size=5, shuffle=True, num_workers=2, pin_memory=True))
        assert sorted(seen) == list(range(10)) and len(batches) == 2
    """)
    assert any("DataLoader" in remark for remark in found.remarks)


def test_everything_is_put_back():
    """The process keeps nothing of the simulated job."""

    def state():
        functions = [torch.save, DataLoader.__init__, torch.multiprocessing.spawn, sys.excepthook]
        return [*functions, dict(os.environ), torch.distributed.is_initialized()]

    before = state()
    estimate("import torch; torch.distributed.init_process_group('gloo')", job=Job(1, 4))
    assert state() == before


def test_a_job_finds_its_ranks():
    """The environment, the arguments of the program and `spawn` lead to the wanted rank."""
    program = """
        import os, torch
        from torch import distributed
        def work(rank, world):
            distributed.init_process_group("nccl", rank=rank, world_size=world)
            assert (distributed.get_rank(), distributed.get_world_size()) == (2, 4)
            distributed.all_reduce(torch.ones(3))
            distributed.barrier()
            kept.append(torch.ones(25))
        kept = []
        torch.multiprocessing.spawn(work, (4,), nprocs=4)
    """
    assert estimate(program, job=Job(2, 4)).tensor_bytes == 100
    assert estimate(program, job=Job(2)).tensor_bytes == 100


@pytest.mark.parametrize(
    ("rank", "world_size", "words"),
    [
        (4, 4, "rank 4 is not in a job of 4; the last is 3"),
        (-1, None, "rank -1 is below 0"),
        (0, 0, "a job of 0 ranks; the number of ranks must be at least 1"),
        (0, -2, "a job of -2 ranks"),
    ],
)
def test_a_rank_that_is_not_there_is_refused(rank, world_size, words):
    with pytest.raises(MemwatchError, match=words):
        Job(rank, world_size)


@pytest.mark.parametrize("rows", [0, 1, 3, 8])
@pytest.mark.parametrize("ranks", [1, 2, 4, 7])
def test_shards_are_those_that_fsdp_cuts(rows, ranks):
    parameter = torch.arange(rows * 2.0).view(rows, 2)
    chunks = list(torch.chunk(parameter, ranks))
    chunks += [chunks[0].new_empty(0)] * (ranks - len(chunks))
    shards = Shards(parameter, ranks, 0)
    for rank, chunk in enumerate(chunks):
        assert shards[rank].shape == chunk.shape
        assert torch.equal(shards[rank], chunk)


def test_the_record_has_the_figures_of_the_estimate():
    """And the fields that docs/json.md has."""
    found = estimate(TRAINING + READS, job=Job(1, 4))
    record = estimate_record(found)
    assert record.keys() == get_type_hints(EstimateRecord).keys()
    assert record["tensor_bytes"] == found.tensor_bytes == record["summary"]["peak"]["peak_bytes"]
    assert (record["rank"], record["world_size"], record["steps"], len(record["reads"])) == (1, 4, 3, 2)
    json.dumps(record)


def test_a_capture_is_written(tmp_path):
    """The other verbs read it, as they read one of a run."""
    found = estimate(TRAINING, path=tmp_path / "a.memwatch")
    assert memwatch.load(tmp_path / "a.memwatch").peak_bytes == found.tensor_bytes
