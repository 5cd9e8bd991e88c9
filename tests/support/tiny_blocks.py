"""Random weights in every element type that GGUF files use, deterministic for a NumPy generator.

Types that gguf-py can quantise to are quantised from normal numbers. For the others (K-quants, IQ,
MXFP4) the blocks are random bytes whose scale fields alone are overwritten, so that every bit
pattern of the quants and the sub-scales occurs and the values still have the wanted spread.
"""

from dataclasses import dataclass

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import NVFP4, dequantize, quantize

Array = np.ndarray

QUANTISED = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
"""Types made by gguf-py's own quantisers."""


@dataclass(frozen=True)
class ScaleFields:
    """Where a block keeps its fp16 scale, its fp16 minimum, and what spread a scale of 1 gives."""

    d: int
    unit: float
    """Standard deviation of the values when d is 1."""
    dmin: int | None = None
    ratio: float = 0.0
    """dmin in units of d that centres the values on zero."""


SCALES: dict[str, ScaleFields] = {
    "Q8_0": ScaleFields(0, 73.9),
    "Q2_K": ScaleFields(80, 13.7, 82, 1.5),
    "Q3_K": ScaleFields(108, 42.5),
    "Q4_K": ScaleFields(0, 258.0, 2, 7.5),
    "Q5_K": ScaleFields(0, 535.0, 2, 15.5),
    "Q6_K": ScaleFields(208, 1366.0),
    "IQ2_XXS": ScaleFields(0, 55.0),
    "IQ2_XS": ScaleFields(0, 56.0),
    "IQ2_S": ScaleFields(0, 56.0),
    "IQ3_XXS": ScaleFields(0, 140.0),
    "IQ3_S": ScaleFields(0, 140.0),
    "IQ1_S": ScaleFields(0, 7.0),
    "IQ4_NL": ScaleFields(0, 69.0),
    "IQ4_XS": ScaleFields(0, 1280.0),
    "TQ1_0": ScaleFields(52, 0.82),
    "TQ2_0": ScaleFields(64, 1.1),
}
"""Types written as random bytes; IQ1_M, MXFP4 and NVFP4 have other scales and are handled apart."""

TYPES = (*dict.fromkeys([*QUANTISED, *SCALES]), "IQ1_M", "MXFP4", "NVFP4")


def block_size(type_name: str) -> int:
    """How many neighbouring values of a row one block of this type holds."""
    return GGML_QUANT_SIZES[GGMLQuantizationType[type_name]][0]


def random_tensor(rng: np.random.Generator, type_name: str, shape: tuple[int, int], std: float) -> Array:
    """Raw weights of `shape` [out, in] with values spread by about `std`.

    F32 and F16 come back as arrays of that type and shape, everything else as uint8
    [out, bytes of a row].
    """
    kind = GGMLQuantizationType[type_name]
    if type_name in QUANTISED:
        return quantize(rng.standard_normal(shape, dtype=np.float32) * np.float32(std), kind)
    elements, nbytes = GGML_QUANT_SIZES[kind]
    if shape[1] % elements:
        raise ValueError(f"{type_name} needs rows of a multiple of {elements} values, not {shape[1]}")
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // elements, nbytes), dtype=np.uint8)
    set_scales(rng, blocks, type_name, std)
    return blocks.reshape(shape[0], -1)


def set_scales(rng: np.random.Generator, blocks: Array, type_name: str, std: float) -> None:
    """Overwrite the scale fields of `blocks` (uint8 [n, bytes]) in place."""
    jitter = rng.uniform(0.75, 1.25, len(blocks)).astype(np.float32)
    if type_name == "MXFP4":
        exponent = round(float(np.log2(std / 4.0))) + 127
        blocks[:, 0] = exponent + rng.integers(-1, 2, len(blocks))
        return
    if type_name == "NVFP4":
        scale = jitter[:, None] * rng.uniform(0.75, 1.25, (len(blocks), 4)) * (std / 2.75)
        blocks[:, :4] = NVFP4.fp32_to_ue4m3(scale)
        return
    if type_name == "IQ1_M":
        _set_iq1_m(blocks, jitter * np.float32(std / 7.0))
        return
    fields = SCALES[type_name]
    scale = jitter * np.float32(std / fields.unit)
    blocks[:, fields.d : fields.d + 2] = _fp16_bytes(scale)
    if fields.dmin is not None:
        blocks[:, fields.dmin : fields.dmin + 2] = _fp16_bytes(scale * np.float32(fields.ratio))


def dequantised(raw: Array, type_name: str) -> Array:
    """gguf-py's float32 values of what `random_tensor` made."""
    return dequantize(raw, GGMLQuantizationType[type_name])


def _fp16_bytes(values: Array) -> Array:
    return values.astype(np.float16).view(np.uint8).reshape(-1, 2)


def _set_iq1_m(blocks: Array, scale: Array) -> None:
    """IQ1_M spreads the 16 bits of its scale over the top nibbles of four 16-bit words at byte 48."""
    bits = scale.astype(np.float16).view(np.uint16).astype(np.uint16)
    words = blocks[:, 48:56].copy().view(np.uint16)
    for index in range(4):
        nibble = (bits >> np.uint16(4 * index)) & np.uint16(15)
        words[:, index] = (words[:, index] & np.uint16(0x0FFF)) | (nibble << np.uint16(12))
    blocks[:, 48:56] = words.view(np.uint8)
