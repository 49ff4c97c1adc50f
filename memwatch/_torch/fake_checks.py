"""The questions whether a tensor is fake, answered for a program that should not notice that its tensors are.

| torch | here |
| --- | --- |
| torch._subclasses.FakeTensor, torch._subclasses.fake_tensor.FakeTensor | answered: no tensor of the estimate is one |
| torch._subclasses.fake_tensor.is_fake | answered: False |
| torch._guards.detect_fake_mode, torch._guards.active_fake_mode | answered: None |
| torch.utils._python_dispatch._get_current_dispatch_mode | noted: it shows the mode |
| torch.utils._python_dispatch._get_current_dispatch_mode_stack | noted |
| torch.utils._python_dispatch.is_in_torch_dispatch_mode | noted |
"""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from memwatch._torch.fake import FakeTensor
from memwatch._torch.lookup import ABSENT, Part, find

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TORCHS: Final = ("torch", "memwatch", "functorch")
"""Packages whose code works with fake tensors and gets torch's own answers."""
_checks: Final = Part("an estimate runs the code that a program has for fake tensors")
_ANSWERED: Final = (
    "torch._subclasses.FakeTensor",
    "torch._subclasses.fake_tensor.FakeTensor",
    "torch._subclasses.fake_tensor.is_fake",
    "torch._guards.detect_fake_mode",
    "torch._guards.active_fake_mode",
)
_NOTED: Final = (
    "torch.utils._python_dispatch._get_current_dispatch_mode",
    "torch.utils._python_dispatch._get_current_dispatch_mode_stack",
    "torch.utils._python_dispatch.is_in_torch_dispatch_mode",
)
for _path in (*_ANSWERED, *_NOTED):
    _checks.take(_path, None)


class _NotFakeMeta(type):
    """Makes `isinstance(tensor, FakeTensor)` False for tensors that are fake only because of the estimate."""

    mode: Any = None

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, FakeTensor) and value.fake_mode is not cls.mode

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, FakeTensor) and other is not FakeTensor


@contextlib.contextmanager
def plain_to_programs(mode: Any, on_check: Callable[[str], None]) -> Iterator[None]:
    """Let code outside torch see the tensors of a fake mode as plain tensors.

    Code of torch still gets the truth, because fake tensors need it. Modules that imported one of the names before get
    the answers too. Their own names are restored afterwards.

    Args:
        mode: the mode whose tensors look plain. Tensors of other fake modes are the program's own, and look fake.
        on_check: called with the name of a function that shows the mode, when the program takes it.
    """

    class FakeTensorOfOthers(metaclass=_NotFakeMeta):
        """The stand-in for the class FakeTensor that code outside torch gets."""

    FakeTensorOfOthers.mode = mode
    FakeTensorOfOthers.__name__ = FakeTensorOfOthers.__qualname__ = "FakeTensor"

    def is_fake(value: object) -> bool:
        return isinstance(value, FakeTensorOfOthers)

    def mode_of_others(truth: Callable[..., Any]) -> Callable[..., Any]:
        def find_mode(*args: Any, **kwargs: Any) -> Any:
            found = truth(*args, **kwargs)
            return None if found is mode else found

        return find_mode

    answers: dict[str, tuple[Any, Any]] = {}
    for path in _ANSWERED:
        truth, name = find(path), path.rpartition(".")[2]
        if truth is not ABSENT:
            stand_in = {"FakeTensor": FakeTensorOfOthers, "is_fake": is_fake}.get(name) or mode_of_others(
                truth
            )
            answers[path] = truth, stand_in
    for path in _NOTED:
        if find(path) is not ABSENT:
            answers[path] = find(path), find(path)
    with contextlib.ExitStack() as stack:
        for home in {path.rpartition(".")[0] for path in answers}:
            module = find(home)
            own = {
                path.rpartition(".")[2]: pair
                for path, pair in answers.items()
                if path.rpartition(".")[0] == home
            }
            stack.callback(setattr, module, "__class__", module.__class__)
            module.__class__ = _answering(module.__class__, own, on_check)
        pairs = [answers[path] for path in _ANSWERED if path in answers]
        _exchange({id(truth): stand_in for truth, stand_in in pairs})
        # also in modules that the program imports inside
        stack.callback(_exchange, {id(stand_in): truth for truth, stand_in in pairs})
        yield


def _answering(
    kind: type[ModuleType], answers: dict[str, tuple[Any, Any]], on_check: Callable[[str], None]
) -> type[ModuleType]:
    """Return a class of modules whose attributes depend on the module that reads them."""

    def answer(name: str) -> property:
        truth, stand_in = answers[name]

        def read(module: ModuleType) -> Any:
            if _is_torchs(sys._getframe(1).f_globals.get("__name__")):
                return truth
            if truth is stand_in:
                on_check(name)
            return stand_in

        return property(read)

    return type("module", (kind,), {name: answer(name) for name in answers})


def _is_torchs(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in _TORCHS


def _exchange(replacements: dict[int, Any]) -> None:
    """Replace global variables of all modules outside torch, by the identity of their values."""
    for name, module in list(sys.modules.items()):
        if type(module) is ModuleType and not _is_torchs(name):
            names = vars(module)
            for key, value in list(names.items()):
                if id(value) in replacements:
                    names[key] = replacements[id(value)]
