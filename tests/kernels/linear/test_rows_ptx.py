"""The inline PTX of `rows_fields`, run by a few lines of Python: it needs no GPU to be known right."""

import re
from collections.abc import Callable

import numpy as np
import pytest

from kernels.linear import rows_fields
from kernels.planes.layout import LAYOUTS, PLANES
from kernels.quant.formats import GGMLType

WORD = 0xFFFFFFFF
Registers = dict[str, int]


def execute(text: str, registers: Registers) -> Registers:
    """Run straight-line PTX of the instructions below; `registers` holds the inputs."""
    for statement in re.sub(r"\.reg[^;]*;|[{}]", "", text).split(";"):
        if not statement.strip():
            continue
        name, operands = statement.split(None, 1)
        target, *sources = [operand.strip() for operand in operands.split(",")]
        values = [registers[source] if source in registers else int(source, 0) for source in sources]
        registers[target] = INSTRUCTIONS[name](*values) & WORD
    return registers


def prmt(a: int, b: int, selector: int) -> int:
    pool = (a | b << 32).to_bytes(8, "little")
    picks = [(selector >> 4 * index) & 15 for index in range(4)]
    assert max(picks) < 8
    return int.from_bytes(bytes(pool[pick] for pick in picks), "little")


def lookup(a: int, b: int, c: int, table: int) -> int:
    assert table in (0xE4, 0xEA)
    return a & c | b & ~c if table == 0xE4 else a & b | c


def subtract(a: int, b: int) -> int:
    pair = np.array([a, b], np.uint32).view(np.float16)
    return int((pair[:2] - pair[2:]).view(np.uint32)[0])


INSTRUCTIONS: dict[str, Callable[..., int]] = {
    "mov.b32": lambda a: a,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "shl.b32": lambda a, b: a << b,
    "shr.u32": lambda a, b: a >> b,
    "prmt.b32": prmt,
    "lop3.b32": lookup,
    "sub.rn.f16x2": subtract,
}


def halves(register: int) -> list[float]:
    return np.array([register], np.uint32).view(np.float16).astype(np.float64).tolist()


@pytest.mark.parametrize("type", LAYOUTS, ids=lambda type: type.name)
def test_quants_come_out_as_the_layout_says(type: GGMLType) -> None:
    form = LAYOUTS[type]
    rng = np.random.default_rng(type)
    per_word = 16 // form.bits
    values = np.array(form.table or range(256))
    for _ in range(64):
        quants = rng.integers(0, 1 << form.bits + form.high_bits, size=(PLANES, 2))
        for group in (0, 1):
            registers = {}
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


def pair(elements: np.ndarray) -> int:
    return int(elements[0]) | int(elements[1]) << 16


def test_scale_bytes_become_pairs() -> None:
    for byte in range(4):
        registers = execute(rows_fields.scale_byte_ptx.fn(byte), {"$1": 0x3F00112F})
        assert halves(registers["$0"]) == [float(0x3F00112F >> 8 * byte & 255)] * 2
