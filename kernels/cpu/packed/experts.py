"""Layers of many experts on CPUs, packed: few rows an expert are multiplied with what lies in memory."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.contract import ExpertMatrices, QuantizedMatrix
from kernels.cpu.activations import Activations
from kernels.cpu.compiler import LANES, shared_out
from kernels.cpu.dots import Dots, host_dots
from kernels.cpu.expert_pairs import Pairs, sort_kernel
from kernels.cpu.packed import products
from kernels.cpu.packed.expert_products import down_packed_kernel, open_packed_kernel
from kernels.cpu.packed.kinds import ProductKind, product_kind
from kernels.cpu.packed.products import PackedProduct
from kernels.cpu.packed.tiles import Allocate, PackedMatrix, is_packable, pack
from kernels.cpu.packed.values import slices_of
from kernels.host_memory import host_bytes
from kernels.reference.experts import Experts
from kernels.reference.gate import scaled

_DOWN_PIECES = 4
"""Pieces of a thread: what one reads of an expert is short enough as it is."""


@dataclass(frozen=True, slots=True)
class Stack:
    """One part of all experts, expert after expert, in tiles of 16 rows."""

    matrix: PackedMatrix
    step: int
    """Tiles from one expert to the next."""
    first: int
    """Tile of an expert at which the part begins."""
    tiles: int
    """Of an expert."""

    def product(self, x: Tensor, expert: int, exact: bool) -> Tensor:
        """x [n, columns] → float32 [n, rows] of one expert: by blocks of rows, or by torch slice by slice."""
        y = torch.empty(x.shape[0], self.tiles * LANES)
        start = expert * self.step + self.first
        if products.MORE_IN_BLOCKS and host_dots() is not Dots.PLAIN:
            own = PackedProduct(self.matrix.part(start, self.tiles), None, None, exact)
            own(Activations(x.to(torch.float32).contiguous(), exact), y.data_ptr(), y.shape[1])
            return y
        for row, values in slices_of(self.matrix, x.dtype, start, self.tiles):
            y[:, row : row + values.shape[1]] = torch.mm(x, values)
        return y


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """One layer's experts; `own` has all but their matrices."""

    own: Experts
    gate: Stack
    up: Stack
    down: Stack
    exact: bool

    @property
    def nbytes(self) -> int:
        """Memory held."""
        held = {id(part.matrix): part.matrix.nbytes for part in (self.gate, self.up, self.down)}
        return self.own.nbytes + sum(held.values())

    def kind(self, part: Stack) -> ProductKind:
        """Of a part's kernels."""
        return product_kind(part.matrix.type, None, self.exact)


def pack_experts(
    matrices: ExpertMatrices, memory: Allocate = host_bytes
) -> tuple[Stack, Stack, Stack] | None:
    """Gate, up and down; None where a type has no packed form or an expert does not fill tiles."""
    parts = [*matrices.gate_up, matrices.down]
    if any(part.shape[0] // matrices.count % LANES or not is_packable([part]) for part in parts):
        return None
    made = [pack([part], memory) for part in parts]
    stacks = [_stack(one, matrices.count) for one in made if one is not None]
    if len(stacks) < len(made):
        return None
    if len(stacks) == 3:
        return stacks[0], stacks[1], stacks[2]
    half = stacks[0].tiles // 2
    gate, up = (replace(stacks[0], first=first, tiles=half) for first in (0, half))
    return gate, up, stacks[1]


def without_matrices(matrices: ExpertMatrices) -> ExpertMatrices:
    """All else."""
    down = matrices.down
    return replace(
        matrices, gate_up=[], down=QuantizedMatrix(torch.empty(0, dtype=torch.uint8), down.type, down.shape)
    )


def _stack(matrix: PackedMatrix, count: int) -> Stack:
    return Stack(matrix, matrix.tiles // count, 0, matrix.tiles // count)


def compile_packed(experts: PackedExperts) -> None:
    """Have the kernels before the first pass."""
    for wide in (False, True):
        sort_kernel(wide)
    open_packed_kernel(experts.kind(experts.gate), experts.kind(experts.up), experts.own.activation)
    down_packed_kernel(experts.kind(experts.down))


def few_rows(x: Tensor, experts: PackedExperts, pairs: Pairs, out: Tensor) -> None:
    """Add the results of x float32 [T, hidden] to out, of its shape."""
    gate, up, down, own = experts.gate, experts.up, experts.down, experts.own
    opened = torch.empty(pairs.count, gate.tiles * LANES)
    source = Activations(x, experts.exact)
    *of_pairs, weights = pairs.addresses
    open_packed_kernel(experts.kind(gate), experts.kind(up), own.activation)(
        *shared_out(pairs.groups * gate.tiles), gate.tiles, gate.matrix.blocks, up.matrix.blocks,
        gate.step, up.step, up.first, *_addresses(gate), *_addresses(up), _address(own.gate_up_bias),
        *of_pairs, *source.addresses(), opened.data_ptr(),
    )  # fmt: skip
    between = Activations(scaled(opened, own.activation_scale), experts.exact)
    down_packed_kernel(experts.kind(down))(
        *shared_out(down.tiles, _DOWN_PIECES), pairs.groups, down.matrix.blocks, *_addresses(down),
        _address(own.down_bias), *of_pairs, weights, *between.addresses(), out.data_ptr(),
    )  # fmt: skip


def _addresses(part: Stack) -> tuple[int, int]:
    return part.matrix.quants.data_ptr(), part.matrix.scales.data_ptr()


def _address(values: Tensor | None) -> int:
    return 0 if values is None else values.data_ptr()
