"""Gates of feed-forward parts in compiled code."""

from kernels.contract import Activation
from kernels.cpu.compiler import Emitter, Value


def open_gate(e: Emitter, activation: Activation, gate: Value, up: Value) -> Value:
    """activation(gate) * up, as `kernels.reference.gate`."""
    if activation == "relu2":
        positive = e.ir.select(e.ir.fcmp_unordered(">", gate, e.vector(0.0)), gate, e.vector(0.0))
        return e.ir.fmul(e.ir.fmul(positive, positive), up)
    if activation == "swiglu_oai":
        gate, up = _at_most(e, gate, 7.0), _at_most(e, up, 7.0)
        least = e.vector(-7.0)
        up = e.ir.select(e.ir.fcmp_ordered("<", up, least), least, up)
        return e.ir.fmul(_opened(e, gate, e.ir.fmul(gate, e.vector(1.702))), e.ir.fadd(up, e.vector(1.0)))
    inner = gate
    if activation == "gelu":
        cubed = e.fma(e.ir.fmul(gate, gate), e.vector(0.044715), e.vector(1.0))
        inner = e.ir.fmul(e.ir.fmul(gate, cubed), e.vector(1.5957691216057308))
    return e.ir.fmul(_opened(e, gate, inner), up)


def _at_most(e: Emitter, value: Value, most: float) -> Value:
    """No number stays none."""
    return e.ir.select(e.ir.fcmp_ordered(">", value, e.vector(most)), e.vector(most), value)


def _opened(e: Emitter, gate: Value, inner: Value) -> Value:
    """gate · σ(inner)."""
    one = e.vector(1.0)
    return e.ir.fdiv(gate, e.ir.fadd(one, e.exp(e.ir.fneg(inner))))
