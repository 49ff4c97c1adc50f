"""Plain training has no findings. A choice that costs memory, or a kept graph, has a finding."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import memwatch
from memwatch.analysis.findings.finding import Candidate
from memwatch.analysis.holders.holder import Holder
from memwatch.kinds.findings import FindingKind
from memwatch.kinds.holders import HolderEvidence, HolderKind


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.cells, self.head = (
            nn.Embedding(50, 32),
            nn.LSTM(32, 64, 2, batch_first=True),
            nn.Linear(64, 50),
        )

    def forward(self, tokens):
        return self.head(self.cells(self.embed(tokens))[0]).flatten(0, 1)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True)
        self.embed, self.body = (
            nn.Embedding(50, 64),
            nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        )
        self.head = nn.Linear(64, 50)

    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens))).flatten(0, 1)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.middle, self.up = (
            nn.Conv2d(3, 16, 3, padding=1),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.Conv2d(32, 2, 3, padding=1),
        )

    def forward(self, images):
        skip = self.down(images).relu()
        deep = functional.interpolate(self.middle(functional.max_pool2d(skip, 2)).relu(), scale_factor=2)
        return self.up(torch.cat([skip, deep], 1)).permute(0, 2, 3, 1).flatten(0, 2)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.head = nn.Linear(64, 4), nn.Linear(64, 50)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)) for _ in range(4)]
        )

    def forward(self, x):
        weight, choice = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (choice == number).nonzero().squeeze(1)
            out = out.index_add(0, rows, weight[rows, None].to(x.dtype) * expert(x[rows]).to(x.dtype))
        return self.head(out)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(3)]
        )
        self.head = nn.Linear(64, 50)

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


def perceptron():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 50))


def tokens():
    return torch.randint(0, 50, (8, 16)), torch.randint(0, 50, (128,))


def vectors():
    return torch.randn(128, 64), torch.randint(0, 50, (128,))


def images():
    return torch.randn(4, 3, 16, 16), torch.randint(0, 2, (4 * 16 * 16,))


MODELS = {
    "MLP": (perceptron, vectors),
    "LSTM": (Recurrent, tokens),
    "transformer": (Transformer, tokens),
    "U-Net": (UNet, images),
    "MoE": (Experts, vectors),
    "checkpointed": (Checkpointed, vectors),
}


def plain(model, optimizer, inputs, labels):
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()


def with_autocast(model, optimizer, inputs, labels):
    scaler = torch.amp.GradScaler("cpu")
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = functional.cross_entropy(model(inputs), labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def accumulating(model, optimizer, inputs, labels):
    optimizer.zero_grad()
    for part, of_part in ((inputs, labels), (inputs.clone(), labels)):
        loss = functional.cross_entropy(model(part), of_part) / 2
        loss.backward()
    optimizer.step()


def with_closure(model, optimizer, inputs, labels):
    def closure():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        return loss

    optimizer.step(closure)


STYLES = {
    "AdamW": (torch.optim.AdamW, plain),
    "autocast": (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9), with_autocast),
    "autocast with Adam": (lambda parameters: torch.optim.Adam(parameters, fused=True), with_autocast),
    "accumulation": (lambda parameters: torch.optim.Adam(parameters, fused=True), accumulating),
    "LBFGS": (lambda parameters: torch.optim.LBFGS(parameters, max_iter=2), with_closure),
}


EVERY_STYLE = ("MLP", "transformer")
# On a processor with AVX-512, the workspace of a kernel makes the peak. Otherwise autocast's copies of the experts
# are 5.3 % of the peak if a weight has only one state, and the finding about them is true.
OF_AUTOCAST = {} if torch.cpu._is_avx512_supported() else {"MoE": "autocast with Adam"}
RUNS = [
    (name, style)
    for name in MODELS
    for style in STYLES
    if name in EVERY_STYLE or style in ("AdamW", OF_AUTOCAST.get(name, "autocast"))
]


@pytest.mark.parametrize(("name", "style"), RUNS)
def test_plain_training_has_no_findings(name, style):
    """A training loop as in the tutorials stays silent, with and without step marks."""
    torch.manual_seed(0)
    make, batch = MODELS[name]
    make_optimizer, step = STYLES[style]
    # oneDNN's LSTM in bfloat16 needs AVX-512; on other processors the program itself fails
    uses_onednn = name != "LSTM" or style != "autocast" or torch.cpu._is_avx512_supported()
    with torch.backends.mkldnn.flags(enabled=uses_onednn), memwatch.profile() as prof:
        model = make()
        optimizer = make_optimizer(model.parameters())
        for _ in range(3):
            step(model, optimizer, *batch())
            if style in ("AdamW", "accumulation"):
                prof.step()
    # its peak is in the optimizer's step
    expected = {"fused"} if (name, style) == ("MLP", "AdamW") else set()
    assert kinds(prof) == expected, prof.findings


def kinds(prof):
    return {finding.kind for finding in prof.findings}


def test_a_foreach_step_is_told_of_where_its_temporaries_make_the_peak():
    """Many parameters at once: the step's temporaries are the peak, and foreach=False would not make them."""
    model = nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(12)])

    def train(**choice):
        optimizer = torch.optim.Adam(model.parameters(), **choice)
        with memwatch.profile() as prof:
            for _ in range(2):
                model(torch.ones(2, 256)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return prof

    many, one = train(foreach=True), train(foreach=False)
    (finding,) = (finding for finding in many.findings if finding.kind == "optimizer")
    assert "foreach=False" in finding.advice
    assert "fall to about" in finding.advice  # the allocations of the loop were not recorded
    assert finding.predicted_peak_bytes < many.peak_bytes
    assert kinds(one) <= {"fused"}
    assert many.peak_increase_bytes > one.peak_increase_bytes


@pytest.mark.parametrize(
    "make_optimizer",
    [
        torch.optim.AdamW,
        lambda parameters, **choice: torch.optim.Adagrad(parameters, weight_decay=0.1, **choice),
        lambda parameters, **choice: torch.optim.SGD(parameters, momentum=0.9, weight_decay=0.1, **choice),
    ],
    ids=["AdamW", "Adagrad", "SGD"],
)
def test_a_step_whose_temporaries_a_fused_step_would_not_make_is_told_of(make_optimizer):
    """One large parameter: the peak is where the step computes its update, and falls as predicted."""

    def train(**choice):
        model = nn.Embedding(4_000, 64)
        optimizer = make_optimizer(model.parameters(), **choice)
        with memwatch.profile() as prof:
            for _ in range(2):
                model(torch.arange(16)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return prof

    plain, fused = train(), train(fused=True)
    (finding,) = plain.findings
    assert finding.kind == "fused"
    assert "fused=True" in finding.advice
    assert finding.predicted_peak_bytes == pytest.approx(fused.peak_bytes, rel=0.001)
    assert kinds(fused) == set()


def test_a_step_of_an_optimizer_without_a_fused_one_is_no_finding():
    model = nn.Embedding(4_000, 64)
    optimizer = torch.optim.NAdam(model.parameters())
    with memwatch.profile() as prof:
        for _ in range(2):
            model(torch.arange(16)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert kinds(prof) == set()


def test_a_small_saving_of_a_foreach_step_is_told_of_too():
    """A change of any kind is a finding if it saves 5 % of the peak."""
    model = nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(12)])
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    activations = [torch.ones(3 * 2**20)]
    with memwatch.profile() as prof:
        beside = torch.ones(5 * 2**20)
        for _ in range(2):
            model(torch.ones(2, 256)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        beside.add_(activations[0].sum())
    assert "optimizer" in kinds(prof)
    (finding,) = (finding for finding in prof.findings if finding.kind == "optimizer")
    assert finding.nbytes < 0.2 * prof.peak_increase_bytes


def test_a_converted_copy_that_autograd_saves_too_is_told_of():
    """One activation in two dtypes, both saved: converting first saves one of them."""
    x = torch.ones(1024, 256, requires_grad=True)
    with memwatch.profile() as prof:
        hidden = x * 2
        exact = hidden.sin().sum()
        rough = hidden.double().cos().sum()
        del hidden
        (exact + rough).backward()
    assert "twice" in kinds(prof)


def test_every_byte_at_the_peak_has_a_holder():
    """If C++ alone holds a row of at_peak, the op that made it explains it."""
    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters())
    with memwatch.profile() as prof:
        for _ in range(3):
            plain(model, optimizer, *tokens())
    peak = prof.at_peak
    assert (peak["holder"] != "").all()
    assert (peak["holder_kind"] != "unknown").all()
    only = peak[peak["holder_kind"] == "C++ only"]["holder"]
    assert only.str.contains("made by ", regex=False).all()
    saved = peak[peak["holder_kind"] == "autograd node"]
    assert saved["path"].str.contains("local variable of|argument of").any()


def loss_under_autocast(*, in_float32):
    model = torch.nn.Linear(64, 512, bias=False)
    target = torch.zeros(256, 512, dtype=torch.bfloat16)
    with memwatch.profile() as prof:
        with torch.autocast("cpu", torch.bfloat16):
            out = model(torch.ones(256, 64))
            with torch.autocast("cpu", torch.bfloat16, enabled=in_float32):
                loss = torch.nn.functional.mse_loss(out, target)
        loss.backward()
    return prof


def test_float32_copies_that_autocast_makes_for_a_loss_are_found():
    """A loss runs in float32 under autocast, and saves copies of both sides; half of them is the least to be spared."""
    copied, plain = (loss_under_autocast(in_float32=each) for each in (True, False))
    (found,) = [finding for finding in copied.findings if finding.kind == "float32"]
    assert found.nbytes == 2 * 256 * 512 * 4
    assert "enabled=False" in found.advice
    assert found.predicted_peak_bytes == copied.peak_bytes - found.nbytes // 2
    assert plain.peak_bytes <= found.predicted_peak_bytes
    assert not [finding for finding in plain.findings if finding.kind == "float32"]


def test_what_is_reached_through_a_holder_is_no_other_holder():
    """An output that has its tensor as an item and as an attribute is one holder, because one `del` drops both."""

    class Output(dict):
        """Items and attributes, as libraries return them."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            made = Output(logits=self.last(self.first(x).relu()))
            made.logits = made["logits"]
            return made

    net, x = Net(), torch.ones(512, 64)
    with memwatch.profile() as prof:
        for _ in range(2):
            output = net(x)
            output.logits.sum().backward()
    (told,) = (each.holder for each in prof.findings if each.kind == "output")
    assert told.count("output") == 1


def test_what_each_of_a_hundred_steps_keeps_is_found():
    """Each step has its own highest moment: without the bytes of one of them, the next one is as high."""
    layers = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(6)]
    model = nn.Sequential(*layers, nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with memwatch.profile(holders=False) as prof:
        for _ in range(100):
            loss = model(torch.ones(64, 256)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert "gradient" in [finding.kind for finding in prof.findings]


def _sines_of_two_dtypes(*, first=torch.float32, function=torch.neg):
    """Record a program that needs a tensor in a dtype, and then in bfloat16."""
    x = torch.ones(1_024, 1_024, requires_grad=True)
    with memwatch.profile() as prof:
        for _ in range(2):
            hidden = function(x).to(first)
            one = hidden.sin().sum()
            other = hidden.bfloat16().cos().sum()
            del hidden
            torch.ones(8 * 2**20)  # the peak
            (one + other).backward()
            x.grad = None
            del one, other
    return prof


def test_a_narrower_copy_could_take_the_place_of_its_source():
    """Then autograd saves two bytes for each number, and not six."""
    prof = _sines_of_two_dtypes()
    (finding,) = (finding for finding in prof.findings if finding.kind == "twice")
    changed = _sines_of_two_dtypes(first=torch.bfloat16)
    assert finding.nbytes == 4 * 2**20
    assert finding.predicted_peak_bytes == pytest.approx(changed.peak_bytes, rel=0.001)
    assert "twice" not in kinds(changed)


def test_a_source_that_the_op_before_saves_too_stays():
    """A tanh saves its result: no conversion can come before that."""
    assert "twice" not in kinds(_sines_of_two_dtypes(function=torch.tanh))


def test_a_candidate_without_an_allocation_has_no_stretch_of_its_life():
    """Two findings may not spare the same bytes."""
    holder = Holder(HolderKind.AUTOGRAD_NODE, "copy", evidence=HolderEvidence.STRUCTURE)
    both = Candidate(FindingKind.TWICE, holder, (), [1, 2], 8, spans=((1, 0, 5), (2, 3, 9)))
    left = both.without({1})
    assert (left.allocations, left.spans) == ([2], ((2, 3, 9),))
