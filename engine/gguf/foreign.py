"""Saying what a file is when it is no GGUF file that can be read here, and what to do."""

import struct

from engine.api.errors import ModelFileError, UnsupportedModelError
from engine.gguf.source import Source

VERSIONS = (2, 3)
_CONVERT = "convert it with llama.cpp's convert_hf_to_gguf.py, or download a .gguf file of the model"
_MAGICS = {
    b"lmgg": f"an old GGML file, the format before GGUF; {_CONVERT}",
    b"fmgg": f"an old GGMF file, a format before GGUF; {_CONVERT}",
    b"tjgg": f"an old GGJT file, a format before GGUF; {_CONVERT}",
    b"algg": "an old GGLA adapter file, which is not supported",
    b"PK\x03\x04": f"a PyTorch checkpoint or another ZIP archive; {_CONVERT}",
    b"\x80\x02": f"a Python pickle (an old PyTorch checkpoint); {_CONVERT}",
    b"\x89HDF": f"an HDF5 file; {_CONVERT}",
    b"\x1f\x8b": "a gzip archive; unpack it first",
    b"\x28\xb5\x2f\xfd": "a zstandard archive; unpack it first",
    b"version https://git-lfs": "a Git LFS pointer, not the model itself; fetch it with `git lfs pull`",
    b"<": "a web page or XML text, not a model; the download went wrong, download it again",
}


def refuse_foreign(source: Source) -> None:
    """Raise ModelFileError, saying what the file is, unless it is a GGUF file of a readable version."""
    start = source.read(0, 64)
    if start[:4] != b"GGUF":
        raise ModelFileError(f"{source.path}: is not a GGUF file but {_what(source, start)}.")
    version = source.u32("version", 4)
    if version in VERSIONS:
        return
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if swapped in (1, *VERSIONS):
        raise UnsupportedModelError(
            f"{source.path}: version at byte 4: is a big-endian GGUF file (version {swapped}), which is not "
            "supported; use a little-endian file of the model."
        )
    raise UnsupportedModelError(
        f"{source.path}: version at byte 4: GGUF version {version} is not supported, 2 and 3 are; "
        "use a newer file of the model."
    )


def _what(source: Source, start: bytes) -> str:
    if start[:4] == b"FUGG":
        return "a byte-swapped (big-endian) one, which is not supported; use a little-endian file"
    if len(start) > 9 and start[8:9] == b"{" and struct.unpack_from("<Q", start)[0] < source.size:
        return f"a safetensors file; {_CONVERT}"
    for magic, what in _MAGICS.items():
        if start.startswith(magic):
            return what
    if not start.strip(b"\0"):
        return "a file that begins with zeros, as an unfinished download does; download it again"
    return f"something else (it begins with {start[:4]!r} at byte 0); name a .gguf file"
