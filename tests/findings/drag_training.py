"""Training and evaluation loops as people write them, each holding too much, and the same loop mended."""

from __future__ import annotations

import copy

import torch
from drag_frames import WIDE, block, heavy
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDE, WIDE), nn.ReLU(), nn.Linear(WIDE, 8))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)


_DATA = block(16 * WIDE)


class WithLoss(nn.Module):
    """Returns its loss and its logits, as the models of the transformers library do."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 4 * WIDE)

    def forward(self, x):
        logits = self.head(self.body(x))
        return {
            "loss": functional.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long)),
            "logits": logits,
        }


def outputs_across_iterations():
    model = WithLoss()
    optimizer = sgd(model)
    for _ in range(3):
        outputs = model(torch.ones(WIDE, 8))
        optimizer.zero_grad()
        outputs["loss"].backward()
        optimizer.step()


def outputs_dropped_each_iteration():
    model = WithLoss()
    optimizer = sgd(model)
    for _ in range(3):
        loss = model(torch.ones(WIDE, 8))["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def outputs_through_backward():
    model = WithLoss()
    outputs = model(torch.ones(WIDE, 8))
    outputs["loss"].backward()


def outputs_before_backward():
    model = WithLoss()
    loss = model(torch.ones(WIDE, 8))["loss"]
    loss.backward()


def zeros_in_forward(*, set_to_none=False):
    model = network()
    optimizer = sgd(model)
    for _ in range(3):
        model(torch.ones(WIDE, WIDE)).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)


def none_in_forward():
    zeros_in_forward(set_to_none=True)


def loss_history():
    model = network()
    history = []
    for _ in range(4):
        loss = model(block(4 * WIDE)).square().mean()
        history.append(loss)
    return torch.stack(history).sum().item()


def loss_history_of_numbers():
    model = network()
    history = []
    for _ in range(4):
        with torch.no_grad():
            history.append(model(block(4 * WIDE)).square().mean())
    return torch.stack(history).sum().item()


def running_sum():
    model = network()
    running_loss = 0.0
    optimizer = sgd(model)
    for _ in range(4):
        loss = model(block(4 * WIDE)).square().mean()
        running_loss += loss.sqrt()
        optimizer.zero_grad()
        optimizer.step()
    return running_loss


def running_number():
    model = network()
    running_loss = 0.0
    optimizer = sgd(model)
    for _ in range(4):
        with torch.no_grad():
            loss = model(block(4 * WIDE)).square().mean()
        running_loss += loss.detach().sqrt()
        optimizer.zero_grad()
        optimizer.step()
    return running_loss


def accumulation():
    model = network()
    losses = [model(block(4 * WIDE)).square().mean() for _ in range(4)]
    torch.stack(losses).mean().backward()


def gan():
    generator, critic = nn.Linear(WIDE, 8 * WIDE), nn.Linear(8 * WIDE, 1)
    first, second = sgd(generator), sgd(critic)
    for _ in range(2):
        fake = generator(block())
        critic_loss = critic(fake.detach()).mean()
        second.zero_grad()
        critic_loss.backward()
        second.step()
        generator_loss = critic(fake).mean()
        first.zero_grad()
        generator_loss.backward()
        first.step()


def gan_dropping():
    generator, critic = nn.Linear(WIDE, 8 * WIDE), nn.Linear(8 * WIDE, 1)
    first, second = sgd(generator), sgd(critic)
    for _ in range(2):
        fake = generator(block())
        critic_loss = critic(fake.detach()).mean()
        second.zero_grad()
        critic_loss.backward()
        second.step()
        generator_loss = critic(fake).mean()
        del fake
        first.zero_grad()
        generator_loss.backward()
        first.step()


def hidden_states():
    cell = nn.RNNCell(WIDE, WIDE)
    states = []
    with torch.no_grad():
        state = block()
        for _ in range(6):
            state = cell(block(), state)
            states.append(state)
        heavy()
    return state.sum()


def last_hidden_state():
    cell = nn.RNNCell(WIDE, WIDE)
    with torch.no_grad():
        state = block()
        for _ in range(6):
            state = cell(block(), state)
        heavy()
    return state.sum()


def average_copy():
    model = nn.Linear(3 * WIDE, 3 * WIDE)
    best_state = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        model(torch.ones(WIDE, 3 * WIDE))
        heavy()
    return len(best_state)


def no_average_copy():
    model = nn.Linear(3 * WIDE, 3 * WIDE)
    with torch.no_grad():
        model(torch.ones(WIDE, 3 * WIDE))
        heavy()


def loader_batches():
    data = TensorDataset(_DATA)
    kept = []
    for (images,) in DataLoader(data, batch_size=4 * WIDE):
        images.mean()
        kept.append(images)
    del images
    heavy()


def loader_batches_dropped():
    data = TensorDataset(_DATA)
    for (images,) in DataLoader(data, batch_size=4 * WIDE):
        images.mean()
        del images
    heavy()


def validation_predictions():
    model = network()
    predictions = []
    for _ in range(4):
        predictions.append(model(block(4 * WIDE)))
    return torch.cat(predictions).argmax(-1)


def validation_no_grad():
    model = network()
    predictions = []
    with torch.no_grad():
        for _ in range(4):
            predictions.append(model(block(4 * WIDE)))
    return torch.cat(predictions).argmax(-1)


def kept_checkpoints():
    model = nn.Linear(2 * WIDE, 2 * WIDE)
    snapshots = {}
    for epoch in range(3):
        snapshots[epoch] = {name: value.clone() for name, value in model.state_dict().items()}
        with torch.no_grad():
            model(torch.ones(WIDE, 2 * WIDE))
    heavy()


def one_checkpoint():
    model = nn.Linear(2 * WIDE, 2 * WIDE)
    for _epoch in range(3):
        {name: value.clone() for name, value in model.state_dict().items()}
        with torch.no_grad():
            model(torch.ones(WIDE, 2 * WIDE))
    heavy()


def one_hot_targets():
    labels = torch.arange(4 * WIDE) % 512
    targets = functional.one_hot(labels, 512).float()
    loss = targets.square().mean()
    value = loss.item()
    del loss
    heavy(64)
    return value


def one_hot_dropped():
    labels = torch.arange(4 * WIDE) % 512
    targets = functional.one_hot(labels, 512).float()
    loss = targets.square().mean()
    value = loss.item()
    del loss, targets
    heavy(64)
    return value


def debug_gradients():
    model = network()
    seen = []
    out = model[0](block(4 * WIDE))
    handle = out.register_hook(seen.append)
    loss = model[2](model[1](out)).square().mean()
    del out
    loss.backward()
    handle.remove()
    heavy(16)


def debug_gradient_norms():
    model = network()
    seen = []
    out = model[0](block(4 * WIDE))
    handle = out.register_hook(lambda gradient: seen.append(gradient.norm().item()))
    loss = model[2](model[1](out)).square().mean()
    del out
    loss.backward()
    handle.remove()
    heavy(16)


def retained_graph():
    model = network()
    loss = model(block(8 * WIDE)).square().mean()
    loss.backward(retain_graph=True)
    heavy(32)
    return loss


def released_graph():
    model = network()
    loss = model(block(8 * WIDE)).square().mean()
    loss.backward()
    heavy(32)
    return loss


# name: (holding program, words that its finding must have, mended twin)
CASES = {
    "outputs across iterations": (
        outputs_across_iterations,
        ("`outputs`, local variable of `outputs_across_iterations`", "before backward"),
        outputs_dropped_each_iteration,
    ),
    "outputs through backward": (
        outputs_through_backward,
        ("`outputs`, local variable of `outputs_through_backward`", "before backward"),
        outputs_before_backward,
    ),
    "zeros in forward": (zeros_in_forward, (".grad", "set_to_none=True"), none_in_forward),
    "loss history": (loss_history, ("`history`", "loss_history"), loss_history_of_numbers),
    "running sum": (running_sum, ("`running_loss`", "running_sum"), running_number),
    "GAN": (gan, ("`fake`", "gan"), gan_dropping),
    "hidden states": (hidden_states, ("`states`", "hidden_states"), last_hidden_state),
    "average": (average_copy, ("`best_state`", "average_copy"), no_average_copy),
    "loader": (loader_batches, ("`kept`", "loader_batches"), loader_batches_dropped),
    "validation with graph": (
        validation_predictions,
        ("no_grad", "`predictions`", "validation_predictions"),
        validation_no_grad,
    ),
    "checkpoints": (kept_checkpoints, ("`snapshots`", "kept_checkpoints"), one_checkpoint),
    "one-hot": (one_hot_targets, ("`targets`", "one_hot_targets"), one_hot_dropped),
    "gradient hook": (debug_gradients, ("`seen`", "debug_gradients"), debug_gradient_norms),
    "retained graph": (retained_graph, ("retain_graph", "`loss`"), released_graph),
}
