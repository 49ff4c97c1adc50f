"""The page of two captures: how the peak changed, by category and by site."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from memwatch.analysis.texts import TEXT
from memwatch.kinds.roles import CATEGORIES
from memwatch.report.page.columns import Words, pack_frame
from memwatch.report.text import visible

if TYPE_CHECKING:
    from memwatch.analysis.compare import Comparison

MODEL_VERSION: Final = 1


def diff_model(compared: Comparison, *, old: str, new: str) -> dict[str, Any]:
    """Return what the page of a comparison shows.

    Args:
        compared: the two peaks and their sites.
        old: what the old capture is called.
        new: what the new one is called.

    Returns:
        A dict of plain JSON values: `old`, `new`, `totals`, `categories`, and `blocks` (packed tables).
    """
    words, sites = Words(visible), compared.sites.reset_index()
    by_category = sites.groupby("category")[["old_bytes", "new_bytes"]].sum()
    texts = {name: sites[name].astype(TEXT) for name in ("category", "module", "site")}
    return {
        "model": MODEL_VERSION,
        "old": visible(old),
        "new": visible(new),
        "totals": {
            "device": visible(compared.device),
            "old_bytes": compared.old_peak_bytes,
            "new_bytes": compared.new_peak_bytes,
            "delta_bytes": compared.new_peak_bytes - compared.old_peak_bytes,
            "growth_ratio": compared.growth_ratio if compared.old_peak_bytes else None,
            "sites": len(sites),
        },
        "categories": [
            {
                "name": name,
                **{column: int(by_category[column][name]) for column in ("old_bytes", "new_bytes")},
            }
            for name in CATEGORIES
            if name in by_category.index
        ],
        "blocks": {"sites": pack_frame(sites.assign(**texts), words), "words": words.pack()},
    }
