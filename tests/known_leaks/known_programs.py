"""The known leaks as small programs, each with the same program and the remedy.

Some use the real library. The others use a module under `site-packages`, which keeps tensors as the library did: it
has the names of the library's files, classes and attributes, and none of its code.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from memwatch.kinds.known_leaks import KNOWN_LEAKS

WIDE = 128
STAND_INS = Path(__file__).parent / "site-packages"

replaced = {}  # by the name of a module that a stand-in replaces: the library's own module, or None


def stand_in(path, *, mended):
    """Return the module that stands for one of a library, as the library was before or after it was mended."""
    name = path.removesuffix(".py").replace("/", ".")
    spec = importlib.util.spec_from_file_location(name, STAND_INS / path)
    module = importlib.util.module_from_spec(spec)
    module.FIXED = mended
    replaced.setdefault(name, sys.modules.get(name))
    sys.modules[name] = module  # where memwatch looks for the file of a class
    spec.loader.exec_module(module)
    return module


def forget_stand_ins():
    """Put the libraries' own modules back."""
    for name, module in replaced.items():
        sys.modules.pop(name, None)  # an inner session of pytest may have dropped it
        if module is not None:
            sys.modules[name] = module
    replaced.clear()


def entry_of(program):
    """Return the entry of a program in the table of known leaks."""
    (entry,) = (each for each in KNOWN_LEAKS if each.link.endswith("/" + program.link))
    return entry


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


class KeepingMethod(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x, *parameters):
        ctx.function = function
        return function(x)

    @staticmethod
    def backward(ctx, gradient):
        return None, gradient, gradient


def method_on_ctx(*, mended):
    class Solver(nn.Module):
        def __init__(self):
            super().__init__()
            self.rate = nn.Parameter(torch.ones(WIDE, WIDE))
            solved = KeepingMethod.apply(self.forward, torch.ones(WIDE, WIDE), self.rate)
            self.solved = solved.detach() if mended else solved

        def forward(self, x):
            return self.rate * x

    def solve():
        Solver()

    return solve


class ViewSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mended):
        result = x.exp()
        ctx.save_for_backward(result if mended else result.view(-1))
        return result

    @staticmethod
    def backward(ctx, gradient):
        (result,) = ctx.saved_tensors
        return gradient * result.view_as(gradient), None


def view_of_output(*, mended):
    def run():
        ViewSaved.apply(torch.randn(WIDE, WIDE, requires_grad=True), mended)

    return run


def methods_of_metric(*, mended):
    from torchmetrics.classification import MulticlassAccuracy

    def new():
        return MulticlassAccuracy(num_classes=8, average="micro", multidim_average="samplewise")

    again = new()

    def measure():
        metric = again if mended else new()
        metric(torch.randint(0, 8, (1024, 4)), torch.randint(0, 8, (1024, 4)))
        if mended:
            metric.reset()

    return measure


def loop_that_ends_early(*, mended):
    state = stand_in("accelerate/state.py", mended=mended).GradientState

    class Loader:
        def __init__(self, dataset):
            self.dataset, self.gradient_state = dataset, state()

        def __iter__(self):
            self.gradient_state._add_dataloader(self)
            yield from self.dataset.split(1024)
            self.gradient_state._remove_dataloader(self)

    def fit():
        for _ in Loader(torch.randn(4096)):
            break

    return fit


def images_of_many_sizes(*, mended):
    generator = stand_in("torchvision/models/detection/rpn.py", mended=mended).AnchorGenerator()
    heights = iter(range(64, 10_000))

    def detect():
        generator(torch.zeros(1, 8, next(heights), 32))

    return detect


def evaluation_in_training_mode(*, mended):
    model = nn.Sequential(nn.Linear(WIDE, WIDE))
    stand_in("opacus/autograd_grad_sample.py", mended=mended).add_hooks(model)

    def evaluate():
        with torch.no_grad():
            model(torch.randn(32, WIDE))

    return evaluate


def hooks_of_each_explanation(*, mended):
    library = stand_in("pytorch_grad_cam/activations_and_gradients.py", mended=mended)
    model = nn.Sequential(nn.Linear(WIDE, WIDE), nn.ReLU())
    x = torch.randn(4, WIDE, requires_grad=True)

    def explain():
        explained = library.ActivationsAndGradients(model, model[0])
        explained(x).sum().backward()
        model.zero_grad()
        explained.release()

    return explain


def hook_of_cached_mean(*, mended):
    library = stand_in("gpytorch/models/exact_prediction_strategies.py", mended=mended)

    def predict():
        library.DefaultPredictionStrategy(torch.randn(4096, requires_grad=True)).mean_cache.sum().item()

    return predict


def method_as_hook_of_module(*, mended):
    library = stand_in("gpytorch/module.py", mended=mended)

    class ExactGP(library.Module):
        def __init__(self):
            super().__init__()
            self.train_inputs = torch.randn(64, 64)

    def fit():
        model = ExactGP()
        if mended:
            model._load_state_dict_pre_hooks.clear()

    return fit


