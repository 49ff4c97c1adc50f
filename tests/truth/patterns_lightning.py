"""Programs that a Lightning `Trainer` runs: it calls `training_step`, never the module's own forward."""

from __future__ import annotations

import logging
import tempfile
import warnings

import lightning
import torch
import torchmetrics
from lightning.pytorch import callbacks
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from truth_facts import (
    GRAD,
    GRADIENT,
    LIBRARY,
    RESULT,
    SAVED,
    UNNAMED,
    Fact,
    Ran,
    f32,
    pattern,
    var,
)  # fmt: skip

import memwatch

ROWS, IN, HIDDEN, OUT = 499, 47, 317, 29
WEIGHTS = ((HIDDEN, IN), (OUT, HIDDEN))


def trainer(**options):
    options = {"max_steps": 3, "enable_checkpointing": False, **options}
    warnings.filterwarnings("ignore", module=r"lightning\b")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    return lightning.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, **options
    )


def mlp(inputs=IN, hidden=HIDDEN, outputs=OUT):
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def training_step(self, batch, _):
        return self.net(batch).pow(2).mean()  # peak: step

    def configure_optimizers(self):
        return torch.optim.Adam(self.net.parameters(), fused=True)


def loader(rows=ROWS, count=3):
    return of_batches([torch.randn(rows, IN) for _ in range(count)])  # peak: loader


def of_batches(batches):
    """Return a loader of finished batches: Lightning takes a list for one of loaders."""
    return DataLoader(batches, batch_size=None)


BATCHES = rf"local|argument|attribute|{SAVED}"


def training(rows=ROWS, mark="step", net="net", hidden=HIDDEN):
    """Facts about the forward and the backward of an `mlp` that a marked line calls."""
    return (
        Fact(f32(rows, hidden), "activation", mark, SAVED, rf"{net}\.1", "relu"),
        Fact(f32(rows, hidden), "temporary", mark, f"{UNNAMED}|{RESULT}", rf"{net}\.0", "addmm"),
        Fact(
            f32(rows, hidden), "temporary", mark, GRADIENT, rf"{net}\.[12]", "mm.default|threshold_backward"
        ),
        Fact(f32(rows, OUT), "temporary", mark, f"{GRADIENT}|{UNNAMED}|{RESULT}", rf"({net}\.2)?|.*"),
        Fact(f32(rows, OUT), "activation", mark, SAVED, rf"{net}\.2", "addmm"),
        Fact(f32(rows, IN), "input|held", "loader", BATCHES),
        Fact(f32(hidden, IN), "gradient|temporary", mark, f"{GRAD}|{GRADIENT}", rf"{net}\.0", "mm"),
        Fact(f32(OUT, hidden), "gradient|temporary", mark, f"{GRAD}|{GRADIENT}", rf"{net}\.2", "mm"),
    )


@pattern(*training())
def lit_automatic_optimization():
    lit = Lit()
    with memwatch.profile() as prof:
        batches = loader()
        trainer().fit(lit, batches)
    return Ran(prof, {"lit": lit})


