"""Micro-batches, an optimizer with less state, no graph, activations in place: each applied by its own lines."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.nn import functional
from ways import make_program, profile_two_steps, run_lines

import memwatch


def _kinds(prof):
    return set(prof.ways["kind"])


def _the(prof, kind):
    found = prof.ways[prof.ways["kind"] == kind]
    assert len(found), prof.ways["kind"].to_list()
    return found.iloc[0]


def _profile(step):
    step()
    gc.collect()  # tensors of earlier tests
    with memwatch.profile() as prof:
        step()
        step()
    return prof


def _chain(*between, count=5):
    """Return blocks of a linear layer and something more."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(96, 96), *(make() for make in between)) for _ in range(count))
    )


def _training(model, batch):
    def step():
        model.zero_grad()
        model(batch).square().mean().backward()

    return step


def test_parts_of_a_batch_give_the_gradients_of_the_whole():
    """Also where the parts are not equally large: ten samples in four parts are three, three, three and one."""
    model, inputs, targets = nn.Linear(8, 4), torch.randn(10, 8), torch.randn(10, 4)

    def loss_of(x, y):
        return functional.mse_loss(model(x), y)

    lines = _the(profile_two_steps(make_program("gpt")), "micro_batches")["lines"]
    in_parts = run_lines(lines)["backward_in_parts"]
    loss = loss_of(inputs, targets)
    loss.backward()
    whole = model.weight.grad.clone()
    model.zero_grad()
    assert torch.allclose(in_parts(loss_of, inputs, targets, parts=4), loss)
    assert torch.allclose(model.weight.grad, whole, atol=1e-6)


@pytest.mark.parametrize("name", ["gnn", "gan"])
def test_a_batch_that_cannot_be_split_gets_no_such_advice(name):
    """A graph's nodes are no samples; a GAN has two optimizers. Their twins are the other programs of the report."""
    assert "micro_batches" not in _kinds(profile_two_steps(make_program(name)))


def _pairs(z):
    return functional.cross_entropy(z @ z.T, torch.arange(len(z)))


def _pairs_by_einsum(z):
    return torch.einsum("id,jd->ij", z, z).logsumexp(1).mean()


def _covariance(z):
    return (z.T @ z).square().mean()


def _distances(z):
    return torch.cdist(z, z).exp().mean()


def _differences(z):
    return (z[:, None] - z[None]).square().mean()


def _own_attention(z):
    q = z.view(len(z), 6, 16)
    return ((q @ q.transpose(1, 2)).softmax(-1) @ q).square().mean()


def _own_differences(z):
    q = z.view(len(z), 6, 16)
    return (q[:, :, None] - q[:, None]).square().mean()


@pytest.mark.parametrize(
    ("loss_of", "mixes"),
    [
        (_pairs, True),
        (_pairs_by_einsum, True),
        (_covariance, True),
        (_distances, True),
        (_differences, True),
        (_own_attention, False),
        (_own_differences, False),
        (lambda z: functional.mse_loss(z, torch.zeros_like(z)), False),
    ],
)
@pytest.mark.parametrize("batch", [16, 96])  # 96 is the width of the layers too
def test_a_batch_whose_samples_a_loss_combines_is_not_split(loss_of, mixes, batch):
    model, x = _chain(*(nn.GELU for _ in range(24))), torch.randn(batch, 96)

    def step():
        model.zero_grad()
        loss_of(model(x)).backward()

    assert ("micro_batches" in _kinds(_profile(step))) == (not mixes)


