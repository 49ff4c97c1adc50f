"""Holders: who kept each piece of memory alive at an instant.

A role names its holder by itself, autograd's saved tensors are known from their packs, and the recorder's samples
tell the variables of running calls, with the references from there on. Each holder says how it is known: seen, read
in torch's books, inferred by a rule that names itself, or not seen.
"""

from memwatch.analysis.holders.holder import Holder, HolderKey
from memwatch.analysis.holders.holders import Holders
from memwatch.kinds.holders import HolderEvidence, HolderKind

__all__ = ["Holder", "HolderEvidence", "HolderKey", "HolderKind", "Holders"]
