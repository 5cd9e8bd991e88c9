"""The inline PTX of `rows_fields`, run without a GPU."""

import numpy as np
import pytest

from kernels.linear import rows_fields
from kernels.planes.layout import LAYOUTS, PLANES
from kernels.quant.formats import GGMLType
from tests.kernels.ptx import Registers, execute, halves, pair


@pytest.mark.parametrize("type", LAYOUTS, ids=lambda type: type.name)
def test_quants_come_out_as_the_layout_says(type: GGMLType) -> None:
    form = LAYOUTS[type]
    rng = np.random.default_rng(type)
    per_word = 16 // form.bits
    values = np.array(form.table or range(256)) * form.unit
    for _ in range(64):
        quants = rng.integers(0, 1 << form.bits + form.high_bits, size=(PLANES, 2))
        for group in (0, 1):
            registers: Registers = {}
            for operand in (0, 1):
                word = group * 4 // per_word + (operand if form.bits == 8 else 0)
                planes = range(word * per_word, (word + 1) * per_word)
                low = quants[planes] & (1 << form.bits) - 1
                fields = [low[index] << form.bits * index for index in range(per_word)]
                registers[f"${4 + operand}"] = pair(np.bitwise_or.reduce(fields))
            high = [quants[plane] >> form.bits << place for plane, place in enumerate(form.high_places)]
            registers["$6"] = pair(np.bitwise_or.reduce(high) if high else np.zeros(2, np.int64))
            execute(rows_fields.quants_ptx.fn(form, group), registers)
            for index in range(4):
                expected = values[quants[4 * group + index]] - form.offset
                times = rows_fields.factor.fn(form, index, True)
                assert [half * times for half in halves(registers[f"${index}"])] == expected.tolist()


def test_scale_bytes_become_pairs() -> None:
    for byte in range(4):
        registers = execute(rows_fields.scale_byte_ptx.fn(byte), {"$1": 0x3F00112F})
        assert halves(registers["$0"]) == [float(0x3F00112F >> 8 * byte & 255)] * 2
