"""Torch's own books: what DDP, FSDP2 and autocast keep, read where they write it down instead of searched for."""

from memwatch.record.books.books import Books

__all__ = ["Books"]
