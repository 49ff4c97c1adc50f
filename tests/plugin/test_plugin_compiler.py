"""Suites that import torch's compiler, as training does: every reported leak is one, and limits hold.

These tests come last: each search of the heap takes twice as long with the compiler.
"""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="module")
def _compiler():
    """Import the compiler before an inner session does: pytester makes those forget it, and twice is an error."""
    import torch._dynamo.eval_frame  # noqa: F401  # not the stand-in of the sample


def test_clean_tests_pass(session):
    """The tests have caches that stop growing, gradients, optimizer state and returned values."""
    result = session(
        """
        import functools, pytest, torch
        CACHE = {}
        @functools.lru_cache
        def table(n): return torch.arange(n)
        @pytest.mark.no_tensor_leaks
        def test_cache():
            CACHE.setdefault("mask", torch.ones(100))
            table(100)
        @pytest.mark.no_tensor_leaks
        def test_step():
            model = torch.nn.Linear(4, 4)
            optimizer = torch.optim.Adam(model.parameters())
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        """
    )
    result.assert_outcomes(passed=2)


INNOCENT = """
    import collections, contextlib, functools, logging, sys, unittest, pytest, torch
    import torch.nn as nn

    CACHE = {}
    LAZY = None

    @pytest.fixture(scope="session")
    def weights(): return {"w": torch.ones(100)}
    @pytest.fixture(scope="module")
    def model():
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        model.seen = []
        return model
    @pytest.fixture
    def parts(): return []
    @pytest.fixture(params=[2, 3])
    def batch(request): return torch.ones(request.param, 4)
    @functools.lru_cache(maxsize=None)
    def positions(n): return torch.arange(n)

    RECENT = collections.deque(maxlen=100)

    def test_bounded_window(): RECENT.append(torch.ones(100))
    def test_module_cache(): CACHE["mask"] = torch.ones(100)
    def test_memoized(): positions(100)
    def test_lazy_constant():
        global LAZY
        LAZY = torch.ones(100)
    def test_wider_fixture(weights, model, batch):
        weights["more"] = torch.ones(100)
        model.seen.append(model(batch))
    def test_fixture_value(parts): parts.append(torch.ones(100))
    def test_fixture_made_in_the_body(request):
        request.getfixturevalue("parts").append(torch.ones(100))
    def test_gradients(model): model(torch.ones(2, 4)).sum().backward()
    def test_optimizer(model):
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    def test_raises():
        x = torch.ones(100)
        with pytest.raises(ValueError, match="bad") as info:
            raise ValueError("bad", x)
        assert info.value.args[1] is x
    def test_raises_in_a_call(model):
        with pytest.raises(RuntimeError) as info:
            model(torch.ones(3, 3))
        assert "shapes" in str(info.value)
    def test_warns():
        with pytest.warns(UserWarning) as record:
            import warnings
            warnings.warn(UserWarning("x", torch.ones(100)))
    def test_logs(caplog):
        logging.getLogger("training").warning("loss %s", torch.ones(100))
    def test_logs_without_caplog():
        logging.getLogger("training").warning("loss %s", torch.ones(100))
    def test_monkeypatch(monkeypatch):
        monkeypatch.setattr(torch, "randn", lambda *size, value=torch.ones(100): value)
        torch.randn(3)
    def test_prints(capsys):
        print(torch.ones(3)); capsys.readouterr()
    @pytest.mark.xfail(strict=True)
    def test_expected_failure():
        x = torch.ones(100)
        assert x.sum() == 3
    def test_skips():
        x = torch.ones(100)
        pytest.skip("no device")
    @pytest.mark.parametrize("value", [torch.ones(3), torch.zeros(3)])
    def test_parameters(value): assert value.shape == (3,)
    def test_scripted():
        torch.jit.script(nn.Linear(4, 4))(torch.ones(2, 4))
    def test_scripted_around_scripted():
        torch.jit.script(nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Linear(4, 4))))(torch.ones(2, 4))
    def test_traced():
        torch.jit.trace(nn.Linear(4, 4), torch.ones(2, 4))(torch.ones(2, 4))
    def test_generator():
        def batches():
            for _ in range(3): yield torch.ones(100)
        next(batches())
    def test_context():
        with contextlib.suppress(ZeroDivisionError):
            x = torch.ones(100); 1 / 0
    def test_mock():
        from unittest import mock
        step = mock.MagicMock(return_value=torch.ones(3))
        step(torch.ones(100))
        with mock.patch.object(torch, "randn", step): torch.randn(torch.ones(3))
    def test_weight_norm():
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))(torch.ones(2, 4))
    def test_local_class():
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x): return x * 2
            @staticmethod
            def backward(ctx, grad): return grad * 2
        Double.apply(torch.ones(3, requires_grad=True)).sum().backward()
    def test_hook():
        layer = nn.Linear(4, 4)
        seen = []
        layer.register_forward_hook(lambda module, args, out: seen.append(out.detach()))
        layer(torch.ones(2, 4))
    class TestMethods:
        @classmethod
        def setup_class(cls): cls.model = nn.Linear(4, 4)
        def setup_method(self): self.x = torch.ones(2, 4)
        def test_method(self): self.y = self.model(self.x)
    class TestUnit(unittest.TestCase):
        def setUp(self): self.x = torch.ones(2, 4)
        def test_unit(self):
            self.y = self.x * 2
            with self.assertRaises(RuntimeError) as caught:
                self.x @ self.x
            for n in range(2):
                with self.subTest(n=n): self.assertEqual(len(self.x), 2)
"""


