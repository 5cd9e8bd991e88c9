"""What KV depends on beside the tokens that it was computed from.

A file keeps it in full and not as a digest alone, so that a refusal can say what is different.
"""

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path

LAYOUT = 1
"""Of the bytes of a page; a change of how a device orders them, or of what is stored, counts it up."""

_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """KV of two models or settings is never mixed: all of these must be equal."""

    kv_type: str
    kernels: str
    """Which implementation computed it, with the type of its weights."""
    shapes: str
    """Tokens of a block, and layers, heads and window of each group."""
    rope: str
    model: str
    """Digest of the model file's identity."""
    layout: int = LAYOUT

    @property
    def key(self) -> str:
        """A short name for it in file names; files are compared by what stands in them."""
        text = "\n".join(f"{name}={value}" for name, value in asdict(self).items())
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def difference(self, other: "Fingerprint") -> str:
        """What of `other`, that of a file, is different, in a few words behind "KV on disk"."""
        if other.layout != self.layout:
            return "was of another version"
        if other.shapes != self.shapes:
            return "was of another model"
        if other.kv_type != self.kv_type:
            return f"was of KV type {other.kv_type}"
        if other.kernels != self.kernels:
            return f"was computed by {other.kernels}"
        if other.rope != self.rope:
            return "was of another rope setting"
        return "was of another model file"


def model_digest(path: Path, version: bytes) -> str:
    """Identity of a model file: `version` (path, sizes and times of its parts) and its first bytes.

    Whatever writes to a file changes its time; a copy that keeps time and size still differs in the
    metadata that the file begins with. To read gigabytes of weights at each start would cost more than
    most prompts. Raises `OSError`.
    """
    with path.open("rb") as file:
        return hashlib.blake2b(version + file.read(_HEAD_BYTES), digest_size=16).hexdigest()
