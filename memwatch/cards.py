"""The memory of common GPUs, and the memory on them that torch's tensors cannot have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from memwatch.sizes import SizeError, format_bytes, parse_bytes

_GIB: Final = 1 << 30  # bytes
_MIB: Final = 1 << 20  # bytes


@dataclass(frozen=True)
class Card:
    """A GPU.

    Attributes:
        name: its name.
        total_bytes: what torch prints as its "total capacity" when memory runs out. It varies a little with the driver.
        source: the public issue that has such a message.
    """

    name: str
    total_bytes: int
    source: str


def _card(name: str, total_gib: float, source: str) -> Card:
    return Card(name, int(total_gib * _GIB), f"https://github.com/{source}")


CARDS: Final = (
    _card("H100", 79.11, "vllm-project/vllm/issues/27508"),
    _card("A100", 79.25, "levihsu/OOTDiffusion/issues/235"),
    _card("A100-40GB", 39.45, "LianjiaTech/BELLE/issues/137"),
    _card("V100", 15.78, "kchengiva/Shift-GCN/issues/34"),
    _card("V100-32GB", 31.74, "liucongg/ChatGLM-Finetuning/issues/73"),
    _card("L40", 44.40, "QwenLM/Qwen3-VL/issues/2097"),
    _card("A30", 23.53, "google/RB-Modulation/issues/5"),
    _card("T4", 14.56, "Zheng-Chong/CatVTON/issues/133"),
    _card("RTX-6000-Ada", 44.43, "DINGYANB/MTVCrafter/issues/21"),
    _card("RTX-A6000", 47.54, "google-research/semivl/issues/18"),
    _card("RTX-A4000", 15.61, "DengKaiCQ/VGGT-Long/issues/6"),
    _card("RTX-5090", 31.36, "TrajectoryCrafter/TrajectoryCrafter/issues/20"),
    _card("RTX-4090", 23.61, "pinokiofactory/flux-webui/issues/11"),
    _card("RTX-4060", 7.75, "ESRSchao/EdgeRegNet/issues/2"),
    _card("RTX-3090", 23.68, "wutong16/HyperDreamer/issues/4"),
)
"""Each with the smallest figure that we found. Cards without a figure are not listed."""

_WITHOUT: Final = str.maketrans("", "", " -_")


@dataclass(frozen=True)
class Assumed:
    """Memory of a card that no tensor has: assumed, not computed.

    Attributes:
        name: what takes it.
        nbytes: how much.
        source: how we know.
    """

    name: str
    nbytes: int
    source: str


ASSUMED: Final = (
    Assumed(
        "the CUDA context and its libraries",
        614 * _MIB,
        "the most in eight out-of-memory messages of public issues: 0.13 GiB on a T4 to 0.60 GiB on an RTX 5090",
    ),
    Assumed("workspaces of cuBLAS", 65 * _MIB, "measured on one H200 with torch 2.11"),
)
"""Subtracted from the memory of a card. Buffers of NCCL are not among them: we have no figure."""


@dataclass(frozen=True)
class Room:
    """The memory that a device has for tensors.

    Attributes:
        name: how the user calls the device.
        total_bytes: all of its memory that the user named.
        assumed: the part that other things take.
    """

    name: str
    total_bytes: int
    assumed: tuple[Assumed, ...] = ()

    @classmethod
    def of(cls, device: int | float | str) -> Room:
        """Return the room on a card such as `H100`, or on a device with so much memory for tensors, such as `80 GiB`.

        Raises:
            SizeError: the text is neither a card nor a size.
        """
        card = card_named(device) if isinstance(device, str) else None
        if card is not None:
            return cls(card.name, card.total_bytes, ASSUMED)
        try:
            nbytes = parse_bytes(device)
        except SizeError as error:
            if not isinstance(device, str):
                raise
            known = ", ".join(each.name for each in CARDS)
            raise SizeError(
                f"{device!r} is neither a size such as 80GiB nor one of the cards {known}"
            ) from error
        return cls(format_bytes(nbytes), nbytes)

    @property
    def tensor_bytes(self) -> int:
        """The memory that is left for tensors."""
        return max(0, self.total_bytes - sum(each.nbytes for each in self.assumed))


def card_named(name: str) -> Card | None:
    """Return the card of a name, in any spelling as `rtx 4090` or `RTX-4090`; None if there is none."""
    wanted = name.lower().translate(_WITHOUT)
    return next((card for card in CARDS if card.name.lower().translate(_WITHOUT) == wanted), None)
