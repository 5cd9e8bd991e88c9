"""Which token uses which expert, expert after expert."""

from dataclasses import dataclass

import torch
from llvmlite import ir
from torch import Tensor

from kernels.cpu.compiler import F32, I32, I64, Emitter, Value, compiled


@dataclass(frozen=True, slots=True)
class Pairs:
    """The P pairs of a token and an expert that it uses, expert after expert; G experts are touched."""

    count: int
    """P."""
    groups: int
    """G."""
    memory: Tensor
    """int64, with all that follows."""
    most: int
    """Experts that there are."""

    @property
    def experts(self) -> Tensor:
        """int64 [G], those touched."""
        return self.memory[_HEAD + self.most :][: self.groups]

    @property
    def starts(self) -> Tensor:
        """int64 [G + 1], the first pair of each."""
        return self.memory[_HEAD + 2 * self.most :][: self.groups + 1]

    @property
    def tokens(self) -> Tensor:
        """int64 [P]."""
        return self.memory[_HEAD + 3 * self.most + 1 :][: self.count]

    @property
    def weights(self) -> Tensor:
        """float32 [P]."""
        return self.memory[_HEAD + 3 * self.most + 1 + self.count :].view(torch.float32)[: self.count]

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        """Of the four, in this order."""
        return _addresses(self.memory, self.count, self.most)


_HEAD = 1
"""Numbers before the counts of the experts: G."""
_BYTES = 8


def _addresses(memory: Tensor, count: int, most: int) -> tuple[int, int, int, int]:
    experts = memory.data_ptr() + _BYTES * (_HEAD + most)
    tokens = experts + _BYTES * (2 * most + 1)
    return experts, experts + _BYTES * most, tokens, tokens + _BYTES * count


def sorted_pairs(ids: Tensor, weights: Tensor, most: int) -> Pairs:
    """Of ids int32 or int64 [T, used], each below `most`, and weights float32 [T, used]."""
    ids, weights, count = ids.contiguous(), weights.contiguous(), ids.numel()
    memory = torch.empty(_HEAD + 3 * most + 1 + count + (count + 1) // 2, dtype=torch.int64)
    sort_kernel(ids.dtype is torch.int64)(
        1, count, ids.shape[1], most, ids.data_ptr(), weights.data_ptr(), memory.data_ptr(),
        *_addresses(memory, count, most),
    )  # fmt: skip
    return Pairs(count, int(memory[0]), memory, most)


@compiled
def sort_kernel(wide: bool) -> ir.Module:
    """One thread counts the pairs of each expert and puts each where those before it end.

    Torch's operations take many times as long for a few pairs. wide: whether ids are int64.
    """
    e = Emitter(f"sort_pairs_{wide}")
    pairs, used, most = (e.parameter(index) for index in range(1, 4))
    ids, weights, head, experts, starts, tokens, sorted_weights = (e.pointer(n) for n in range(4, 11))
    counts, zero, one = e.address(head, e.const(_HEAD), I64), e.const(0), e.const(1)

    def whole(base: Value, place: Value) -> Value:
        return e.load(e.address(base, place, I64), I64)

    def keep(value: Value, base: Value, place: Value) -> None:
        e.store(value, e.address(base, place, I64))

    def expert_of(pair: Value) -> Value:
        return whole(ids, pair) if wide else e.ir.sext(e.load(e.address(ids, pair, I32), I32), I64)

    with e.loop(zero, most) as expert:
        keep(zero, counts, expert)
    with e.loop(zero, pairs) as pair:
        expert = expert_of(pair)
        keep(e.ir.add(whole(counts, expert), one), counts, expert)
    groups, before = e.variable(zero), e.variable(zero)
    with e.loop(zero, most) as expert:
        own, first = whole(counts, expert), e.ir.load(before, typ=I64)
        keep(first, counts, expert)
        e.ir.store(e.ir.add(first, own), before)
        with e.ir.if_then(e.ir.icmp_signed(">", own, zero)):
            group = e.ir.load(groups, typ=I64)
            keep(expert, experts, group)
            keep(first, starts, group)
            e.ir.store(e.ir.add(group, one), groups)
    touched = e.ir.load(groups, typ=I64)
    keep(pairs, starts, touched)
    keep(touched, head, zero)
    with e.loop(zero, pairs) as pair:
        expert = expert_of(pair)
        place = whole(counts, expert)
        keep(e.ir.add(place, one), counts, expert)
        keep(e.ir.sdiv(pair, used), tokens, place)
        e.store(e.load(e.address(weights, pair), F32), e.address(sorted_weights, place))
    return e.finish()
