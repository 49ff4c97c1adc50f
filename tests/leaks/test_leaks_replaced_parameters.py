"""A parameter that replaced another one is not a leak of its optimizer."""

from __future__ import annotations

import pytest
import torch

from memwatch.leaks import TensorLeakError, check_leaks, find_leaks


class Task(torch.nn.Module):
    """A model with a head that can be replaced, and the optimizer that steps it."""

    def __init__(self, make_optimizer=torch.optim.Adam):
        super().__init__()
        self.body = torch.nn.Linear(64, 64)
        self.head = torch.nn.Linear(64, 32)
        self.optimizer = make_optimizer(self.parameters())
        self.former = []
        self.step()

    def step(self):
        self.optimizer.zero_grad()
        self.head(self.body(torch.ones(4, 64))).sum().backward()
        self.optimizer.step()

    def replace_head(self, width, *, forgets=True):
        old = self.head
        self.head = torch.nn.Linear(64, width)
        listed = self.optimizer.param_groups[0]["params"]
        for former, new in zip(old.parameters(), self.head.parameters(), strict=True):
            listed[next(n for n, parameter in enumerate(listed) if parameter is former)] = new
            if forgets:
                self.optimizer.state.pop(former, None)


TASKS: list[Task] = []
OPTIMIZERS = [
    torch.optim.Adam,
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    lambda parameters: torch.optim.SGD(parameters, lr=0.1),
]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(params=OPTIMIZERS)
def task(request):
    TASKS.append(Task(request.param))
    yield TASKS[0]
    TASKS.clear()


@pytest.mark.parametrize("width", [16, 32, 48])
@pytest.mark.parametrize("steps", [0, 1])
def test_a_replaced_head_is_no_leak(task, width, steps):
    """Its state is forgotten, so the optimizer has as many entries as before."""
    with check_leaks():
        task.replace_head(width)
        for _ in range(steps):
            task.step()


@pytest.mark.parametrize("width", [32, 48])
def test_state_of_a_replaced_head_that_is_not_forgotten_is_a_leak(width):
    TASKS.append(Task())

    @check_leaks()
    def replaces():
        TASKS[0].replace_head(width, forgets=False)
        TASKS[0].step()

    with pytest.raises(TensorLeakError) as info:
        replaces()
    TASKS.clear()
    [leak] = info.value.leaks
    assert leak.cut.owner.name == "defaultdict"
    assert leak.site is None  # the old head is named, which is older than the block
    assert leak.nbytes == OLD_BYTES["state"]


OLD_BYTES = {
    "parameters": 4 * (64 * 32 + 32),
    "state": 4 * 4 * (64 * 32 + 32) + 2 * 4,  # with gradients, and a count of steps for each parameter
    "cleared": 3 * 4 * (64 * 32 + 32) + 2 * 4,
}


def adds_a_group(task):
    task.optimizer.add_param_group({"params": list(task.head.parameters())})


def adds_nothing(task):
    del task


@pytest.mark.parametrize("adds", [adds_a_group, adds_nothing])
@pytest.mark.parametrize("width", [32, 48])
@pytest.mark.parametrize(("make", "kept"), [(OPTIMIZERS[0], "cleared"), (OPTIMIZERS[2], "parameters")])
def test_a_replaced_head_that_the_optimizer_goes_on_to_list_is_a_leak(make, kept, width, adds):
    """The new head is the model's. What leaks is the old one, wherever the new one went."""
    TASKS.append(Task(make))
    former = [id(each) for each in TASKS[0].head.parameters()]

    @check_leaks()
    def replaces():
        TASKS[0].head = torch.nn.Linear(64, width)
        adds(TASKS[0])
        TASKS[0].step()

    with pytest.raises(TensorLeakError) as info:
        replaces()
    [leak] = info.value.leaks
    assert any("attribute .optimizer" in line for line in leak.path)
    assert leak.nbytes == OLD_BYTES[kept]
    assert leak.site is None
    # the advice, taken
    optimizer = TASKS[0].optimizer
    old = [p for group in optimizer.param_groups for p in group["params"] if id(p) in former]
    for group in optimizer.param_groups:
        group["params"] = [p for p in group["params"] if id(p) not in former]
    for parameter in old:
        optimizer.state.pop(parameter, None)
    del old, parameter, optimizer
    with check_leaks():
        TASKS[0].step()
    TASKS.clear()


