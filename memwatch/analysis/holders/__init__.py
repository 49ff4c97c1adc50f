"""Holders: who kept each piece of memory alive at an instant.

A role names its holder by itself, autograd's saved tensors are known from their packs, and the recorder's samples
tell the variables of running calls, with the references from there on. What is left is held by C++ alone, or was
not found.
"""

from memwatch.analysis.holders.holder import Holder
from memwatch.analysis.holders.holders import Holders
from memwatch.analysis.holders.kinds import HolderKind

__all__ = ["Holder", "HolderKind", "Holders"]
