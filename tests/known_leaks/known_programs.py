"""The known leaks as small programs with the real libraries, each with the same program and the remedy."""

from __future__ import annotations

import logging
import warnings

import torch
from torch import nn

WIDE = 128


def step(model, optimizer):
    model(torch.randn(4, WIDE)).square().sum().backward()
    optimizer.step()


def prepared_by_accelerate(*, mended):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)

    def fit():
        if mended:
            accelerator.free_memory()
        model = nn.Linear(WIDE, WIDE)
        step(*accelerator.prepare(model, torch.optim.AdamW(model.parameters())))

    return fit


def states_of_torchmetrics(*, mended):
    from torchmetrics.classification import BinaryAUROC

    metric = BinaryAUROC()

    def validate():
        metric.update(torch.rand(4096), torch.randint(0, 2, (4096,)))
        if mended:
            metric.compute()
            metric.reset()

    return validate


def cached_method_of_transformers(*, mended):
    from transformers.pytorch_utils import compile_compatible_method_lru_cache

    @compile_compatible_method_lru_cache(maxsize=32)
    def anchors_of(rows):
        return torch.ones(rows, rows)

    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(WIDE, WIDE)

        @compile_compatible_method_lru_cache(maxsize=32)
        def anchors(self, rows):
            return torch.ones(rows, rows)

        def forward(self, x):
            return self.head(x) + (anchors_of(WIDE) if mended else self.anchors(WIDE)).sum()

    return lambda: Detector()(torch.randn(4, WIDE))


def fit_of_lightning(*, mended):
    import gc

    import lightning.pytorch as lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(WIDE, WIDE)

        def training_step(self, batch, index):
            return self.inner(batch).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of few workers and no logger
            trainer = lightning.Trainer(
                max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                enable_progress_bar=False, enable_model_summary=False,
            )  # fmt: skip
            trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(4, WIDE), batch_size=4))
        del trainer
        if mended:
            gc.collect()

    return fit


def backward_that_creates_a_graph(*, mended):
    def penalty():
        model = nn.Linear(WIDE, WIDE)
        loss = model(torch.randn(4, WIDE)).square().sum()
        if mended:
            return float(torch.autograd.grad(loss, model.weight, create_graph=True)[0].detach().sum())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss.backward(create_graph=True)
        return 0.0

    return penalty


class OutputOnCtx(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.result = x.exp()
        return ctx.result

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.result


class OutputSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        result = x.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, gradient):
        (result,) = ctx.saved_tensors
        return gradient * result


def output_on_ctx(*, mended):
    function = OutputSaved if mended else OutputOnCtx
    return lambda: function.apply(torch.randn(4096, requires_grad=True))


class Run:
    def __init__(self, *, mended):
        self.rate = 1.0
        self.model = nn.Linear(WIDE, WIDE)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        rate = self.rate
        function = (lambda epoch: rate) if mended else (lambda epoch: self.rate)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, function)

    def step(self):
        step(self.model, self.optimizer)
        self.schedule.step()


class RunOfMethod(Run):
    def __init__(self, *, mended):
        super().__init__(mended=True)
        function = rate_of if mended else self.rate_at
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, function)

    def rate_at(self, epoch):
        return rate_of(epoch)


def rate_of(_epoch):
    return 1.0


def method_of_scheduler(*, mended):
    return lambda: RunOfMethod(mended=mended).step()


def lambda_of_scheduler(*, mended):
    return lambda: Run(mended=mended).step()


PROGRAMS = {
    # the library, the end of the link, and the program
    "accelerate": ("accelerate", "accelerate/issues/84", prepared_by_accelerate),
    "torchmetrics": ("torchmetrics", "torchmetrics/issues/3294", states_of_torchmetrics),
    "transformers": ("transformers", "transformers/issues/45412", cached_method_of_transformers),
    "lightning": ("lightning", "pytorch-lightning/issues/18289", fit_of_lightning),
    "create_graph": ("torch", "pytorch/issues/7343", backward_that_creates_a_graph),
    "ctx": ("torch", "pytorch/issues/25340", output_on_ctx),
    "LambdaLR of a method": ("torch", "pytorch/issues/47589", method_of_scheduler),
    "LambdaLR": ("torch", "pytorch/issues/47589", lambda_of_scheduler),
}
