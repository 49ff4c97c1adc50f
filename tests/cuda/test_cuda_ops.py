"""PyTorch's own op database on a CUDA device: forward and backward with and without memwatch, bit for bit."""

from __future__ import annotations

import pytest
import torch

GROUPS = 16
SAMPLES = 2


@pytest.fixture
def repeatable():
    """Have kernels that add in any order run in one order, so that two plain runs agree."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("intercept", ["key", "mode"])
@pytest.mark.parametrize("group", range(GROUPS))
def test_ops_are_bit_equal(repeatable, group, intercept):
    """Every entry with float32 samples there: equal, or, with the mode, as under an empty mode."""
    from compat_opinfo import compare, entries, name_of  # the database takes seconds to import

    verdicts = {
        name_of(op): compare(op, intercept, SAMPLES, device="cuda") for op in entries("cuda")[group::GROUPS]
    }
    assert {name: verdict for name, verdict in verdicts.items() if verdict == "different"} == {}
    assert "equal" in verdicts.values()


@pytest.mark.parametrize("intercept", ["key", "mode"])
@pytest.mark.parametrize("group", range(GROUPS))
def test_ops_are_bit_equal_with_a_sample_after_every_op(repeatable, group, intercept):
    """Every fourth entry, with one of its samples."""
    from compat_opinfo import compare, entries, name_of

    sampled = entries("cuda")[group :: 4 * GROUPS]
    verdicts = {name_of(op): compare(op, intercept, 1, device="cuda", sampled=True) for op in sampled}
    assert {name: verdict for name, verdict in verdicts.items() if verdict == "different"} == {}


@pytest.mark.parametrize("intercept", ["key", "mode"])
@pytest.mark.parametrize("change", range(5))
def test_views_keep_their_history_with_a_sample_after_every_op(on_cuda, repeatable, change, intercept):
    from test_compat_views import CHANGES, VIEWS, check_view

    for name in VIEWS:
        check_view(name, intercept, CHANGES[change])


@pytest.mark.parametrize("intercept", ["key", "mode"])
@pytest.mark.parametrize("file", ["backward", "functions", "inplace", "saved"])
def test_programs_are_bit_equal_with_a_sample_after_every_op(on_cuda, repeatable, file, intercept):
    """The programs were written for the CPU. Programs that do not run on the device are left out."""
    from compat_harness import check_sampled, run
    from compat_programs import all_programs

    for each in all_programs(f"test_compat_{file}.py"):
        if run(each.program).value.error is None:
            check_sampled(each.program, intercept, formula=each.formula)
