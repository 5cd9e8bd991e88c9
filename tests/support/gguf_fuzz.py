"""Damaged GGUF headers, for the fuzzing script and for the suite's share of it."""

import random
import struct
from pathlib import Path

from engine.api.errors import ModelFileError
from engine.catalog import summarize
from engine.gguf.file import open_gguf
from tests.support.gguf_bytes import sample

EDGES = [0, 1, 2, 4, 9, 13, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40]
EDGES += [1 << 61, (1 << 63) - 1, 1 << 63, (1 << 64) - 32, (1 << 64) - 8, (1 << 64) - 1]


def mutate(content: bytes, rng: random.Random) -> bytes:
    """One to four damages: flipped bits, edge-case integers, cuts, insertions, moved pieces."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(max(1, len(data)))
        kind = rng.randrange(7)
        if kind == 0 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at : at + 8] = struct.pack("<Q", rng.choice(EDGES))
        elif kind == 2:
            data[at : at + 4] = struct.pack("<I", rng.choice(EDGES) & 0xFFFFFFFF)
        elif kind == 3:
            del data[at:]
        elif kind == 4:
            del data[at : at + rng.randint(1, 16)]
        elif kind == 5:
            data[at:at] = rng.randbytes(rng.randint(1, 16))
        else:
            source = rng.randrange(max(1, len(data)))
            piece = data[source : source + rng.randint(1, 40)]
            data[at : at + len(piece)] = piece
    return bytes(data)


def read_everything(path: Path) -> bool:
    """Open the file and use all that it offers; whether it was accepted. Other errors pass through."""
    summarize(path)
    try:
        file = open_gguf(path)
    except ModelFileError as error:
        assert str(path) in str(error)
        return False
    with file:
        for key in file.metadata:
            assert file.metadata[key] is not None
        for name, info in file.tensors.items():
            try:
                data = file.tensor_bytes(name)
            except ModelFileError:
                continue
            assert data.size == info.nbytes
            assert data[-1:].sum() >= 0
    return True


def fuzz(folder: Path, count: int, seed: int) -> int:
    """Read `count` damaged files; the number that were still accepted."""
    content = sample()
    accepted = 0
    path = folder / "damaged.gguf"
    for index in range(count):
        path.unlink(missing_ok=True)
        path.write_bytes(mutate(content, random.Random(f"{seed}/{index}")))
        try:
            accepted += read_everything(path)
        except Exception as error:
            raise AssertionError(f"damage {seed}/{index} raised {error!r}") from error
    return accepted
