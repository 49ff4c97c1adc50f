"""Use memwatch in processes whose torch lacks one name each.

Started as a script, it imports torch once and reads names, one a line. For each it forks, takes the name away,
imports memwatch, uses it, and answers with a line of JSON.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import multiprocessing.pool  # noqa: F401
import os
import signal
import sys
import tempfile
import traceback
import warnings
import weakref
from collections.abc import Callable

import pandas  # noqa: F401
import psutil  # noqa: F401
import torch

TIME_LIMIT_S = 60
_FREEZE = gc.freeze
Step = Callable[[], dict[str, object]]


class _Names:
    """A torch without one name: the seam cannot find it."""

    def __init__(self, removed: str) -> None:
        from memwatch._torch import lookup

        loaded = [module for module in sys.modules if module.startswith("memwatch._torch.")]
        assert loaded == ["memwatch._torch.lookup"]
        self.removed = removed
        self.asked = False
        self._find = lookup.find
        lookup.find = self.find

    def find(self, path: str) -> object:
        from memwatch._torch.lookup import ABSENT

        if path == self.removed or path.startswith(f"{self.removed}."):
            self.asked = True
            return ABSENT
        return self._find(path)


def _train() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()


def _outlives_its_tensor() -> bool:
    """Return True if an output that autograd saved lives on when its tensor is dropped."""
    output = torch.ones(8, requires_grad=True).exp()
    storage = weakref.ref(output.untyped_storage())
    del output
    return storage() is not None


def _profile(intercept: str) -> dict[str, object]:
    import memwatch

    with memwatch.profile(intercept=intercept) as prof:
        _train()
        leaks_outputs = _outlives_its_tensor()
    if os.environ["MEMWATCH_NATIVE"] == "1":
        prof.summary()  # once for each name: it reads tables, and takes nothing of torch's
    notes = [text for _, text in prof.notes]
    return {
        "peak_bytes": prof.peak_increase_bytes,
        "ops": len(prof.ops),
        "leaks_outputs": leaks_outputs,
        "notes": notes,
        "meta": dict(prof.meta),
    }


def _profile_by(intercept: str, native: str) -> Step:
    def step() -> dict[str, object]:
        os.environ["MEMWATCH_NATIVE"] = native
        return _profile(intercept)

    return step


def _run_compiled() -> None:
    def function(x: torch.Tensor) -> None:
        y = x.exp()
        torch._dynamo.graph_break()
        y.sum().backward()  # its ops run uncompiled while dynamo evaluates frames

    torch.compile(function, backend="eager")(torch.ones(8, requires_grad=True))


def _profile_compiled() -> dict[str, object]:
    os.environ["MEMWATCH_NATIVE"] = "0"
    import memwatch

    with memwatch.profile(intercept="mode") as prof:
        _run_compiled()
    return {"notes": [text for _, text in prof.notes]}


def _profile_with_fsdp() -> dict[str, object]:
    importlib.import_module("torch.distributed.fsdp")
    return _profile_by("mode", "0")()


def _find_leaks() -> dict[str, object]:
    import memwatch

    sys.modules[__name__].kept = kept = []
    leaks = memwatch.find_leaks(lambda: kept.append(torch.ones(1000, requires_grad=True).exp()))
    return {"leaks": [str(leak) for leak in leaks]}


def _import_backend() -> dict[str, object]:
    importlib.import_module("memwatch.replay.backend")  # and torch's compiler with it
    return {}


def _estimate() -> dict[str, object]:
    from memwatch.estimate.program import estimate_program

    estimate_program(lambda: _train)
    return {}


def _estimate_values() -> dict[str, object]:
    from memwatch._torch.fake import reads_values

    reads_values()
    return {}


def _compile_by_inductor() -> dict[str, object]:
    from memwatch._torch.aot import compiled_by_inductor, decompositions

    decompositions()
    compiled_by_inductor(torch.fx.symbolic_trace(torch.nn.Identity()), is_backward=False)
    return {}


_OF_INDUCTOR = ("torch._inductor.", "torch._guards.")
_OF_VALUES = (
    "torch._subclasses.fake_tensor.UnsupportedFakeTensorException",
    "torch._subclasses.fake_tensor.UnsupportedOperatorException",
    "torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode",
)
_OF_FAKE_CHECKS = (
    "torch._guards.active_fake_mode",
    "torch._subclasses.FakeTensor",
    "torch._subclasses.fake_tensor.is_fake",
    "torch.utils._python_dispatch.is_in_torch_dispatch_mode",
)
_OF_JOBS = (
    "torch._subclasses.fake_tensor.D",
    "torch._subclasses.fake_tensor.unset_fake_temporarily",
    "torch.distributed.Logger",
    "torch.optim.optimizer._foreach_supported_types",
    "torch.distributed._register_comm_hook",
    "torch.distributed.device_mesh.",
    "torch.distributed.distributed_c10d.",
    "torch.distributed.fsdp._fully_shard._fsdp_param",
    "torch.distributed.tensor.",
    "torch.nn.parallel.distributed._verify",
    "torch.testing.",
)
_IMPORTED_BY_JOBS = (
    "torch._inductor.compile_fx",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.testing._internal.distributed.fake_pg",
)
_OF_THE_BACKEND = (
    "torch._dynamo.backends.",
    "torch._functorch.",
    "torch._higher_order_ops.wrap.",
    "torch.autograd._engine_run_backward",
    "torch.fx._lazy_graph_module.",
    "torch.fx.graph._BoxedCodeGen",
    "torch.ops.aten._native_batch_norm_legit",
)
_OF_THE_COMPILER = ("torch._dynamo.", *_OF_THE_BACKEND)
ASKED_LAST = (*_OF_THE_COMPILER, *_OF_INDUCTOR, *_OF_VALUES, *_OF_FAKE_CHECKS, *_OF_JOBS)
"""Names whose steps import torch's compiler: it is imported once for them, after all others."""
_OF_THE_KEY = ("torch._C._dispatch", "torch._ops", "torch.ops", "torch.library")
_OF_PROFILES_ALONE = (
    *_OF_THE_KEY,
    "torch._C._profiler",
    "torch.autograd.profiler",
    "torch._C._set_",
    "torch._C._AutoD",
)


