"""What travels between Triton kernels: activations with their sums, and a pass's tables.

All tensors live on one device; none of the launches that take them waits for it.
"""

import os
from dataclasses import dataclass

import torch
from torch import Tensor

SUM_WIDTH = 16
"""Consecutive values that one entry of `Activations.sums` adds up."""


@dataclass(frozen=True, slots=True)
class Activations:
    """The input of a quantised linear.

    Weights of the form s·u − o need the sum of the inputs over each sub-block beside the inputs
    themselves; who writes the values writes both, so that no linear reads them twice.

    Of what is written here only gated products pass float16's end at 65,504: a norm gives at most its weight
    times the root of its width, attention at most the largest value in the KV, a sigmoid's gate no more than
    what it opens. Gated products, and residuals where a layer reads them without a norm, are held to that
    end; where a family's reach it, they are scaled before (`make_gate` in `kernels.contract`). What
    linears give is float32.
    """

    values: Tensor
    """float16 [M, K]."""
    sums: Tensor
    """float32 [M, ceil(K / 16)], sums of the rounded `values` over 16 consecutive columns."""


@dataclass(frozen=True, slots=True)
class PassTables:
    """Which tokens of one packed pass belong to which sequence, on the device.

    T tokens, S sequences; the first `num_decode` sequences have one token each, and their tokens
    come first. Padding sequences have a context length of 0 and no token of a chunk; a padding
    token's slot lies in the scratch block 0.
    """

    query_starts: Tensor
    """int32 [S + 1], cumulative query lengths (cu_seqlens)."""
    context_lens: Tensor
    """int32 [S], tokens up to and including the sequence's last one of this pass."""
    block_tables: Tensor
    """int32 [S, max_blocks]."""
    positions: Tensor
    """int32 [T]."""
    slots: Tensor
    """int64 [T], block * block_size + offset."""
    num_decode: int
    """Leading sequences with one token each, padding included: a size of the launch grid."""
    num_tokens: int
    """T, padding included."""
    shares_kv: bool = False
    """Whether decode rows read tokens that other rows of the pass write: then all are written first."""


def has_ptx(tensor: Tensor) -> bool:
    """Whether kernels on this tensor's device may use inline PTX."""
    return tensor.is_cuda and torch.version.cuda is not None and os.environ.get("TRITON_INTERPRET") != "1"