def hooks_of_optimizer(*, mended):
    library = stand_in("deepspeed/runtime/bf16_optimizer.py", mended=mended)

    def train():
        model = nn.Linear(WIDE, WIDE)
        optimizer = library.BF16_Optimizer(model.parameters())
        model(torch.randn(4, WIDE)).sum().backward()
        optimizer.destroy()

    return train


def outputs_of_micro_batches(*, mended):
    library = stand_in("verl/workers/engine/fsdp/transformer_impl.py", mended=mended)
    engine = library.FSDPEngineWithLMHead(nn.Linear(WIDE, 512))
    return lambda: engine.forward_backward_batch([torch.randn(64, WIDE) for _ in range(4)])


def inputs_of_hooks(*, mended):
    library = stand_in("zennit/core.py", mended=mended)
    layer = nn.Linear(WIDE, WIDE)

    def attribute():
        hook = library.LinearHook()
        hook.register(layer)
        layer(torch.randn(4, WIDE, requires_grad=True)).sum().backward()
        layer.zero_grad()
        hook.remove()

    return attribute


def handlers_of_engine(*, mended):
    library = stand_in("ignite/engine/engine.py", mended=mended)

    def fit():
        model = nn.Linear(WIDE, WIDE)
        trainer = library.Engine(lambda engine, batch: model(batch).sum().item())
        trainer.add_event_handler("completed", lambda engine: None)
        trainer.run([torch.randn(4, WIDE)])

    return fit


def table_of_modules(*, mended):
    library = stand_in("transformer_lens/hook_points.py", mended=mended)

    class Model(library.HookedRootModule):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(WIDE, WIDE)
            self.setup()

    def load():
        Model()

    return load


class Program(NamedTuple):
    """A program with one known leak.

    Attributes:
        library: the library that must be installed; "" if a module stands for it.
        link: the end of the entry's link.
        make: returns a function that leaks by each call, or its corrected twin.
        holder: a part of the reference that the leak names.
    """

    library: str
    link: str
    make: object
    holder: str


PROGRAMS = {
    "create_graph": Program("torch", "pytorch/issues/7343", backward_that_creates_a_graph, ".grad"),
    "ctx": Program("torch", "pytorch/issues/25340", output_on_ctx, ".result"),
    "method on ctx": Program("torch", "pytorch/issues/52140", method_on_ctx, ".function"),
    "view of output": Program("torch", "pytorch/issues/94990", view_of_output, "saved tensors[0]"),
    "LambdaLR of a method": Program("torch", "pytorch/issues/47589", method_of_scheduler, "rate_at"),
    "LambdaLR": Program("torch", "pytorch/issues/47589", lambda_of_scheduler, "`self`"),
    "loaders": Program("", "accelerate/pull/3391", loop_that_ends_early, "dataloader_references"),
    "torchvision": Program("", "vision/issues/1689", images_of_many_sizes, "._cache"),
    "opacus": Program("", "opacus/issues/176", evaluation_in_training_mode, ".activations"),
    "grad-cam": Program("", "pytorch-grad-cam/issues/132", hooks_of_each_explanation, "ward_hooks"),
    "gpytorch": Program("", "gpytorch/issues/2631", hook_of_cached_mean, "._memoize_cache"),
    "gpytorch's modules": Program(
        "", "gpytorch/issues/2649", method_as_hook_of_module, "_load_state_dict_pre_hooks"
    ),
    "deepspeed": Program("", "DeepSpeed/issues/5496", hooks_of_optimizer, ".grad_accs"),
    "zennit": Program("", "zennit/issues/11", inputs_of_hooks, ".input"),
    "ignite": Program("", "ignite/issues/3438", handlers_of_engine, "._event_handlers"),
    "transformer-lens": Program("", "TransformerLens/issues/290", table_of_modules, ".mod_dict"),
    # from here on each imports a library, and the searches of later programs take longer
    "torchmetrics": Program("torchmetrics", "torchmetrics/issues/3294", states_of_torchmetrics, ".preds"),
    "metrics": Program("torchmetrics", "torchmetrics/issues/1949", methods_of_metric, "MulticlassAccuracy"),
    "accelerate": Program("accelerate", "accelerate/issues/84", prepared_by_accelerate, "._models"),
    "transformers": Program(
        "transformers", "transformers/issues/45412", cached_method_of_transformers, "lru_cache of"
    ),
    "lightning": Program("lightning", "pytorch-lightning/issues/18289", fit_of_lightning, "trainer"),
}
"""Programs whose calls leak."""

WITHIN_ONE_CALL = {"verl": Program("", "verl/issues/6698", outputs_of_micro_batches, "`output_lst`")}
"""Programs that keep memory for the time of one call."""