def steps_of(name: str) -> dict[str, Step]:
    """Return the steps to run without a name: every step that uses it, and all quick steps.

    To register the kernels on the key takes as long as all other steps together, and so does a compiled function. A
    profile of a compiled function imports no file of the seam with the names of our backend.
    """
    if name.startswith(_OF_THE_BACKEND):
        return {"backend": _import_backend, "mode": _profile_by("mode", "0")}
    if name.startswith(_OF_THE_COMPILER):
        return {
            "backend": _import_backend,
            "compiled": _profile_compiled,
            "mode": _profile_by("mode", "0"),
        }
    if name in _OF_FAKE_CHECKS:
        return {"estimate": _estimate}
    if name.startswith(_OF_INDUCTOR):
        return {"inductor": _compile_by_inductor}
    if name in _OF_VALUES:
        return {"values": _estimate_values}
    if name.startswith(_OF_JOBS):
        return {"estimate": _estimate}
    if name.startswith("torch.distributed.fsdp."):
        return {"fsdp": _profile_with_fsdp}
    steps = {"native mode": _profile_by("mode", "1"), "mode": _profile_by("mode", "0")}
    if name.startswith(_OF_THE_KEY):
        steps |= {"native": _profile_by("auto", "1"), "key": _profile_by("auto", "0")}
    return steps if name.startswith(_OF_PROFILES_ALONE) else {**steps, "leaks": _find_leaks}


def use_without(name: str) -> dict[str, object]:
    """Return the outcome of each step: its figures, a refusal of memwatch's, or a traceback."""
    names = _Names(name)
    from memwatch import MemwatchError
    from memwatch._torch import missing

    results: dict[str, object] = {}
    for step, run in steps_of(name).items():
        try:
            results[step] = run()
        except MemwatchError as error:
            results[step] = {"refused": str(error)}
        except Exception:
            results[step] = {"traceback": traceback.format_exc()}
    return {**results, "asked": names.asked, "missing": missing()}


def _forked(name: str) -> str:
    """Return the answer of a child that lacks the name, as one line."""
    ours, its = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(TIME_LIMIT_S)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = json.dumps(use_without(name))
        os.write(its, answer.encode() + b"\n")
        os._exit(0)
    os.close(its)
    with open(ours) as pipe:
        answer = pipe.read().strip()
    _, status = os.waitpid(child, 0)
    return (answer or json.dumps({"died": {"traceback": f"exit status {status}"}})) + "\n"


def _warm_up() -> None:
    """Run slow parts that do not need the seam once: torch's lists of ops, and the reading of a capture."""
    torch.set_num_threads(1)
    _train()
    for qualified in torch._C._dispatch_get_all_op_names():
        space, name = qualified.split("::")
        packet, _, overload = name.partition(".")
        with contextlib.suppress(AttributeError, RuntimeError):
            getattr(getattr(getattr(torch.ops, space), packet), overload or "default")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.memwatch")
        child = os.fork()
        if child == 0:
            import memwatch

            with memwatch.profile(path):
                _train()
            os._exit(0)
        os.waitpid(child, 0)
        import memwatch

        memwatch.load(path).summary()
    assert not [name for name in sys.modules if name.startswith("memwatch._torch")]
    gc.collect()
    gc.freeze()  # the objects up to here are not searched for leaks, which would take a second each time
    gc.get_freeze_count, gc.freeze, gc.unfreeze = lambda: 0, lambda: None, lambda: None


def _warm_up_compiler() -> None:
    """Import torch's compiler and compile once. Both are slow, so the compiler's names come last."""
    _run_compiled()
    torch._dynamo.reset()
    for module in _IMPORTED_BY_JOBS:
        importlib.import_module(module)
    gc.collect()
    _FREEZE()


def serve() -> None:
    """Answer each name on standard input."""
    with tempfile.TemporaryDirectory() as folder:
        if sys.dont_write_bytecode:
            # the first fork that imports memwatch keeps its compiled modules for the others
            sys.dont_write_bytecode, sys.pycache_prefix = False, folder
        _warm_up()
        _answer()


def _answer() -> None:
    has_compiler = False
    for line in sys.stdin:
        name = line.strip()
        if name.startswith(ASKED_LAST) and not has_compiler:
            has_compiler = True
            _warm_up_compiler()
        sys.stdout.write(_forked(name))
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