@pytest.mark.parametrize(("scratch_bytes", "parts"), [(0, [3, 2]), (560_000, [2])])
def test_a_larger_number_of_parts_must_lower_the_peak_further(scratch_bytes, parts):
    """Else the smaller number takes less time. Memory that does not depend on the batch is the peak then."""
    model, x = _chain(nn.GELU, nn.GELU, nn.GELU), torch.randn(96, 96)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

    def step():
        _training(model, x)()
        optimizer.step()
        torch.zeros(scratch_bytes // 4)

    prof = _profile(step)
    found = prof.ways[prof.ways["kind"] == "micro_batches"]
    assert [
        run_lines(lines)["backward_in_parts"].__kwdefaults__["parts"] for lines in found["lines"]
    ] == parts


def test_a_batch_of_one_sample_gets_no_such_advice():
    """Its twin has four."""
    model = _chain(nn.GELU)
    assert "micro_batches" in _kinds(_profile(_training(model, torch.randn(4, 256, 96))))
    assert "micro_batches" not in _kinds(_profile(_training(model, torch.randn(1, 1024, 96))))


def test_an_optimizer_without_state_gets_no_advice_for_less_state():
    """Its twin is `optimizer_bound`, whose AdamW keeps two tensors for each parameter."""
    model, x = _chain(nn.ReLU), torch.randn(4, 96)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        _training(model, x)()
        optimizer.step()

    assert not {"sgd", "adafactor"} & _kinds(_profile(step))
    assert {"sgd", "adafactor"} <= _kinds(profile_two_steps(make_program("optimizer_bound")))


def test_a_model_whose_backward_never_runs_needs_no_graph():
    """Its twin trains, and needs the graph."""
    model, x = _chain(nn.GELU), torch.randn(512, 96)

    def infer():
        return model(x).argmax(-1)

    assert "without_graph" not in _kinds(_profile(_training(model, x)))
    model.zero_grad()
    way = _the(_profile(infer), "without_graph")
    exec(way["lines"], {"model": model})
    assert _profile(infer).peak_bytes == way["peak_bytes"]


def test_a_teacher_whose_result_is_detached_needs_no_graph():
    """The student beside it does, and the lines name the teacher."""
    teacher, student, x = _chain(nn.GELU), _chain(nn.GELU, count=1), torch.randn(512, 96)

    def step():
        student.zero_grad()
        functional.mse_loss(student(x), teacher(x).detach()).backward()

    way = _the(_profile(step), "without_graph")
    assert "teacher" in way["way"]
    exec(way["lines"], {"teacher": teacher})
    assert _profile(step).peak_bytes == pytest.approx(way["peak_bytes"], rel=0.02)
    assert student[0][0].weight.grad is not None


@pytest.mark.parametrize("keeps_batches", [False, True])
def test_a_batch_that_only_a_graph_keeps_goes_with_it(keeps_batches):
    """`target` keeps the teacher's graph, and so the batch, for one more step. The twin keeps its batches in a list."""
    teacher = nn.Sequential(nn.Linear(96, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 96))
    student = nn.Linear(96, 96)

    def train():
        batches = []
        for _ in range(3):
            batch = torch.randn(512, 96)
            batches += [batch] * keeps_batches
            student.zero_grad()
            target = teacher(batch)
            functional.mse_loss(student(batch), target.detach()).backward()

    way = _the(_profile(train), "without_graph")
    exec(way["lines"], {"teacher": teacher})
    assert _profile(train).peak_bytes == pytest.approx(way["peak_bytes"], rel=0.01)


def test_a_checkpointed_evaluation_keeps_arguments_until_the_calls_return():
    """Its forward has the peak, because it never runs again. `nn.Sequential` keeps the input of each block."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 96), *(nn.Sequential(nn.Linear(96, 96), nn.ReLU()) for _ in range(4)))

    def step():
        _training(model, torch.randn(64, 32))()
        return sum(model(torch.randn(1_024, 32)).square().mean() for _ in range(2)).item()

    way = _the(_profile(step), "checkpoint")
    assert "`model`" in way["way"]
    exec(way["lines"], {"model": model})
    assert _profile(step).peak_bytes == pytest.approx(way["peak_bytes"], rel=0.005)


def test_activations_whose_backward_needs_only_their_result_may_write_over_their_input():
    """The gradients stay the same, bit for bit."""
    model, x = _chain(nn.LeakyReLU), torch.randn(512, 96)
    step = _training(model, x)
    prof = _profile(step)
    way = _the(prof, "in_place")
    exec(way["lines"], {"model": model})
    assert _profile(step).peak_bytes == way["peak_bytes"] < prof.peak_bytes
    plain = _chain(nn.LeakyReLU)
    _training(plain, x)()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


class _Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.activation = nn.Linear(96, 96), nn.LeakyReLU()

    def forward(self, x):
        hidden = self.linear(x)
        return self.activation(hidden) + hidden


def test_an_activation_whose_input_is_read_elsewhere_may_not():
    """The sum reads it after the activation. GELU and SiLU need their input in the backward."""
    x = torch.randn(512, 96)
    for model in (nn.Sequential(*(_Residual() for _ in range(4))), _chain(nn.GELU), _chain(nn.SiLU)):
        assert "in_place" not in _kinds(_profile(_training(model, x)))


def _classifier(dtype, lines=""):
    """Return the training of a classifier whose inputs come in float64, as from NumPy."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 8)
    ).to(dtype)
    optimizer = torch.optim.Adam(model.parameters())
    run_lines(lines, model=model)
    inputs, targets = torch.randn(128, 64, dtype=torch.float64), torch.randint(0, 8, (128,))

    def step():
        optimizer.zero_grad()
        batch = inputs + 0.0  # made in each step
        loss = functional.cross_entropy(model(batch if lines else batch.to(dtype)), targets)
        loss.backward()
        optimizer.step()

    return step


def test_a_model_in_float64_has_half_the_peak_in_float32():
    """The lines convert the inputs of the model, which stay float64 outside."""
    prof = _profile(_classifier(torch.float64))
    way = _the(prof, "float32")
    measured = _profile(_classifier(torch.float64, way["lines"]))
    assert way["basis"] == "estimated"
    assert abs(way["peak_bytes"] / measured.peak_bytes - 1) <= 0.05
    assert way["peak_bytes"] < 0.6 * prof.peak_bytes


def test_a_model_in_float32_with_inputs_in_float64_gets_no_such_advice():
    assert "float32" not in _kinds(_profile(_classifier(torch.float32)))


class _Scaled(nn.Module):
    """Attention whose scores a float64 buffer converts, as a table from NumPy does."""

    def __init__(self, is_double):
        super().__init__()
        self.project = nn.Linear(32, 32)
        table = torch.ones(128, 1, dtype=torch.float64)
        self.register_buffer("table", table if is_double else table.float())

    def forward(self, x):
        rows = self.project(x) * self.table
        weights = (rows @ rows.transpose(1, 2)).softmax(-1)
        return x + weights.type_as(x) @ x


def _with_a_table(*, is_double, lines=""):
    torch.manual_seed(0)
    model = nn.Sequential(*(_Scaled(is_double) for _ in range(3)))
    optimizer = torch.optim.Adam(model.parameters())
    run_lines(lines, model=model)
    x = torch.randn(8, 128, 32)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def test_a_float64_buffer_of_a_float32_model_is_found_with_the_peak_without_its_conversions():
    """In float32, the conversions between the two give back their input."""
    prof = _profile(_with_a_table(is_double=True))
    way = _the(prof, "float32")
    measured = _profile(_with_a_table(is_double=True, lines=way["lines"]))
    assert abs(way["peak_bytes"] / measured.peak_bytes - 1) <= 0.02
    assert way["peak_bytes"] < 0.7 * prof.peak_bytes
    assert "float32" not in _kinds(_profile(_with_a_table(is_double=False)))
