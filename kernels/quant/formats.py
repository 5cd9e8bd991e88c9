"""The block formats of GGUF tensors, as data.

A quantised row is a run of blocks of equal size; `FORMATS[type]` says how many elements a block
holds and how many bytes it takes. Sizes follow the GGUF specification (ggml-common.h). This module
imports neither torch nor numpy, so file readers can use it cheaply.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

KVFormat = Literal["float32", "float16", "bfloat16", "q8_0"]
"""Element type of the KV; "q8_0" is int8 with a float16 scale for each `KV_GROUP` values."""
KV_GROUP = 32
"""Consecutive values of a head that share a scale of q8_0."""


class GGMLType(IntEnum):
    """Element types as numbered in GGUF tensor descriptions."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """How one block of a type is laid out: `elements` values in `nbytes` bytes."""

    elements: int
    nbytes: int


FORMATS: dict[GGMLType, BlockFormat] = {
    GGMLType.F32: BlockFormat(1, 4),
    GGMLType.F16: BlockFormat(1, 2),
    GGMLType.BF16: BlockFormat(1, 2),
    GGMLType.F64: BlockFormat(1, 8),
    GGMLType.I8: BlockFormat(1, 1),
    GGMLType.I16: BlockFormat(1, 2),
    GGMLType.I32: BlockFormat(1, 4),
    GGMLType.I64: BlockFormat(1, 8),
    GGMLType.Q4_0: BlockFormat(32, 18),
    GGMLType.Q4_1: BlockFormat(32, 20),
    GGMLType.Q5_0: BlockFormat(32, 22),
    GGMLType.Q5_1: BlockFormat(32, 24),
    GGMLType.Q8_0: BlockFormat(32, 34),
    GGMLType.Q8_1: BlockFormat(32, 36),
    GGMLType.Q2_K: BlockFormat(256, 84),
    GGMLType.Q3_K: BlockFormat(256, 110),
    GGMLType.Q4_K: BlockFormat(256, 144),
    GGMLType.Q5_K: BlockFormat(256, 176),
    GGMLType.Q6_K: BlockFormat(256, 210),
    GGMLType.Q8_K: BlockFormat(256, 292),
    GGMLType.IQ2_XXS: BlockFormat(256, 66),
    GGMLType.IQ2_XS: BlockFormat(256, 74),
    GGMLType.IQ3_XXS: BlockFormat(256, 98),
    GGMLType.IQ1_S: BlockFormat(256, 50),
    GGMLType.IQ4_NL: BlockFormat(32, 18),
    GGMLType.IQ3_S: BlockFormat(256, 110),
    GGMLType.IQ2_S: BlockFormat(256, 82),
    GGMLType.IQ4_XS: BlockFormat(256, 136),
    GGMLType.IQ1_M: BlockFormat(256, 56),
    GGMLType.TQ1_0: BlockFormat(256, 54),
    GGMLType.TQ2_0: BlockFormat(256, 66),
    GGMLType.MXFP4: BlockFormat(32, 17),
    GGMLType.NVFP4: BlockFormat(64, 36),
}

# Q8_1 and Q8_K hold activations inside other programs and never lie in files.
DEQUANTIZABLE: frozenset[GGMLType] = frozenset(FORMATS) - {GGMLType.Q8_1, GGMLType.Q8_K}