@pytest.mark.parametrize("adds", [adds_a_group, adds_nothing])
def test_a_name_of_the_block_does_not_excuse_the_optimizer_of_a_replaced_head(adds):
    """The name ends with its function. The optimizer lists the old head for as long as it lives."""
    TASKS.append(Task())

    def replaces(task):
        with check_leaks():
            former = task.head
            task.head = torch.nn.Linear(64, 48)
            adds(task)
            task.step()
        assert former is not task.head

    with pytest.raises(TensorLeakError) as info:
        replaces(TASKS[0])
    [leak] = info.value.leaks
    assert any("attribute .optimizer" in line for line in leak.path)
    assert leak.nbytes == OLD_BYTES["cleared"]
    TASKS.clear()


def test_a_replaced_head_that_only_a_name_of_the_block_has_is_no_leak(task):
    with check_leaks():
        former = task.head
        task.replace_head(48)
        task.step()
    assert former is not task.head


def test_a_parameter_that_the_optimizer_alone_was_given_is_no_leak(task):
    """No module that it steps got a new parameter."""
    task.temperature = torch.optim.SGD([torch.nn.Parameter(torch.ones(32, 64))], lr=0.1)
    with check_leaks():
        task.head = torch.nn.Linear(64, 32)
        task.optimizer = torch.optim.SGD(task.parameters(), lr=0.1)
        task.step()
        task.temperature.zero_grad()


@pytest.mark.parametrize("moves_state", [True, False])
def test_a_parameter_replaced_by_another_of_its_size_is_no_leak(task, moves_state):
    """A name of the block still has the old one: it ends with the block."""
    with check_leaks():
        old = task.body.weight
        task.body.weight = torch.nn.Parameter(torch.ones(64, 64))
        state = task.optimizer.state.pop(old, {})
        if moves_state:
            task.optimizer.state[task.body.weight] = state
        task.optimizer.param_groups[0]["params"][0] = task.body.weight
        del state
        task.step()


def test_a_value_that_only_a_name_of_the_block_still_has_is_replaced(task):
    task.buffer = torch.ones(64, 64)
    with check_leaks():
        old = task.buffer
        task.buffer = old + 1


def test_a_value_that_something_else_still_has_is_not_replaced(task):
    task.buffer = torch.ones(64, 64)

    def replaces():
        with check_leaks():
            old = task.buffer
            task.former.append(old)
            task.buffer = old + 1

    with pytest.raises(TensorLeakError):
        replaces()


class Heads:
    """Heads that a run adds to, and an optimizer with a parameter that no module has."""

    def __init__(self, *heads):
        self.heads = torch.nn.ModuleList(heads)
        self.optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
        self.optimizer.add_param_group({"params": list(self.heads.parameters())})

    def add(self):
        head = torch.nn.Linear(16, 4)
        self.heads.append(head)
        self.optimizer.add_param_group({"params": list(head.parameters())})
        head(torch.ones(2, 16)).sum().backward()
        self.optimizer.step()


HEADS: list[Heads] = []


def test_a_head_that_is_added_replaces_no_parameter_that_the_optimizer_alone_has():
    """One pass cannot tell the first head from a model that is being built."""
    HEADS.append(Heads())
    with check_leaks():
        HEADS[0].add()
    HEADS.clear()


def test_of_one_more_head_the_head_is_named_and_no_older_parameter():
    HEADS.append(Heads(torch.nn.Linear(16, 4)))

    @check_leaks()
    def adds():
        HEADS[0].add()

    with pytest.raises(TensorLeakError) as info:
        adds()
    [leak] = info.value.leaks
    assert "submodule '1' of ModuleList" in leak.holder
    HEADS.clear()
    # each further call shows the first head too, with what the optimizer keeps of it
    HEADS.append(Heads())
    [leak] = find_leaks(HEADS[0].add)
    assert leak.count == 2 * (1 + 3 + 1)  # the parameter, Adam's state of it, and its gradient
    HEADS.clear()
