"""Find the private names of torch in a source file: names that a release of torch may change without notice."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

_PATH = re.compile(r"torch(\.\w+)*\._[a-zA-Z]\w*(\.\w+)*")
_BUILTINS = {"getattr", "hasattr", "setattr", "delattr"}


def is_private(name: str) -> bool:
    """Return True for a name with one underscore in front; names such as `__dict__` are documented."""
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


@functools.cache
def private_attributes() -> frozenset[str]:
    """Return the private attributes of the objects of torch that memwatch meets.

    They are read off examples, because most of them are set when an object is made.
    """
    leaf = torch.ones(2, requires_grad=True)
    examples = [
        leaf,
        leaf.exp().grad_fn,
        leaf.exp().grad_fn._raw_saved_result,
        leaf.untyped_storage(),
        torch.nn.Linear(1, 1),
        torch.ops.aten.add,
        torch.ops.aten.add.Tensor,
        torch.ops.aten.add.Tensor._schema,
        torch.autograd.Function,
        torch.autograd.function.BackwardCFunction,
        torch.library.Library("aten", "IMPL"),
        FakeTensorMode(),
        torch.futures.Future(),
        torch._C,
        torch._C._autograd,
        torch._C._profiler,
        torch._C._functorch,
        torch._C._dynamo.eval_frame,
        torch.autograd.function._HookMixin,
        torch.autograd.graph,
        torch.autograd.profiler,
        torch.autograd.profiler_legacy,
        torch.jit._trace,
        torch.utils._python_dispatch,
    ]
    names = {name for example in examples for name in (*dir(example), *getattr(example, "__dict__", ()))}
    return frozenset(name for name in names if is_private(name))


def private_names(source: str) -> list[tuple[int, str]]:
    """Return (line, name) for each private name of torch that the source takes."""
    nodes = list(ast.walk(ast.parse(source)))
    aliases = dict(_aliases(nodes))
    found = {(node.lineno, name) for node in nodes for name in _taken_by(node, aliases)}
    found |= {(node.lineno, node.value) for node in _texts(nodes) if _is_taken_by_text(node.value)}
    return sorted(found)


def _aliases(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yield the names that imports bind to something of torch, each with its full path."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for item in node.names:
                if item.name.partition(".")[0] == "torch":
                    yield (item.asname, item.name) if item.asname else ("torch", "torch")
        elif isinstance(node, ast.ImportFrom) and _is_of_torch(node):
            for item in node.names:
                yield item.asname or item.name, f"{node.module}.{item.name}"


def _is_of_torch(node: ast.ImportFrom) -> bool:
    return not node.level and (node.module or "").partition(".")[0] == "torch"


def _taken_by(node: ast.AST, aliases: dict[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (item.name for item in node.names if _is_private_path(item.name))
    elif isinstance(node, ast.ImportFrom) and _is_of_torch(node):
        paths = (f"{node.module}.{item.name}" for item in node.names)
        yield from filter(_is_private_path, paths)
    elif isinstance(node, ast.Attribute) and is_private(node.attr):
        path = _path_of(node, aliases)
        if path is not None:
            yield path
        elif node.attr in private_attributes() and not _is_own(node.value):
            yield f"….{node.attr}"
    elif isinstance(node, ast.FunctionDef) and node.name in dir(
        torch.utils._python_dispatch.TorchDispatchMode
    ):
        yield from filter(is_private, [node.name])
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _BUILTINS:
        path = _path_of(node.args[0], aliases)
        if (
            path is not None
            and isinstance(node.args[1], ast.Constant)
            and is_private(str(node.args[1].value))
        ):
            yield f"{path}.{node.args[1].value}"


def _is_private_path(path: str) -> bool:
    return path.startswith("torch.") and any(map(is_private, path.split(".")))


def _path_of(node: ast.AST, aliases: dict[str, str]) -> str | None:
    """Return the full path of a chain of attributes that begins at a name of torch."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in aliases:
        return None
    return ".".join([aliases[node.id], *reversed(parts)])


def _is_own(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


def _texts(nodes: list[ast.AST]) -> Iterator[ast.Constant]:
    """Yield the texts of a program, without its docstrings, which may mention torch."""
    docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node


def _is_taken_by_text(text: str) -> bool:
    """Return True for a path or an attribute that something may look up by this text."""
    return bool(_PATH.fullmatch(text)) or text in private_attributes()
