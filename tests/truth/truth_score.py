"""Compare memwatch's claims about a peak with the facts, through the public tables alone."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace

from truth_facts import ANY, RESULT, Fact, Pattern, Ran

from memwatch.sizes import format_bytes

CLAIMED = ("seen", "structure")
"""Evidence that makes the words a claim: words about inferred or unseen holders are marked."""


OF_WRAPPERS = ("_checkpoint_wrapped_module", "_orig_mod")
"""Parts of names that torch's wrappers add, and that no model of the program's has."""


@dataclass
class Score:
    """The right claims, in bytes, and the wrong claims, in words."""

    right_bytes: int = 0
    known_bytes: int = 0
    peak_bytes: int = 0
    false: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def right_ratio(self) -> float:
        """Share of the bytes with known facts that have category, module, line and holder right."""
        return self.right_bytes / max(self.known_bytes, 1)

    @property
    def known_ratio(self) -> float:
        """Share of the bytes at the peak with known facts."""
        return self.known_bytes / max(self.peak_bytes, 1)


def score(pattern: Pattern, ran: Ran) -> Score:
    """Return how many of memwatch's claims about the peak of a program are true."""
    found = Score()
    names, owned = owned_names(ran), owned_addresses(ran)
    address, made_by, taken = ran.prof.storages["address"], ran.prof.storages["op"], Counter()
    op_at_peak = peak_op(ran.prof)
    for row in ran.prof.at_peak.itertuples():
        facts = [fact for fact in pattern.facts if may_be(fact, row) and not 0 < fact.most <= taken[fact]]
        is_result = re.search(RESULT, row.holder) and made_by[row.Index] == op_at_peak
        facts += [replace(fact, holder=RESULT) for fact in facts if is_result]  # true of all, in that op
        answers = [(what_is_wrong(pattern, fact, row), re.search(fact.holder, row.holder)) for fact in facts]
        owner = owned.get(int(address[row.Index]))
        if owner is not None:
            lies = what_is_wrong_of_owned(row, owner)
            answers = [(lies, "holder" not in lies)]
        elif (
            row.category in ("gradient", "optimizer state")
            and names_of(row.name) in names
            and not any(fact.only for fact in facts)
        ):
            lies = what_is_wrong_of_owned(row, names[names_of(row.name)])
            answers.append((lies, "holder" not in lies))
        if not answers and (row.category == "workspace" or row.origin == "baseline"):
            continue  # No program declares the workspace of kernels, and tensors of other programs may be alive.
        found.peak_bytes += row.nbytes
        if not answers:
            continue
        lies = min((lies for lies, _ in answers), key=len)
        found.known_bytes += row.nbytes
        if not lies:
            found.right_bytes += row.nbytes
            taken.update([fact for fact in facts if not what_is_wrong(pattern, fact, row)][:1])
        else:
            found.wrong.append(f"{', '.join(lies)}: {as_text(row)}")
        if not any(is_true for _, is_true in answers) and getattr(row, "holder_evidence", "none") in CLAIMED:
            found.false.append(as_text(row))
    said_bytes = int(ran.prof.modules["parameter_bytes"].sum())
    true_bytes = sum(owner.nbytes for owner in owned.values())
    if said_bytes < true_bytes:
        found.false.append(f"modules: {said_bytes} B of parameters and buffers, are {true_bytes} B")
    return found


def peak_op(prof) -> int:
    """Return the op of the peak."""
    return int(prof.timeline["op"][prof.peak_event])


def may_be(fact: Fact, row) -> bool:
    """Return True if a fact is about memory of the size and the op of a row; memory with a line is the block's."""
    if row.origin == "baseline" and "" not in fact.mark.split("|"):
        return False
    return fact.nbytes in (ANY, row.nbytes) and re.search(fact.op, row.op_name) is not None


def what_is_wrong(pattern: Pattern, fact: Fact, row) -> list[str]:
    """Return the columns of a row that contradict the facts."""
    says = {
        "category": row.category in fact.category.split("|"),
        "line": pattern.is_marked(row.line, fact.mark),
        "module": is_module(row.module, fact.module),
        "holder": re.search(fact.holder, row.holder) is not None,
    }
    return [column for column, is_true in says.items() if not is_true]


def is_module(said: str, path: str) -> bool:
    """Return True if a name belongs to a module with a known path. The root's own name may come first."""
    if not path:
        return not said
    return re.fullmatch(rf"(.*\.)?({path})(#\d+)?", said) is not None


@dataclass(frozen=True)
class Owned:
    """A parameter or buffer of a module: its path, its bytes, and whether it has a root's name of its own."""

    category: str
    path: str
    nbytes: int

    @property
    def module(self) -> str:
        """The path of the module whose it is, "" for the root."""
        names = self.path.split(".")[:-1]
        return ".".join(name for name in names if name not in OF_WRAPPERS)


def owned_addresses(ran: Ran) -> dict[int, Owned]:
    """Return each parameter and buffer of the program's modules by the address of its storage."""
    found = {}
    for net in ran.nets.values():
        for category, named in (("parameter", net.named_parameters()), ("buffer", net.named_buffers())):
            for path, tensor in named:
                storage = tensor.untyped_storage()
                found[storage.data_ptr()] = Owned(category, path, storage.nbytes())
    return found


def owned_names(ran: Ran) -> dict[str, Owned]:
    """Return each parameter by its path, alone and after its root's name."""
    found = {}
    for root, net in ran.nets.items():
        for path, tensor in net.named_parameters(remove_duplicate=False):
            owner = Owned("parameter", path, tensor.untyped_storage().nbytes())
            for label in ("", f"{root}.", f"{type(net).__name__}."):
                found[f"{label}{path}"] = owner
    return found


def names_of(name: str) -> str:
    """Return the parameter in the name of a gradient or of optimizer state."""
    parameter = re.sub(r"^.*`(.*)`( \.grad)?$", r"\1", name)
    return re.sub(r"#\d+", "", parameter)


def what_is_wrong_of_owned(row, owner: Owned) -> list[str]:
    """Return the wrong columns of a parameter, buffer, gradient or optimizer state."""
    says = {
        "category": row.category in (owner.category, "gradient", "optimizer state"),
        "module": row.module == owner.module or row.module.endswith(f".{owner.module}") or not owner.module,
        "name of the module": bool(row.module),
        "holder": row.holder_kind not in ("C++ only", "optimizer step", "not seen", "evaluation stack"),
    }
    if row.category == "gradient":
        says["size"] = row.nbytes == owner.nbytes
    return [column for column, is_true in says.items() if not is_true]


def as_text(row) -> str:
    """Return one row of `at_peak` as a line."""
    evidence = getattr(row, "holder_evidence", "")
    line = row.line.rpartition("/")[2]
    words = f"{format_bytes(row.nbytes)} ({row.nbytes} B) {row.op_name}"
    return f"{words} is {row.category} of {row.module!r} at {line}, {evidence} held by {row.holder_kind}: {row.holder}"
