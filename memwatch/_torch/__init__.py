"""The one place that takes private names from torch: one file per part of torch.

Every other package of memwatch imports such names from here, under a public name. A name that this torch lacks never
makes an import fail. A fallback replaces it, and :func:`missing` lists the abilities that suffer. These files import
only `memwatch.errors` and `memwatch.signal_handlers` from memwatch.

`aot` imports torch's compiler, which takes a second. Only the backend in `memwatch.replay` imports it.
"""

from memwatch._torch.lookup import missing

__all__ = ["missing"]
