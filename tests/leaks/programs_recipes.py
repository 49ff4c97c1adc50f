"""Leaks of training recipes: metrics, averages, recurrent states, offloading, schedules, adapters, step hooks."""

from __future__ import annotations

import copy
import itertools

import torch
from leak_program import collect
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

NET = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
PULLBACKS, PENALTIES = [], []
NUMBERS = itertools.count()


def batch():
    return torch.randn(4, 16)


class Accuracy(nn.Module):
    """A metric with a state that is a list, as of torchmetrics."""

    def __init__(self):
        super().__init__()
        self.reset()

    def reset(self):
        self.preds = []

    def update(self, preds):
        self.preds.append(preds.detach())


ACCURACY = Accuracy()


def leak_metric_without_reset():
    ACCURACY.update(NET(batch()))


def clean_metric_without_reset():
    ACCURACY.update(NET(batch()))
    ACCURACY.reset()


class Running(nn.Module):
    """A metric with one tensor that grows."""

    def __init__(self):
        super().__init__()
        self.register_buffer("values", torch.zeros(1, 1))

    def update(self, values):
        self.values = torch.cat([self.values, values.detach()])


RUNNING = Running()


def leak_buffer_that_grows():
    RUNNING.update(NET(batch()))


def clean_buffer_that_grows():
    RUNNING.update(NET(batch()))
    RUNNING.values = RUNNING.values[:1].clone()


BEST, LATEST = [], {}


def leak_checkpoints():
    BEST.append(copy.deepcopy(NET.state_dict()))


def clean_checkpoints():
    LATEST["weights"] = copy.deepcopy(NET.state_dict())


MEMO = {}


def leak_deepcopy_memo():
    copy.deepcopy({"mean": batch()}, MEMO)


def clean_deepcopy_memo():
    copy.deepcopy({"mean": batch()}, {})


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(16, 16)
        self.hidden = torch.zeros(4, 16)

    def forward(self, x):
        self.hidden = torch.tanh(self.cell(self.hidden) + x)
        return self.hidden


RECURRENT = Recurrent()


def leak_hidden_state():
    RECURRENT(batch())


def clean_hidden_state():
    RECURRENT(batch())
    RECURRENT.hidden = RECURRENT.hidden.detach()


class Offload:
    """Keeps saved tensors in a table and gives autograd a number."""

    def __init__(self):
        self.table, self.numbers = {}, itertools.count()

    def pack(self, tensor):
        number = next(self.numbers)
        self.table[number] = tensor.detach()
        return number

    def peek(self, number):
        return self.table[number]

    def pop(self, number):
        return self.table.pop(number)


OFFLOAD = Offload()


def step_with(unpack):
    with torch.autograd.graph.saved_tensors_hooks(OFFLOAD.pack, unpack):
        loss = NET(batch()).sum()
    torch.autograd.grad(loss, list(NET.parameters()))


def leak_offload_table():
    step_with(OFFLOAD.peek)


def clean_offload_table():
    step_with(OFFLOAD.pop)


class Trace(TorchDispatchMode):
    """Notes what each op returns."""

    def __init__(self):
        super().__init__()
        self.results, self.names = [], set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.keep(func, result)
        return result

    def keep(self, func, result):
        self.results.append(result)


class NamesAlone(Trace):
    def keep(self, func, result):
        self.names.add(str(func))


TRACE, NAMES = Trace(), NamesAlone()


def leak_dispatch_mode():
    with TRACE:
        batch().mul(2)


def clean_dispatch_mode():
    with NAMES:
        batch().mul(2)


class Recorded(torch.Tensor):
    """A subclass that notes what each function of torch returned for it."""

    history = ()

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        if func is torch.Tensor.mul:
            cls.history = (*cls.history, result)
        return result


def leak_tensor_subclass():
    batch().as_subclass(Recorded).mul(2)


def clean_tensor_subclass():
    batch().as_subclass(Recorded).add(2)


def leak_pullbacks():
    _, pullback = torch.func.vjp(torch.sin, batch())
    PULLBACKS.append(pullback)


def clean_pullbacks():
    _, pullback = torch.func.vjp(torch.sin, batch())
    PULLBACKS.append(pullback(torch.ones(4, 16))[0].sum().item())


SCHEDULES = []


def leak_schedule():
    weights = batch()
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], foreach=False)
    SCHEDULES.append(torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0 + 0 * len(weights)))


def clean_schedule():
    weights = batch()
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], foreach=False)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0 + 0 * len(weights))
    SCHEDULES.append(schedule.get_last_lr())


ACCUMULATORS = [parameter.expand_as(parameter).grad_fn.next_functions[0][0] for parameter in NET.parameters()]


def leak_hook_on_an_accumulator():
    scale = batch()
    ACCUMULATORS[0].register_hook(lambda *grads: scale is None or None)


def clean_hook_on_an_accumulator():
    scale = batch()
    ACCUMULATORS[0].register_hook(lambda *grads: scale is None or None).remove()


def leak_state_dict_hook():
    seen = batch()
    NET.register_state_dict_pre_hook(lambda *args: seen is None or None)


def clean_state_dict_hook():
    seen = batch()
    NET.register_state_dict_pre_hook(lambda *args: seen is None or None).remove()


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.adapters = nn.ModuleDict()

    def serve(self, name):
        self.adapters[name] = nn.Linear(16, 2)
        return self.adapters[name](batch())


ADAPTED = Adapted()


def leak_adapters():
    ADAPTED.serve(f"request{next(NUMBERS)}")


def clean_adapters():
    ADAPTED.serve("request")


def penalty():
    x = batch().requires_grad_()
    (grad,) = torch.autograd.grad(NET(x).sum(), x, create_graph=True)
    return grad.pow(2).sum()


def leak_gradient_penalties():
    PENALTIES.append(penalty())


def clean_gradient_penalties():
    PENALTIES.append(penalty().item())


PARAMETER_HISTORY = {}


def leak_history_by_parameter():
    for name, parameter in NET.named_parameters():
        PARAMETER_HISTORY.setdefault(name, []).append(parameter.detach().clone())


def clean_history_by_parameter():
    for name, parameter in NET.named_parameters():
        PARAMETER_HISTORY[name] = [parameter.detach().clone()]


PROGRAMS = collect(
    globals(),
    [
        ("metric_without_reset", "retained", ("global `ACCURACY`", "attribute .preds of Accuracy")),
        ("buffer_that_grows", "retained", ("global `RUNNING`", "buffer 'values' of Running")),
        ("checkpoints", "retained", ("global `BEST`",)),
        ("deepcopy_memo", "retained", ("global `MEMO`",)),
        ("hidden_state", "retained", ("global `RECURRENT`", "attribute .hidden of Recurrent")),
        ("offload_table", "retained", ("global `OFFLOAD`", "attribute .table of Offload")),
        ("dispatch_mode", "retained", ("global `TRACE`", "attribute .results of Trace")),
        ("tensor_subclass", "retained", ("class attribute .history of class Recorded",)),
        ("pullbacks", "retained", ("global `PULLBACKS`",)),
        ("schedule", "retained", ("global `SCHEDULES`", "closure cell `weights`")),
        ("hook_on_an_accumulator", "retained", ("global `ACCUMULATORS`", "closure cell `scale`")),
        ("state_dict_hook", "retained", ("global `NET`", "_state_dict_pre_hooks", "closure cell `seen`")),
        ("adapters", "retained", ("global `ADAPTED`",)),
        ("gradient_penalties", "retained", ("global `PENALTIES`",)),
        ("history_by_parameter", "retained", ("global `PARAMETER_HISTORY`",)),
    ],
)
