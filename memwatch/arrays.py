"""The references of numpy arrays that gc never shows. No code of a subclass runs, and nothing here imports torch.

numpy does not take part in garbage collection. So gc does not show the object whose memory a view uses, and not the
objects in an array of objects.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, Final

import numpy as np

_BASE: Final = np.ndarray.__dict__["base"].__get__
_DTYPE: Final = np.ndarray.__dict__["dtype"].__get__


def base_of_array(array: Any) -> Any:
    """Return the object whose memory an array uses; None if the array has memory of its own."""
    return _BASE(array)


def items_of_array(array: Any, limit: int | None = None) -> list[Any]:
    """Return the first objects in an array of objects, all of them by default; none of an array of numbers.

    The array is viewed as one of numpy's own class first: for a subclass, numpy would call `__array_finalize__`.
    """
    if _DTYPE(array) != np.object_:
        return []
    items: list[Any] = np.ndarray.view(array, np.ndarray).reshape(-1)[:limit].tolist()
    return items


def subclasses_of(cls: type) -> list[type]:
    """Return a class and all its subclasses, without running code of a metaclass."""
    return [cls, *chain.from_iterable(map(subclasses_of, type.__subclasses__(cls)))]
