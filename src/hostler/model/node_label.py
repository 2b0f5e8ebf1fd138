"""Labels by which nodes advertise hardware and VMs request it.

arch=x86_64              the architecture
accelerator.gpu=4        the number of accelerators of that kind
volume.scratch=yes       a volume of that name, which exists on this node only
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ARCH = "arch"
ACCELERATOR = "accelerator."
VOLUME = "volume."
YES = "yes"
MOST_ACCELERATORS = 1024
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$(?!\n)"
NAME_RULE = "up to 63 letters, digits, '.', '_' and '-', beginning with a letter or digit"
"""Rule for accelerator kinds and volume names."""
_ARCHITECTURES = {"x64": "x86_64", "amd64": "x86_64", "arm64": "aarch64"}


def architecture(name: str) -> str:
    """Return the Linux name of an architecture: `X64` and `amd64` become `x86_64`, `arm64` becomes `aarch64`."""
    word = name.strip().lower()
    return _ARCHITECTURES.get(word, word)


def advertised(arch: str, accelerators: Mapping[str, int], volumes: Iterable[str]) -> dict[str, str]:
    """Return the labels for this hardware; empty arguments yield no labels."""
    return {
        **({ARCH: architecture(arch)} if arch else {}),
        **{ACCELERATOR + kind: str(count) for kind, count in accelerators.items()},
        **{VOLUME + name: YES for name in volumes},
    }


def accelerators_of(labels: Mapping[str, str], kind: str) -> int:
    """Return the number of accelerators of a kind on a node; 0 if the label is not a number."""
    text = labels.get(ACCELERATOR + kind, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