@pytest.mark.whole
def test_innocent_suite_raises_no_alarm(session):
    """The tensors of pytest, mock, fixtures, caches and lazily made constants are not leaks."""
    result = session(INNOCENT, "--memwatch-leaks=all", "-v")
    result.assert_outcomes(
        passed=30, skipped=1, xfailed=1, warnings=result.parseoutcomes().get("warnings", 0)
    )
    result.stdout.no_fnmatch_line("*LEAK*")


def test_a_suite_like_torchs_own_raises_no_alarm(session):
    """Layers, optimizers, hooks, transforms, copies, failures: as in torch's test_nn, and not one leak."""
    suite = Path(__file__).with_name("suite_like_test_nn.py").read_text(encoding="utf-8")
    result = session(suite, "--memwatch-leaks=all", "-W", "ignore", "-p", "no:randomly")
    result.assert_outcomes(passed=63, xfailed=1)
    result.stdout.no_fnmatch_line("*LEAK*")


def test_leaks_in_a_suite_like_torchs_own_are_found(session):
    """The same suite with three leaks put in: those three fail."""
    suite = Path(__file__).with_name("suite_like_test_nn.py").read_text(encoding="utf-8")
    leaks = """
HISTORY = []
def test_leak_retained(): HISTORY.append(nn.Linear(4, 4)(torch.ones(1, 4)).sum())
def test_leak_uncollectable():
    y = torch.randn(4, requires_grad=True).exp()
    y.register_hook(lambda grad: grad * y)
def test_leak_cycle():
    net = nn.Linear(4, 4)
    net.register_forward_hook(lambda module, args, out: net.weight.sum() and None)
"""
    result = session(
        suite + leaks, "--memwatch-leaks=all", "-W", "ignore", "-k", "test_leak_ or test_gradcheck"
    )
    result.assert_outcomes(passed=5, failed=3, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines_random(
        [f"LEAK *::test_leak_{kind}*" for kind in ("retained", "uncollectable", "cycle")]
    )


def test_limit_where_two_devices_are_used(session):
    """A limit is of one device: of the accelerator by default; `cuda` is the CUDA device that got most."""
    result = session(
        """
        import pytest, torch
        from torch._subclasses.fake_tensor import FakeTensorMode
        @pytest.fixture(autouse=True)
        def fake():  # tensors of accelerators can be made without one, and count as in an estimate
            with FakeTensorMode(): yield
        def use():
            return [torch.empty(nbytes, dtype=torch.uint8, device=device)
                    for device, nbytes in (("cpu", 3000), ("cuda:0", 2000), ("cuda:1", 1000))]
        @pytest.mark.limit_peak_memory(2000)
        def test_main(): use()
        @pytest.mark.limit_peak_memory(1999)
        def test_main_exceeded(): use()
        @pytest.mark.limit_peak_memory(3000, device="cpu")
        def test_cpu(): use()
        @pytest.mark.limit_peak_memory(2999, device="cpu")
        def test_cpu_exceeded(): use()
        @pytest.mark.limit_peak_memory(2000, device="cuda")
        def test_cuda(): use()
        @pytest.mark.limit_peak_memory(1000, device="cuda:1")
        def test_second(): use()
        @pytest.mark.limit_peak_memory(999, device="cuda:1")
        def test_second_exceeded(): use()
        """
    )
    result.assert_outcomes(passed=4, failed=3)
    result.stdout.fnmatch_lines(
        ["*added 2000 B*cuda:0*", "*added 3000 B on cpu*", "*added 1000 B on cuda:1*"]
    )


def test_lines_are_noted_only_after_a_leak_without_one(session):
    """Clean tests run without a dispatch mode; after a leak whose line was not seen, up to 20 tests have it."""
    result = session(
        """
        import torch
        from torch.utils._python_dispatch import _get_current_dispatch_mode as mode
        KEPT, OTHERS = [], []
        def test_before(): assert mode() is None
        def test_leaks(): KEPT.append(torch.ones(64))
        def test_traces():
            assert mode() is not None
            traced = torch.jit.trace(lambda x: (x + x.sum()).view(x.shape[0]), (torch.ones(4),))
            assert traced(torch.ones(3)).tolist() == [4.0] * 3
        def test_leaks_again(): KEPT.append(torch.ones(64))
        def test_after(): assert mode() is None
        def test_leaks_alone(): OTHERS.append(torch.ones(64))
        """,
        "--memwatch-leaks=all",
        "-Wignore",
    )
    result.assert_outcomes(failed=3, passed=3)
    result.stdout.fnmatch_lines(["*`KEPT`*", "  made at: * in test_leaks_again *"])
    result.stdout.fnmatch_lines(["*`OTHERS`*", "  made at: not seen;*"])
