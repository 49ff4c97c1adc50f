"""Names from files as text that is safe to print: characters that would steer a terminal are escaped."""

from __future__ import annotations

import re
from typing import Final

# C0 and C1 controls, line and paragraph separators, bidirectional overrides (Trojan Source), lone surrogates
UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    r"""Return the text with unprintable characters as Python escapes, such as `\x1b` for ESC."""
    return UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)
