"""The inline PTX of `kernels.planes.fields`, run without a GPU."""

import numpy as np
import pytest

from kernels.planes import fields
from kernels.planes.layout import LAYOUTS, PLANES
from kernels.quant.formats import GGMLType
from tests.kernels.ptx import execute, halves, pair


@pytest.mark.parametrize("type", LAYOUTS, ids=lambda type: type.name)
def test_weights_come_out_as_the_layout_says(type: GGMLType) -> None:
    form = LAYOUTS[type]
    rng = np.random.default_rng(type)
    per_word = 16 // form.bits
    values = np.array(form.table or range(256)) * form.unit - form.offset
    for _ in range(64):
        quants = rng.integers(0, 1 << form.bits + form.high_bits, size=(PLANES, 2))
        scale, minimum = 0.25, 1.5
        scales = pair(
            np.array([scale, minimum if form.scales != "pair" else -minimum], np.float16).view("u2")
        )
        high = [quants[plane] >> form.bits << place for plane, place in enumerate(form.high_places)]
        for plane in range(PLANES):
            start = plane // per_word * per_word
            low = quants[start : start + per_word] & (1 << form.bits) - 1
            word = pair(np.bitwise_or.reduce([low[index] << form.bits * index for index in range(per_word)]))
            half, within = divmod(plane, PLANES // 2)
            registers = {"$1": word, "$2": scales, "$4": half}
            registers["$6"] = pair(np.bitwise_or.reduce(high) if high else np.zeros(2, np.int64))
            execute(fields.weights_ptx.fn(form, within), registers)
            expected = values[quants[plane]] * scale - (minimum if form.minima else 0)
            assert halves(registers["$0"]) == expected.tolist()


@pytest.mark.parametrize("scale", [-32, -1, 1, 63])
def test_signed_scale_bytes_multiply_d(scale: int) -> None:
    form, d = LAYOUTS[GGMLType.IQ4_XS], 0.5
    for byte in range(4):
        word = (scale & 255) << 8 * byte | 0x11111111 & ~(255 << 8 * byte)
        registers = {"$1": word, "$2": 0, "$3": pair(np.array([d, 0], np.float16).view("u2"))}
        execute(fields.scale_pair_ptx.fn(form, byte), registers)
        assert halves(registers["$0"])[0] == d * scale
