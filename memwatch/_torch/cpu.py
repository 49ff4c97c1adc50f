"""The instructions of the processor.

| torch | here |
| --- | --- |
| torch.cpu._is_avx512_bf16_supported() | computes_in_bfloat16() |
| torch.cpu._is_amx_tile_supported() | computes_in_bfloat16() |
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Final

from memwatch._torch.lookup import Part

if TYPE_CHECKING:
    from collections.abc import Callable

_bfloat16: Final = Part(
    "the workspace of products in bfloat16 on the host is not part of the advice on autocast"
)
_BY_AVX: Final[Callable[[], bool] | None] = _bfloat16.take("torch.cpu._is_avx512_bf16_supported", None)
_BY_AMX: Final[Callable[[], bool] | None] = _bfloat16.take("torch.cpu._is_amx_tile_supported", None)


def computes_in_bfloat16() -> bool:
    """Return False for an x86 processor that adds products of bfloat16 up in float32, as AVX-512 without BF16 does.

    Other processors were not examined: True.
    """
    if _BY_AVX is None or _BY_AMX is None or platform.machine() not in {"x86_64", "AMD64"}:
        return True
    return bool(_BY_AVX() or _BY_AMX())
