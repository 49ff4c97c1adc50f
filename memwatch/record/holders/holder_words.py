"""The words for a holder: the expression a person would write for it, and whose variable it is."""

from __future__ import annotations

import re
from collections import deque
from types import CellType, FrameType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from torch import Tensor, nn

from memwatch.heap.edges_of import name_edge
from memwatch.heap.names import attributes, instance_dict
from memwatch.heap.tensors import is_python_node, mro_of, type_dict
from memwatch.heap.vertices import key_text
from memwatch.words.edges import edge_phrase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memwatch.record.holders.reach import Chain
    from memwatch.record.holders.sources import Source

_UNSPOKEN: Final = (FunctionType, MethodType, CellType, FrameType)
_PLACE: Final = re.compile(r" \([^()]*\)")
_LOCAL: Final = re.compile(r"^(?:local|argument) (`[^`]+`) of ")
_OWNER: Final = re.compile(
    r" of ((?:suspended (?:async )?(?:generator|coroutine) )?)(?:[\w<>]+\.)*([\w<>]+)$"
)
_DIRECT: Final = 2
_TABLES: Final = ("_parameters", "_buffers", "_modules")
_ITEM: Final = (
    "item [",
    "value of key",
    "member of",
    "a key of",
    "contents of",
    "reference from",
    "call of traceback",
)
_KINDS: Final = (
    ("(ctx)", "autograd ctx"),
    ("closure cell", "closure cell"),
    ("suspended", "generator"),
    ("exception", "exception"),
    ("traceback", "exception"),
    ("default argument", "default argument"),
    ("lru_cache", "cache"),
)


class Words(NamedTuple):
    """A holder in words: its kind, itself, `file:line` to edit, and the retention path, one edge per line."""

    kind: str
    holder: str
    site: str
    path: str


def describe(chain: Chain) -> Words:
    """Describe the holder at the head of a chain that leads from a source to a tensor."""
    source: Source = chain[0]
    kind, head = next((kind, words) for kind, words, value in source.values if value is chain[1])
    if len(chain) == _DIRECT:
        return Words(kind, head, source.site, f"{head} ({source.site})" if source.site else head)
    edges = list(_edges(chain))
    path = "\n".join([f"{head} ({source.site})" if source.site else head, *(words for words, _ in edges)])
    variable = re.match(r"(global |context variable )?`([^`]+)`(.*)", head, re.DOTALL)
    spoken = _expression(chain) if variable is not None else None
    if spoken is not None and variable is not None:
        text = f"{variable[1] or ''}`{variable[2]}{spoken}`{variable[3]}"
        return Words("attribute" if spoken else kind, text, source.site, path)
    telling = [edge for edge in edges if not edge[0].startswith(_ITEM)] or edges
    if not telling:
        return Words(kind, head, source.site, path)
    words, site = telling[-1]
    words_inside_out = [edge for edge, _ in reversed(edges)]
    if any("hooks" in edge for edge in words_inside_out):
        kind = "hook"
    else:
        known = (kind for edge in words_inside_out for part, kind in _KINDS if part in edge)
        kind = next(known, "attribute")
    words = _LOCAL.sub(r"\1, local variable of ", _PLACE.sub("", words))
    words = _OWNER.sub(r" of \1`\2`", words)
    of_hook = ", of a hook" if kind == "hook" else ""
    return Words(kind, f"{words}{of_hook}, reached from {head}", site or source.site, path)


def _edges(chain: Chain) -> list[tuple[str, str]]:
    """Name the references of a chain after its head, the outermost first, each with its `file:line`."""
    found, place = [], 1
    while place < len(chain) - 1:
        edge, covered = name_edge(chain, place)
        if edge is not None:
            site = f"{edge.file}:{edge.line}" if edge.file and edge.line else ""
            found.append((edge_phrase(edge), site))
        place += covered
    return found


def _expression(chain: Chain) -> str | None:
    """Write what follows the variable as Python would, without the items at its end; None if Python cannot."""
    parts: list[tuple[str, bool]] = []
    place = 1
    while place < len(chain) - 1:
        step = _accessor(chain, place)
        if step is None:
            return None
        text, covered, is_item = step
        parts.append((text, is_item))
        place += covered
    while parts and parts[-1][1]:
        parts.pop()
    return "".join(text for text, _ in parts)


def _accessor(chain: Chain, place: int) -> tuple[str, int, bool] | None:
    parent, child = chain[place], chain[place + 1]
    after = chain[place + 2] if place + 2 < len(chain) else None
    bases = mro_of(type(parent))
    if any(kind in bases for kind in _UNSPOKEN) or is_python_node(parent) or BaseException in bases:
        return None
    values = instance_dict(parent)
    if values is not None and child is values:
        name = _key(values, after)
        if name in _TABLES and nn.Module in bases and place + 3 < len(chain):
            return f".{_key(after, chain[place + 3])}", 3, False
        return None if name is None or "hooks" in name else (f".{name}", 2, False)
    if dict in bases:
        name = _key(parent, child)
        return None if name is None else (f"[{key_text(name)}]", 1, True)
    plain = next((kind for kind in (list, tuple, deque) if kind in bases), None)
    if plain is not None:
        return _place_in(plain.__iter__(parent), child, type_dict(type(parent)).get("_fields"))
    found = type_dict(parent).items() if type in bases else attributes(parent)
    name = next((name for name, held in list(found) if held is child), None)
    return None if name is None else (f".{name}", 1, False)


def _place_in(items: Iterator[Any], child: Any, fields: Any) -> tuple[str, int, bool] | None:
    spot = next((spot for spot, held in enumerate(items) if held is child), None)
    if spot is not None and type(fields) is tuple and spot < len(fields):
        return f".{fields[spot]}", 1, False
    return None if spot is None else (f"[{spot}]", 1, True)


def _key(mapping: Any, value: Any) -> Any:
    if dict not in mro_of(type(mapping)):
        return None
    return next((key for key, held in list(dict.items(mapping)) if held is value), None)


def same_for_all_items(chain: Chain) -> bool:
    """Tell whether a chain goes through plain containers only, so that its words are those of the variable."""
    return all(type(step) in (list, tuple, dict, set, deque) for step in chain[1:-1]) and Tensor in mro_of(
        type(chain[-1])
    )
