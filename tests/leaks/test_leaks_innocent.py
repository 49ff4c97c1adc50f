"""Programs that look suspicious and are not: no finding, by either question."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from memwatch.leaks import TensorLeakError, check_leaks, find_leaks

sys.path.insert(0, str(Path(__file__).parent))
import programs_innocent_objects as objects
import programs_innocent_recipes as recipes
from programs_innocent import INNOCENT, MODEL, PARKS_ONCE, make_optimizer


@pytest.fixture(autouse=True, scope="module")
def _optimizer():
    make_optimizer()


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize("program", INNOCENT + PARKS_ONCE, ids=lambda fn: fn.__name__)
def test_no_further_call_adds_anything(program):
    assert [str(leak) for leak in find_leaks(program)] == []


@pytest.mark.parametrize("program", INNOCENT, ids=lambda fn: fn.__name__)
def test_one_pass_leaves_nothing_behind(program):
    """Results of decorated functions and the state of living models are no leaks, not even on the first call."""
    check_leaks()(program)()


def call_all(programs):
    for program in programs:
        program()


@pytest.mark.parametrize("module", [recipes, objects], ids=lambda module: module.__name__)
def test_recipes_that_keep_as_much_as_they_drop_are_innocent(module):
    """By further calls and, once each has something to replace, by one pass of each."""
    assert [str(leak) for leak in find_leaks(call_all, module.INNOCENT)] == []
    for recipe in module.INNOCENT:
        check_leaks()(recipe)()


def test_windows_and_buffers_of_any_make_are_innocent():
    """Further calls fill them."""
    assert [str(leak) for leak in find_leaks(call_all, objects.PARKS_ONCE)] == []


@pytest.mark.whole
def test_what_is_emptied_now_and_then_is_no_leak():
    """It has less than it would have if it had grown like this all the time."""
    assert [str(leak) for leak in find_leaks(recipes.emptied_on_every(9))] == []
    recipes.LOGGED.clear()


HEAD = """
import gc, warnings
import torch
from memwatch.leaks import check_leaks
gc.unfreeze()
warnings.simplefilter("ignore")
torch.set_num_threads(1)
"""
FIRST_USES = {
    "optimizer": """
def first_use():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
""",
    "checkpoint": """
from torch.utils.checkpoint import checkpoint
def first_use():
    checkpoint(torch.nn.Linear(4, 4), torch.ones(2, 4, requires_grad=True), use_reentrant=False)
""",
    "torch.func": """
def first_use():
    torch.func.vmap(torch.func.grad(lambda x: (x**2).sum()))(torch.randn(4, 3))
    torch.func.hessian(lambda x: (x**3).sum())(torch.randn(3))
""",
    "compile": """
def first_use():
    model = torch.nn.Linear(4, 4)
    torch.compile(model, backend="aot_eager")(torch.ones(2, 4)).sum().backward()
""",
    "autocast": """
def first_use():
    model = torch.nn.Linear(8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(2, 8)).sum()
    loss.backward()
""",
    "caches": """
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
def first_use():
    torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged).sum()
    torch.distributions.MultivariateNormal(torch.zeros(3), torch.eye(3)).log_prob(torch.zeros(3))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    (distribute_tensor(torch.randn(4, 4), mesh, [Shard(0)]) + 1).sum()
    dist.destroy_process_group()
""",
}


@pytest.mark.parametrize("program", FIRST_USES.values(), ids=FIRST_USES)
def test_the_first_use_in_a_process_is_not_blamed_for_torchs_own(program, fresh_python):
    """Lazy imports tie up the frames above them once, and torch makes constants and caches: nobody's leak."""
    checked = f"{HEAD}{program}\nwith check_leaks():\n    first_use()\n"
    done = fresh_python(checked)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("enabled", [True, False])
def test_an_open_autocast_context_is_no_leak(enabled):
    """Autocast keeps cast weights in C++ until its context ends; they look like tensors nobody can free."""
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=enabled):
        with check_leaks():
            MODEL(torch.randn(2, 16)).sum().item()
        assert find_leaks(lambda: MODEL(torch.randn(2, 16)).sum().item()) == []


def test_hooks_of_the_program_in_torchs_own_tables_are_no_constants_of_torch():
    """A path through a module of torch is torch's only as long as no object of the program is on it."""
    value, handles = torch.randn(16), []

    def register():
        seen = torch.randn(16)
        hook = torch.nn.modules.module.register_module_forward_hook(lambda *_: seen is value or None)
        handles.append(hook)

    with pytest.raises(TensorLeakError, match="_global_forward_hooks"), check_leaks():
        register()
    handles.pop().remove()


def test_watching_imports_no_compiler(fresh_python):
    """A check does not load torch._dynamo into a process that does not use it."""
    code = (
        "import sys, torch\nfrom memwatch.leaks import check_leaks\nwith check_leaks(): torch.ones(3) + 1\n"
    )
    asked = code + "sys.exit('torch._dynamo.eval_frame' in sys.modules)"
    assert fresh_python(asked).returncode == 0
