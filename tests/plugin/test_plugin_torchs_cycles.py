"""Cycles that torch's own code closes are listed under `--memwatch-leaks=all`; the program's are leaks."""

from __future__ import annotations

MODEL = """
    import torch
    from torch import nn
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(64, 64)
            self.rest = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        def forward(self, x): return self.rest(self.first(x))
    INPUT = torch.ones(2, 64)
    """


def test_cycles_of_torch_do_not_fail_a_test(session):
    """A traced module and its graph, the configurations of quantization, modules made by passes over a graph."""
    source = f"""{MODEL}
    import torch.fx.experimental.optimization as optimization
    import torch.ao.quantization as quantization
    def test_traced(): torch.fx.symbolic_trace(Model())(INPUT)
    def test_interpreted(): torch.fx.Interpreter(torch.fx.symbolic_trace(Model())).run(INPUT)
    def test_transformed(): torch.fx.Transformer(torch.fx.symbolic_trace(Model())).transform()
    def test_fused():
        optimization.fuse(nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)).eval())
    def test_quantized(): quantization.quantize_dynamic(Model(), {{nn.Linear}})
    def test_prepared():
        model = Model()
        model.qconfig = quantization.default_qconfig
        quantization.convert(quantization.prepare(model))
    """
    result = session(source, "--memwatch-leaks=all", "-W", "ignore")
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["Not counted: * cycles (*) closed by * or torch itself"])


def test_cycles_of_the_program_through_torchs_objects_are_leaks(session):
    """An attribute that the program sets on a module of torch is the program's, however private its name is."""
    source = f"""{MODEL}
    def test_parent():
        model = nn.Sequential(nn.Linear(64, 64))
        model[0].parent = [model]
    def test_private_parent():
        model = nn.Sequential(nn.Linear(64, 64))
        object.__setattr__(model[0], "_parent", model)
    def test_traced():
        traced = torch.fx.symbolic_trace(Model())
        traced.first._traced = [traced]
    """
    session(source, "--memwatch-leaks=all", "-W", "ignore").assert_outcomes(failed=3)
