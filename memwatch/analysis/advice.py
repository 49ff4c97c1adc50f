"""Advice: what to do about a finding, in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memwatch.sizes import format_bytes

if TYPE_CHECKING:
    from memwatch.analysis.holders import Holder

_WHAT: Final = {
    "drag": "that are never used again",
    "iteration": "of the last pass through the loop, never used again, while the next pass runs",
    "lag": "made long before their first use",
    "void": "that no op ever uses",
    "gradient": "in forward, though the optimizer is done with them",
    "graph": "saved for a backward that never runs",
    "retained": "saved for a backward that has run already",
    "optimizer": "at once, for all parameters together",
    "workspace": "inside one op",
    "twice": "of a tensor that autograd saves in another dtype or layout too",
}
_DO: Final = {
    "iteration": "drop it at the end of the loop's body (`del`), before the next pass makes it anew",
    "lag": "make each one right before it is used (a generator in place of a list)",
    "void": "do not make it, or drop it at once",
    "gradient": "call zero_grad(set_to_none=True) before forward, right after the optimizer's step",
    "graph": "run this forward under torch.no_grad(), or keep `.item()` or `.detach()` of what it gives",
    "retained": "call backward() without retain_graph=True, or drop the result that keeps the graph",
    "optimizer": "make the optimizer with foreach=False or fused=True",
    "workspace": "give this op its input in smaller pieces, or choose another algorithm for it",
    "twice": "convert once, before the first of the ops that save it",
}
_DROP: Final = {
    "argument": "pass a list and clear it, or drop the caller's reference",
    "local": "`del` it after its last use",
    "attribute": "set it to None after its last use",
    "closure cell": "do not capture it, or pass what is needed as an argument",
    "generator": "`del` it in the generator before the yield",
    "exception": "keep the exception's text instead of the exception, and work after the `except` block",
    "global": "`del` or empty it after its last use",
    "cache": "call cache_clear(), or do not cache tensors",
    "hook": "let the hook keep less, or remove the hook",
    "autograd ctx": "do not keep it on ctx, or use ctx.save_for_backward()",
    "default argument": "do not make it a default argument",
    "evaluation stack": "`del` cannot reach it: give the call a list that it empties, or take the items with next()",
}

_OWN_NAMES: Final = ("argument", "local", "global", "attribute")


def advise(
    phase: str,
    nbytes: int,
    holder: Holder,
    last_used: str,
    *,
    peak_bytes: int,
    alone_bytes: int,
    together_bytes: int,
) -> str:
    """Write the advice of a finding.

    Args:
        phase: what is the matter.
        nbytes: bytes it is about.
        holder: who holds them.
        last_used: `file:line` of their last use, empty if unknown.
        peak_bytes: the peak.
        alone_bytes: what it would fall to if this alone were done.
        together_bytes: what it would fall to if all were done.
    """
    if phase == "lag" and holder.kind == "evaluation stack":
        do = "compute what the call waits for first, and this right before the call"
    else:
        drop = _DROP.get(holder.kind, "drop the reference after its last use")
        do = drop if phase == "void" and holder.kind not in _OWN_NAMES else _DO.get(phase, drop)
    if phase == "drag" and last_used and not holder.foreign:
        do += f" (last used at {last_used})"
    text = f"keeps {format_bytes(nbytes)} {_WHAT[phase]}; {do}"
    alone, together = format_bytes(alone_bytes), format_bytes(together_bytes)
    if alone_bytes < peak_bytes:
        text += f"; the peak would fall to {alone}"
        also = f", and to {together} with all findings mended"
    else:
        also = f"; the peak would fall to {together} with all findings mended"
    return text if together == alone else text + also
