"""A replay that fails, at any op, leaves the user's tensors, generators and modes as they were."""

from __future__ import annotations

import contextlib
import dataclasses
import gc

import pytest
import torch
from replay_programs import GPT
from replay_recording import program_order, record
from torch.nn import functional

from memwatch.errors import MemwatchError, ReplayError
from memwatch.planner import BudgetError, Graph
from memwatch.replay.api import plan, replay, replayable
from memwatch.replay.run import ReplayResult, replay_schedule


class InjectedError(Exception):
    """Raised by the tests in the middle of a replay."""


@torch.library.custom_op("memwatch_test::fragile", mutates_args=())
def fragile(x: torch.Tensor) -> torch.Tensor:
    if Fuse.blown:
        raise RuntimeError("the fuse has blown")
    return x * 2


class Fuse:
    blown = False


@pytest.fixture
def blown_fuse():
    Fuse.blown = False
    yield Fuse
    Fuse.blown = False


def training():
    """Return a model, its optimizer and one training step that keeps its gradients."""
    torch.manual_seed(0)
    model = GPT(layers=1)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 64, (2, 16))

    def step():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(ids).flatten(0, -2), ids.roll(-1).flatten())
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step


def state_of(model, optimizer):
    """Copy everything a user could notice: values, gradients, versions, optimizer state, generator, modes."""
    tensors = [*model.parameters(), *(p.grad for p in model.parameters())]
    tensors += [value for state in optimizer.state.values() for value in state.values()]
    return (
        [tensor.detach().clone() for tensor in tensors],
        [tensor._version for tensor in tensors],
        [tensor.data_ptr() for tensor in tensors],
        torch.get_rng_state(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
    )


def assert_unchanged(before, after):
    for one, other in zip(before[0], after[0], strict=True):
        assert torch.equal(one, other)
    assert before[1:3] == after[1:3]
    assert torch.equal(before[3], after[3])
    assert before[4:] == after[4:]


def test_failure_at_any_op_changes_nothing():
    """Stopped at every k-th step of a plan with recomputes, the replay leaves the user's state alone."""
    model, optimizer, step = training()
    step()
    prof = record(step)
    planned = plan(prof, budget="80%", time_limit_s=2)
    before = state_of(model, optimizer)
    steps = range(0, len(planned.schedule), 7)
    for failing in steps:

        def stop(number, failing=failing):
            if number == failing:
                raise InjectedError

        with pytest.raises(InjectedError):
            replay_schedule(planned.program.recorded, planned.schedule, planned.program.inputs, 0, stop)
        assert_unchanged(before, state_of(model, optimizer))
    assert len(steps) > 10
    assert replay(planned).identical
    assert_unchanged(before, state_of(model, optimizer))


def test_memory_of_a_failed_replay_is_given_back():
    """After a failure no buffer of the replay is alive."""
    _, _, step = training()
    prof = record(step)
    program = replayable(prof)
    schedule, _ = program_order(program)
    started = []

    def stop(number):
        started.append(number)
        if number == len(schedule) - 1:
            raise InjectedError

    gc.collect()
    before = _storage_bytes()
    with pytest.raises(InjectedError):
        replay_schedule(program.recorded, schedule, program.inputs, 0, stop)
    assert len(started) == len(schedule)
    assert _storage_bytes() == before


def _storage_bytes():
    seen = {}
    for thing in gc.get_objects():
        with contextlib.suppress(RuntimeError):  # fake tensors of other tests have no memory
            if type(thing) in (torch.Tensor, torch.nn.Parameter):
                storage = thing.untyped_storage()
                seen[storage.data_ptr()] = storage.nbytes()
            elif type(thing) is torch.UntypedStorage:
                seen[thing.data_ptr()] = thing.nbytes()
    return sum(seen.values())


def test_op_that_fails_is_named(blown_fuse):
    """An op that raises at replay stops it with its number, name, line and reason."""
    x = torch.ones(4)

    def step():
        return fragile(x) + 1

    prof = record(step)
    planned = plan(prof)
    assert replay(planned).identical
    blown_fuse.blown = True
    with pytest.raises(
        ReplayError, match=r"memwatch_test.fragile.*test_replay_failures.py:\d+.*fuse has blown"
    ):
        replay(planned)
    assert x.tolist() == [1.0] * 4


def test_value_that_differs_stops_the_replay():
    """A number that the program took from a tensor must be the same again: op and line are named if not."""
    calls = []

    @torch.library.custom_op("memwatch_test::counted", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x + len(calls)

    x = torch.zeros(())

    def step():
        return torch.ones(3) * counted(x).item()

    planned = plan(record(step))
    with pytest.raises(
        ReplayError,
        match=r"_local_scalar_dense.*test_replay_failures.py:\d+.*returned 2.0, but 1.0 was recorded",
    ):
        replay(planned)


def test_shape_that_differs_stops_the_replay():
    """A shape that depends on values must come out the same."""
    calls = []

    @torch.library.custom_op("memwatch_test::flipping", mutates_args=())
    def flipping(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * (1 if len(calls) > 1 else -1)

    x = torch.tensor([1.0, 2.0, -3.0])
    planned = plan(record(lambda: torch.nonzero(flipping(x) > 0)))
    with pytest.raises(ReplayError, match="nonzero"):
        replay(planned)


def test_input_changed_after_recording_is_refused():
    """The replay starts from the recorded inputs. After a change of an input it would prove nothing."""
    x = torch.ones(8)
    planned = plan(record(lambda: torch.sum(x * 2)))
    assert replay(planned).identical
    x.add_(1)
    with pytest.raises(ReplayError, match="changed since it was recorded"):
        replay(planned)


def test_next_step_of_the_program_does_not_disturb_a_replay():
    """Results are compared with copies from the end of the block, so training may go on before the replay."""
    _, _, step = training()
    step()
    planned = plan(record(step), budget="90%", time_limit_s=2)
    step()
    assert replay(planned).identical


def test_impossible_budget_holds_a_plan_that_replays():
    """`BudgetError` names the bound that makes the budget impossible. Its best plan can be executed."""
    _, _, step = training()
    step()
    prof = record(step)
    with pytest.raises(BudgetError, match="lowest peak increase found") as caught:
        plan(prof, budget="1 KiB", time_limit_s=2)
    assert caught.value.bound_bytes > 1024
    result = replay(caught.value.best)
    assert result.identical
    assert result.peak_increase_bytes == caught.value.best.peak_increase_bytes


def test_plan_of_a_graph_cannot_be_replayed():
    """A graph built by hand has no ops to run."""
    planned = plan(Graph.build([("a", [], {"x": 8}, 1.0), ("b", ["x"], {"y": 8}, 1.0)], keep=["y"]))
    with pytest.raises(MemwatchError, match="holds no recorded program"):
        replay(planned)


def test_plan_of_another_program_is_refused(tmp_path):
    """A plan file carries the fingerprint of its program."""
    x = torch.ones(8)
    prof, other = record(lambda: torch.sum(x * 2)), record(lambda: (x * 2).exp().sum())
    plan(prof).save(tmp_path / "plan.json")
    from memwatch.planner.plan import load_plan

    loaded = load_plan(tmp_path / "plan.json")
    assert replay(loaded, prof).identical
    with pytest.raises(MemwatchError, match="another program"):
        replay(loaded, other)


def test_a_generator_that_ends_in_another_state_is_named():
    """The results are equal, so a largest difference of 0 would say nothing."""
    result = ReplayResult(
        peak_increase_bytes=8,
        planned_bytes=8,
        identical=False,
        max_abs_diff=0.0,
        tolerance=0.0,
        duration_s=0.1,
        moved_bytes=0,
        num_checked=3,
        synthetic=False,
    )
    assert "3 storages bitwise equal, but a random generator ends in another state" in str(result)
    other = dataclasses.replace(result, differs_in="aten.neg at train.py:3")  # 0.0 and -0.0 have other bytes
    assert "largest difference 0, first in the result of aten.neg at train.py:3" in str(other)
