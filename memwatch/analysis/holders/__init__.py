"""Holders: who kept each piece of memory alive at an instant.

A role names its holder by itself. Autograd's saved tensors are known from their packs. The recorder's samples have the
variables of running calls, with the references from there on. Each holder has its evidence: seen, read in torch's own
records, inferred by a named rule, or not seen.
"""

from memwatch.analysis.holders.holder import Holder, HolderKey
from memwatch.analysis.holders.rules import Holders
from memwatch.kinds.holders import HolderEvidence, HolderKind

__all__ = ["Holder", "HolderEvidence", "HolderKey", "HolderKind", "Holders"]
