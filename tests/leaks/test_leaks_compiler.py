"""Tests that import torch's compiler, pandas or lightning. Later searches of the heap take twice as long."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from memwatch.leaks import TensorLeakError, check_leaks, find_leaks

sys.path.insert(0, str(Path(__file__).parent))
from all_programs import IMPORT_MUCH, PROGRAMS
from program_checks import both_for
from storages_alive import survivors
from test_leaks_cuts import survivors_after

LATE = [program for program in PROGRAMS if program.name in IMPORT_MUCH]

test_a_leak_is_found_with_its_kind_and_references, test_the_clean_twin_is_silent = both_for(LATE)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize("program", [program for program in LATE if program.kind != "retained"], ids=str)
def test_the_kind_says_whether_gc_frees_it(program):
    """Cycles are gone after a collection, uncollectable loops are not."""
    left, after = survivors(program.leak)
    assert left > 0
    assert (after == 0) == (program.kind == "cycle")


def test_fake_meta_nested_sparse_and_subclass_tensors_break_nothing():
    """Simulated tensors weigh nothing; the others are counted like any."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Named(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs or {})

    kept = []
    with FakeTensorMode(), check_leaks():
        kept.append(torch.randn(4) + 1)
    with check_leaks():
        kept.append(torch.empty(8, device="meta"))
    for make in (
        lambda: torch.eye(4).to_sparse(),
        lambda: torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged),
        lambda: torch.randn(4).as_subclass(Named) * 2,
    ):
        with pytest.raises(TensorLeakError) as caught, check_leaks():
            kept.append(make())
        leak = caught.value.leaks[0]
        assert leak.kind == "retained"
        assert "`kept`" in leak.holder


def test_a_nested_tensor_from_before_is_not_asked_under_a_mode():
    """A nested tensor is made of others, and runs an op to show them: under the program's mode that may fail."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    nested = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)
    with FakeTensorMode(), check_leaks():
        torch.randn(4)
    assert nested.shape[0] == 2


def test_compiled_functions_stay_compiled_and_are_no_leak():
    """The first compilation inside a check leaves caches, not leaks, and the function stays compiled after."""
    compiled = torch.compile(lambda x: (x * 2).relu(), backend="eager")
    with check_leaks():
        compiled(torch.randn(4))
    assert find_leaks(compiled, torch.randn(4)) == []
    torch._dynamo.reset()


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore")
def test_the_references_to_cut_of_a_trainer_of_lightning_free_its_model():
    """Its parts have it in many ways; all that is named is needed, and one leak."""
    lightning = pytest.importorskip("lightning")

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def training_step(self, batch, at):
            return self.layer(batch).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    def fit():
        trainer = lightning.Trainer(
            max_steps=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            accelerator="cpu",
        )
        trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(4, 8), batch_size=2))

    [leak] = find_leaks(fit)
    assert len(leak.cuts) > 2
    assert survivors_after(fit, leak.cuts) == 0, leak.cuts


def test_numbers_in_traced_code_are_no_error_in_a_checked_block():
    """A traced function hands plain numbers to ops of tensors under any dispatch mode; other errors stay."""
    example = torch.ones(4)
    with check_leaks():
        traced = torch.jit.trace(lambda x: (x + x.sum()).view(x.shape[0]), (example,))
        assert traced(torch.ones(3)).tolist() == [4.0] * 3
        with pytest.raises(RuntimeError, match="must match"):
            torch.ones(3) + torch.ones(4)
        del traced
