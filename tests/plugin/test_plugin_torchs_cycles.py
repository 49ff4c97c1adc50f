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


CLASS_PER_CALL = """
    import ctypes, torch
    from torch import fx
    class Forward(torch.nn.Module):
        def forward(self, x):
            y = x * 2
            return y, (y, x * 3)
    class Backward(torch.nn.Module):
        def forward(self, gradient): return gradient * 2
    def hold_in_c(obj): ctypes.pythonapi.Py_IncRef(ctypes.py_object(obj))
    def apply():
        w = torch.ones(64, 64, requires_grad=True)
        function = torch.ops.higher_order.autograd_function_apply
        graphs = fx.symbolic_trace(Forward()), fx.symbolic_trace(Backward())
        return function(*graphs, w, non_differentiable_idx=[], saved_for_backward_idx=[])
    def apply_own():
        saved = None
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                nonlocal saved
                saved = x * 3
                return x * 2
            @staticmethod
            def backward(ctx, gradient): return gradient * 2
        return Double.apply(torch.ones(64, 64, requires_grad=True))
    """


def test_a_class_that_torch_makes_per_call_is_torchs_own_cycle(session):
    """The first one is freed by gc. C holds the others, as after a compilation: with the graph, and without."""
    source = f"""{CLASS_PER_CALL}
    def test_freed_by_gc(): apply()
    def test_held_in_c(): hold_in_c(type(apply().grad_fn)._forward_cls)
    def test_no_graph_in_the_loop():
        Forward.forward = lambda self, x: (x * 2, (x * 3,))
        hold_in_c(type(apply().grad_fn)._forward_cls)
    """
    session(source, "--memwatch-leaks=all", "-W", "ignore").assert_outcomes(passed=3)


def test_a_class_that_the_program_makes_per_call_is_a_leak(session):
    source = f"""{CLASS_PER_CALL}
    def test_freed_by_gc(): apply_own()
    def test_held_in_c(): hold_in_c(type(apply_own().grad_fn)._forward_cls)
    """
    session(source, "--memwatch-leaks=all", "-W", "ignore").assert_outcomes(failed=2)