class LitGan(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.critic = mlp(16, 167, 24), mlp(24, 139, 1)

    def training_step(self, batch, _):
        makes, judges = self.optimizers()
        fake = self.generator(torch.randn(len(batch), 16))  # peak: fake
        judge = self.critic(batch).mean()  # peak: judge real
        self.manual_backward(self.critic(fake.detach()).mean() - judge)  # peak: judge fake
        judges.step()
        judges.zero_grad()
        self.manual_backward(-self.critic(fake).mean())  # peak: train generator
        makes.step()
        makes.zero_grad()

    def configure_optimizers(self):
        return [torch.optim.Adam(net.parameters(), fused=True) for net in (self.generator, self.critic)]


JUDGED = "judge fake|judge real|train generator"


@pattern(
    Fact(f32(512, 167), "activation", "fake", SAVED, r"generator\.1", "relu"),
    Fact(f32(512, 167), "temporary", "fake", f"{UNNAMED}|{RESULT}", r"generator\.0", "addmm"),
    Fact(f32(512, 167), "temporary", "fake", GRADIENT, r"generator\.[12]", "mm.default|threshold_backward"),
    Fact(f32(512, 24), "activation|input", "fake", f"{SAVED}|{var('fake')}", r"generator\.2", "addmm"),
    Fact(f32(512, 24), "input|held", "real", f"{SAVED}|{var('batch')}|attribute", "", "randn"),
    Fact(f32(512, 16), "input", "fake", SAVED, "", "randn"),
    Fact(f32(512, 139), "activation", JUDGED, SAVED, r"critic\.1", "relu"),
    Fact(f32(512, 139), "temporary", JUDGED, UNNAMED, r"critic\.0", "addmm"),
    Fact(f32(512, 139), "temporary", JUDGED, GRADIENT, r"critic\.[12]", "mm.default|threshold_backward"),
)
def lit_manual_gan():
    lit = LitGan()
    real = DataLoader(TensorDataset(torch.randn(1024, 24)), batch_size=512, collate_fn=only)
    with memwatch.profile() as prof:
        trainer(max_steps=4).fit(lit, real)
    return Ran(prof, {"lit": lit})


def only(rows):
    return torch.stack([row for (row,) in rows])  # peak: real


@pattern(
    *training(16),
    *(
        Fact(
            f32(*shape), "temporary|gradient", f"{LIBRARY}|fit accumulated", f"{UNNAMED}|{RESULT}|{GRADIENT}"
        )
        for shape in WEIGHTS
    ),
)
def lit_accumulation_and_clipping():
    lit = Lit()
    with memwatch.profile() as prof:
        batches = loader(16, 4)
        trainer(accumulate_grad_batches=2, gradient_clip_val=1.0).fit(lit, batches)  # peak: fit accumulated
    return Ran(prof, {"lit": lit})


@pattern(
    *training(),
    *(
        Fact(f32(*shape), "held|parameter", LIBRARY, r"_average_model|parameter", ".*", "clone")
        for shape in WEIGHTS
    ),
)
def lit_moving_average():
    lit = Lit()
    with memwatch.profile() as prof:
        batches = loader()
        trainer(callbacks=[callbacks.EMAWeightAveraging()]).fit(lit, batches)
    return Ran(prof, {"lit": lit})


@pattern(
    *training(),
    *(
        Fact(f32(*shape), "held|parameter", LIBRARY, r"_average_model|parameter", ".*", "clone")
        for shape in WEIGHTS
    ),
)
def lit_stochastic_weight_averaging():
    lit = Lit()
    with memwatch.profile() as prof:
        batches = loader()
        averaging = callbacks.StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1)
        trainer(max_steps=-1, max_epochs=3, callbacks=[averaging]).fit(lit, batches)
    return Ran(prof, {"lit": lit})


class WithMetric(Lit):
    def __init__(self):
        super().__init__()
        self.seen = torchmetrics.CatMetric()

    def validation_step(self, batch, _):
        self.seen.update(self.net(batch)[:, 0].clone())  # peak: seen

    def on_validation_epoch_end(self):
        assert len(self.seen.compute()) == 4 * 40_009
        self.seen.reset()


@pattern(
    Fact(f32(40_009), "held", f"seen|{LIBRARY}", r"\.value|seen", r".*", "clone|index|float|to"),
    Fact(f32(4 * 40_009), "temporary", LIBRARY, f"{UNNAMED}|local|argument", ".*", "cat|clone"),
    Fact(f32(40_009, 7), "held|input", "points", r"batches|attribute|local|argument"),
)
def lit_metric_that_collects():
    lit = WithMetric()
    lit.net = nn.Linear(7, 1)
    with memwatch.profile() as prof:
        batches = of_batches([torch.randn(40_009, 7) for _ in range(4)])  # peak: points
        trainer(num_sanity_val_steps=0).validate(lit, batches)
    return Ran(prof, {"lit": lit})


class Validated(Lit):
    def validation_step(self, batch, _):
        h = self.net[0](batch)  # peak: validated hidden
        y = self.net[2](h.relu())  # peak: validated
        return y.pow(2).mean()


@pattern(
    Fact(f32(1999, HIDDEN), "temporary", "validated hidden", var("h"), r"net\.0", "addmm"),
    Fact(f32(1999, HIDDEN), "temporary", "validated", UNNAMED, "", "relu"),
    Fact(f32(1999, OUT), "temporary", "validated", RESULT, r"net\.2"),
    Fact(f32(1999, IN), "input|held", "loader", BATCHES),
    Fact(f32(64, IN), "input|held", "loader", BATCHES),
)
def lit_validation():
    lit = Validated()
    with memwatch.profile() as prof:
        batches = loader(64)
        trainer(max_steps=3, num_sanity_val_steps=1).fit(lit, batches, loader(1999))
    return Ran(prof, {"lit": lit})


