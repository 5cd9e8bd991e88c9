"""Kernels compile for processors that this one is not."""

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("llvmlite")

from llvmlite import binding, ir

from kernels.cpu.activations import activation_kernel
from kernels.cpu.attention.decode import attention_kernel
from kernels.cpu.attention.prompt_tiles import tile_kernel
from kernels.cpu.attention.prompts import append_kernel
from kernels.cpu.compiler import machine_code
from kernels.cpu.dots import Dots
from kernels.cpu.packed.expert_products import down_packed_kernel
from kernels.cpu.packed.form import FORMS
from kernels.cpu.packed.kinds import ProductKind
from kernels.cpu.packed.products import product_kernel, row_block_kernel
from kernels.cpu.packed.tiles import pack_kernel
from kernels.cpu.packed.values import rows_kernel, values_kernel
from kernels.quant.formats import GGMLType

ARM, X86 = "aarch64-unknown-linux-gnu", "x86_64-unknown-linux-gnu"
PROCESSORS = {
    "neoverse-n1": (ARM, Dots.PLAIN),
    "haswell": (X86, Dots.WORDS_256),
    "alderlake": (X86, Dots.BYTES_256),
    "sapphirerapids": (X86, Dots.BYTES_512),
}
TYPES = {
    "neoverse-n1": tuple(FORMS),
    "haswell": (GGMLType.Q4_1, GGMLType.Q6_K, GGMLType.IQ4_XS),
    "alderlake": (GGMLType.Q8_0, GGMLType.Q4_K, GGMLType.MXFP4),
    "sapphirerapids": (GGMLType.Q8_0, GGMLType.Q4_K, GGMLType.IQ4_XS),
}
"""All where nothing else compiles them; of what x86 has here or on the next machine, some."""
MACHINES = {ARM: 183, X86: 62}
"""As ELF files number them."""


def written(kernel: Callable[..., object], *arguments: object) -> ir.Module:
    """The module behind what is compiled at its first call."""
    return kernel.__wrapped__.__wrapped__(*arguments)


def compiler_for(processor: str) -> tuple[Dots, Callable[[ir.Module], None]]:
    """(the ways to multiply there, what compiles a module for it)."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    triple, dots = PROCESSORS[processor]
    machine = binding.Target.from_triple(triple).create_target_machine(cpu=processor, opt=3)

    def check(module: ir.Module) -> None:
        module.triple = triple
        code = machine_code(module, machine)
        assert code[:4] == b"\x7fELF" and int.from_bytes(code[18:20], "little") == MACHINES[triple]

    return dots, check


@pytest.mark.parametrize(
    ("processor", "type"), [(name, type) for name, types in TYPES.items() for type in types]
)
def test_packed_weights(processor: str, type: GGMLType):
    dots, check = compiler_for(processor)
    check(written(pack_kernel, type))
    kind = ProductKind(type, None, "whole", dots)
    check(written(product_kernel, kind, 1))
    check(written(row_block_kernel, kind, processor == "sapphirerapids"))


@pytest.mark.parametrize("processor", PROCESSORS)
def test_all_else(processor: str):
    dots, check = compiler_for(processor)
    kind = ProductKind(GGMLType.Q4_K, "silu", "float", dots)
    check(written(product_kernel, kind, 2))
    check(written(row_block_kernel, kind, False))
    check(written(down_packed_kernel, ProductKind(GGMLType.Q6_K, None, "whole", dots)))
    check(written(activation_kernel, dots, True))
    check(written(values_kernel, GGMLType.IQ4_XS, torch.bfloat16, dots))
    check(written(rows_kernel, GGMLType.Q5_K, dots))
    for attention in (attention_kernel, append_kernel):
        check(written(attention, 64, "float16"))
    check(written(tile_kernel, 64, "float16", 16))
