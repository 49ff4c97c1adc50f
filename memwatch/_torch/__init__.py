"""The one place that takes private names from torch: one file per part of torch.

Every other package of memwatch imports what it needs from here, under a public name. A name that this torch
lacks never fails an import. Its place is taken by a fallback, and :func:`missing` says what memwatch does worse
without it. Nothing here imports another package of memwatch; `memwatch.errors` is the exception.

`aot` imports torch's compiler, which takes a second: only `memwatch.replay.backend` and what it uses import it.
"""

from memwatch._torch.lookup import missing

__all__ = ["missing"]