@pattern(*training(64))
def lit_checkpoint():
    lit = Lit()
    with tempfile.TemporaryDirectory() as folder, memwatch.profile() as prof:
        batches = loader(64)
        saves = callbacks.ModelCheckpoint(folder, every_n_train_steps=1)
        trainer(enable_checkpointing=True, callbacks=[saves]).fit(lit, batches)
    return Ran(prof, {"lit": lit})


class Predicts(Lit):
    def predict_step(self, batch, _):
        return self.net(batch)  # peak: predicted


@pattern(
    Fact(f32(ROWS, HIDDEN), "temporary", "predicted", f"{UNNAMED}|{RESULT}|{var('input')}", r"net\.[01]"),
    Fact(f32(ROWS, OUT), "held", "predicted", r"predictions|local|attribute", r"net\.2"),
    Fact(f32(ROWS, OUT), "temporary", "predicted", f"{RESULT}|predictions", r"net\.2"),
    Fact(f32(ROWS, IN), "input|held", "loader", BATCHES),
)
def lit_predict():
    lit = Predicts()
    with memwatch.profile() as prof:
        batches = loader(count=12)
        predictions = trainer().predict(lit, batches)
    assert len(predictions) == 12
    return Ran(prof, {"lit": lit})


def half(*shape):
    return f32(*shape) // 2


@pattern(
    Fact(half(ROWS, HIDDEN), "activation", "step", SAVED, r"net\.1", "relu"),
    Fact(half(ROWS, HIDDEN), "temporary", "step", f"{UNNAMED}|{RESULT}", r"net\.0", "addmm"),
    Fact(half(ROWS, HIDDEN), "temporary", "step", GRADIENT, r"net\.[12]", "mm.default|threshold_backward"),
    Fact(half(ROWS, IN), "activation", "step", SAVED, r"net\.0"),
    Fact(half(ROWS, OUT), "temporary", "step", f"{UNNAMED}|{RESULT}|{GRADIENT}", r"(net\.2)?|.*"),
    Fact(f32(ROWS, OUT), "activation|temporary", "step", f"{UNNAMED}|{RESULT}|{GRADIENT}|{SAVED}", ".*"),
    *(Fact(half(*shape), "activation", "step", f"{SAVED}|autocast", r"net\.[02]") for shape in WEIGHTS),
    *(Fact(half(*shape), "temporary", "step", GRADIENT, r"net\.[02]", "mm.default") for shape in WEIGHTS),
    *training(),
)
def lit_bfloat16():
    lit = Lit()
    with memwatch.profile() as prof:
        batches = loader()
        trainer(precision="bf16-mixed").fit(lit, batches)
    return Ran(prof, {"lit": lit})


class Collects(Lit):
    def __init__(self):
        super().__init__()
        self.outputs = []

    def training_step(self, batch, _):
        y = self.net(batch)  # peak: collected
        loss = y.pow(2).mean()  # peak: loss
        self.outputs.append({"y": y, "loss": loss})
        return loss


@pattern(
    *training(mark="collected"),
    Fact(f32(ROWS, OUT), "held|activation", "collected", rf"{SAVED}|outputs", r"net\.2", "addmm"),
    Fact(f32(ROWS, OUT), "temporary", "loss", f"{UNNAMED}|{RESULT}|{GRADIENT}", ".*", "pow|mul|div|expand"),
)
def lit_outputs_that_are_kept():
    lit = Collects()
    with memwatch.profile() as prof:
        batches = loader(count=6)
        trainer(max_steps=6).fit(lit, batches)
    return Ran(prof, {"lit": lit})


class Module(lightning.LightningDataModule):
    def setup(self, stage):
        self.points = TensorDataset(torch.randn(4 * ROWS, IN))  # peak: points set

    def train_dataloader(self):
        return DataLoader(self.points, batch_size=ROWS)


class OfPairs(Lit):
    def training_step(self, batch, _):
        (x,) = batch
        return self.net(x).pow(2).mean()  # peak: step of pairs


@pattern(
    Fact(f32(4 * ROWS, IN), "held|input", "points set", r"points|dataset|tensors|data"),
    Fact(f32(ROWS, IN), "input", f"fit data|{LIBRARY}|", BATCHES + "|" + var("x"), "", "stack|cat|index"),
    *training(mark="step of pairs"),
)
def lit_data_module():
    lit = OfPairs()
    with memwatch.profile() as prof:
        trainer().fit(lit, datamodule=Module())  # peak: fit data
    return Ran(prof, {"lit": lit})
