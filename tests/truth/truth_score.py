"""Compares what memwatch says about a peak with what is true of it, through the public tables alone."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from truth_facts import Fact, Pattern, Ran

from memwatch.sizes import format_bytes

OWNED = ("parameter", "buffer", "gradient", "optimizer state")
CLAIMED = ("seen", "structure")
"""Evidence that makes of words a claim: what is inferred or not seen says so."""


@dataclass
class Score:
    """What was said rightly, in bytes; and what was said wrongly, in words."""

    right_bytes: int = 0
    known_bytes: int = 0
    peak_bytes: int = 0
    false: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def right_ratio(self) -> float:
        """Share of the bytes of which the truth is known that have category, module, line and holder right."""
        return self.right_bytes / max(self.known_bytes, 1)

    @property
    def known_ratio(self) -> float:
        """Share of the bytes at the peak of which the truth is known."""
        return self.known_bytes / max(self.peak_bytes, 1)


def score(pattern: Pattern, ran: Ran) -> Score:
    """Return how much of what memwatch says about the peak of a program is true."""
    found = Score()
    owned = owned_tensors(ran)
    for row in ran.prof.at_peak.itertuples():
        found.peak_bytes += row.nbytes
        facts = [
            fact for fact in pattern.facts if fact.nbytes == row.nbytes and re.search(fact.op, row.op_name)
        ]
        answers = [(what_is_wrong(pattern, fact, row), re.search(fact.holder, row.holder)) for fact in facts]
        if row.category in OWNED and owned:
            lies = what_is_wrong_of_owned(row, owned)
            answers.append((lies, "holder" not in lies))
        if not answers:
            continue
        lies = min((lies for lies, _ in answers), key=len)
        is_false = not any(is_true for _, is_true in answers)
        found.known_bytes += row.nbytes
        if not lies:
            found.right_bytes += row.nbytes
        else:
            found.wrong.append(f"{', '.join(lies)}: {as_text(row)}")
        if is_false and getattr(row, "holder_evidence", "none") in CLAIMED:
            found.false.append(as_text(row))
    found.false += parameters_in_another_place(ran)
    return found


def what_is_wrong(pattern: Pattern, fact: Fact, row) -> list[str]:
    """Return the columns of a row that do not say what is true."""
    says = {
        "category": row.category in fact.category.split("|"),
        "line": pattern.is_marked(row.line, fact.mark),
        "module": is_module(row.module, fact.module),
        "holder": re.search(fact.holder, row.holder) is not None,
    }
    return [column for column, is_true in says.items() if not is_true]


def is_module(said: str, path: str) -> bool:
    """Return True if a name is that of a module whose path its root knows; the root's own name may stand before it."""
    if not path:
        return not said
    return any(re.fullmatch(rf"(.*\.)?{one}(#\d+)?", said) for one in path.split("|"))


def owned_tensors(ran: Ran) -> dict[str, int]:
    """Return the bytes of each parameter and buffer, by its path and by its root's name and path."""
    found = {}
    for root, net in ran.nets.items():
        tensors = (*net.named_parameters(remove_duplicate=False), *net.named_buffers(remove_duplicate=False))
        for path, tensor in tensors:
            nbytes = tensor.untyped_storage().nbytes()
            for label in ("", root, type(net).__name__):
                found.setdefault(f"{label}.{path}".strip("."), set()).add(nbytes)
    return found


def what_is_wrong_of_owned(row, owned: dict[str, set[int]]) -> list[str]:
    """Return the columns of a parameter, buffer, gradient or state of an optimizer that do not say what is true."""
    path = row.name.removeprefix("grad of ")
    path = re.sub(r"^.*\[(.*)\]$", r"\1", path)
    path = re.sub(r"#\d+", "", path)
    sizes = owned.get(path)
    if sizes is None or (row.nbytes not in sizes and row.category != "optimizer state"):
        return ["category", "holder"]
    owner = path.rpartition(".")[0]
    is_owner = row.module.endswith(owner) and (row.module or len(owned) == 0)
    return [] if is_owner else ["module"]


def parameters_in_another_place(ran: Ran) -> list[str]:
    """Say it if the parameters at the peak are not as many bytes as the program's modules have."""
    if not ran.nets:
        return []
    tensors = {
        tensor.data_ptr(): tensor.untyped_storage().nbytes()
        for net in ran.nets.values()
        for tensor in (*net.parameters(), *net.buffers())
        if tensor.untyped_storage().nbytes()
    }
    true_bytes, at_peak = sum(tensors.values()), ran.prof.at_peak
    said_bytes = int(at_peak.loc[at_peak["category"].isin(["parameter", "buffer"]), "nbytes"].sum())
    by_module = int(ran.prof.modules["parameter_bytes"].sum())
    found = []
    if said_bytes != true_bytes:
        found.append(f"parameters and buffers: {said_bytes} B at the peak, are {true_bytes} B")
    if by_module != true_bytes:
        found.append(f"modules: {by_module} B of parameters and buffers, are {true_bytes} B")
    return found


def as_text(row) -> str:
    """Return one row of `at_peak` as a line."""
    evidence = getattr(row, "holder_evidence", "")
    line = row.line.rpartition("/")[2]
    words = f"{format_bytes(row.nbytes)} ({row.nbytes} B) {row.op_name}"
    return f"{words} is {row.category} of {row.module!r} at {line}, {evidence} held by {row.holder_kind}: {row.holder}"
