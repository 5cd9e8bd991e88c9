"""Which kernels serve a model's parts on a device, in words for a person.

Told by the same rules as memory is: what is held packed or as planes is read by compiled kernels.
"""

from collections.abc import Iterable

from engine.footprint.rules import (
    EXPERT_TYPES,
    KEPT_BYTES,
    KERNEL_COLUMNS,
    PACKED_BYTES,
    PLANE_BYTES,
    DeviceRules,
    Holding,
    packs,
)
from engine.footprint.shape import Experts, Footprint, Linear
from kernels.attention.served import unserved_attention
from kernels.quant.formats import GGMLType

_FEW_ROWS = "LLVM kernel over packed weights for few tokens, torch for more"
_PACKED_EXPERTS = "LLVM kernel over packed weights"
_EXPERTS = "LLVM kernel over the file's own blocks"
_ATTENTION = "LLVM kernel for few tokens, torch for more"


def serving(footprint: Footprint, rules: DeviceRules) -> tuple[tuple[str, str], ...]:
    """What of a model, and what computes it: element types of its weights first, then attention."""
    found: dict[str, set[GGMLType]] = {}
    for linear, _ in footprint.linears:
        for part in linear.parts:
            found.setdefault(_linear(linear, part.type, rules), set()).add(part.type)
    for experts, _ in footprint.experts:
        kinds = {part.type for part in (*experts.gate_up, experts.down)}
        found.setdefault(f"experts: {_experts(experts, kinds, rules)}", set()).update(kinds)
    weights = ((_names(kinds), by) for by, kinds in found.items())
    return (*weights, ("attention", _attention(footprint, rules)))


def _linear(linear: Linear, kind: GGMLType, rules: DeviceRules) -> str:
    if rules.holding is Holding.PLANES:
        return _on_gpu({kind}, {part.type for part in linear.parts}, linear.paired)
    if rules.holding is Holding.PACKED and kind in PACKED_BYTES:
        return _FEW_ROWS
    return _torch(rules)


def _experts(experts: Experts, kinds: set[GGMLType], rules: DeviceRules) -> str:
    if rules.holding is Holding.PLANES:
        return _on_gpu(kinds, {part.type for part in experts.gate_up}, paired=True)
    if rules.holding is Holding.PACKED and packs(experts):
        return _PACKED_EXPERTS
    whole = not experts.hidden % KERNEL_COLUMNS and not experts.size % KERNEL_COLUMNS
    if rules.holding is Holding.PACKED and whole and kinds <= EXPERT_TYPES:
        return _EXPERTS
    return _torch(rules)


def _on_gpu(kinds: set[GGMLType], stacked: set[GGMLType], paired: bool) -> str:
    """paired: whether those that are stacked must be of one type to stay as they are."""
    if paired and len(stacked) > 1:
        return "Triton kernels, widened to float16"
    if kinds <= PLANE_BYTES.keys():
        return "Triton kernels over the quantised weights"
    if kinds <= PLANE_BYTES.keys() | KEPT_BYTES.keys():
        return "Triton kernels, in the file's own type"
    return "Triton kernels, widened to float16 as no kernel reads the type"


def _attention(footprint: Footprint, rules: DeviceRules) -> str:
    if rules.holding is Holding.PLANES:
        reasons = {unserved_attention(group.head_dim, rules.kv_format) for group in footprint.kv} - {""}
        by = f"torch, as {' and '.join(sorted(reasons))}" if reasons else "Triton kernels"
        return f"{by}, KV in {rules.kv_format}"
    whole = not any(group.head_dim % KERNEL_COLUMNS for group in footprint.kv)
    if rules.holding is Holding.PACKED and whole and not footprint.norms_values:
        return f"{_ATTENTION}, KV in {rules.kv_format}"
    return f"torch, KV in {rules.kv_format}"


def _torch(rules: DeviceRules) -> str:
    return f"torch in {'float32' if rules.weight_itemsize == 4 else 'bfloat16'}"


def _names(kinds: Iterable[GGMLType]) -> str:
    return ", ".join(sorted(kind.name for kind in kinds))
