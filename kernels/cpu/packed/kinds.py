"""What kernels of packed weights are compiled for."""

from dataclasses import dataclass
from typing import Literal

from kernels.contract import Activation
from kernels.cpu.dots import Dots, host_dots
from kernels.quant.formats import GGMLType

Precision = Literal["whole", "float"]
"""Of activations: 15 bits, or float32 as it is."""


@dataclass(frozen=True, slots=True)
class ProductKind:
    """What one kernel is compiled for."""

    type: GGMLType
    gate: Activation | None
    """Of a matrix whose first half of rows is the gate's, the second what it opens."""
    precision: Precision
    dots: Dots


def product_kind(type: GGMLType, gate: Activation | None, exact: bool) -> ProductKind:
    """For this processor."""
    return ProductKind(type, gate, "float" if exact else "whole", host_dots())
