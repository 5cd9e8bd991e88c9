"""How long torch takes for what no kernel serves of a model, measured once, when it is loaded."""

from collections.abc import Callable
from contextlib import suppress

import torch

from engine.device.stream import DeviceStream
from engine.model.decoder import Decoder
from engine.model.split.split_decoder import SplitDecoder
from engine.runner.input_batch import InputBatch, whole_prompt
from engine.runner.model_kv import ModelKV
from kernels.contract import PassLayout
from kernels.pieces.operations import PieceOperations

CONTEXT, PROMPT = 512, 64
"""Tokens behind which one is measured, and of a prompt."""


def measure_pieces(
    decoder: Decoder | SplitDecoder,
    stream: DeviceStream,
    pools: int,
    open_kv: Callable[[list[int]], ModelKV] | None = None,
) -> None:
    """Time the pieces in passes of one token behind a context and of a short prompt, in KV of their own.

    open_kv: from pages of each pool, where not all of it is on the decoder's device. Nothing is known of the
    pieces where memory does not hold that KV.
    """
    ops = decoder.ops
    if not isinstance(ops, PieceOperations) or not ops.pieces:
        return
    place = torch.device("cpu") if isinstance(decoder, SplitDecoder) else ops.device
    with suppress(MemoryError, torch.OutOfMemoryError), torch.inference_mode(), stream.current():
        blocks = 1 + -(-CONTEXT // ops.block_size)
        counts = [blocks] * pools
        kv = ModelKV(ops, decoder.config, counts) if open_kv is None else open_kv(counts)
        try:
            for pool in range(pools):
                kv.back(pool, blocks)
                for page in range(1, blocks):
                    for piece in kv.pieces(pool, page):
                        piece.zero_()
            for make, tokens in ((_one_token, 1), (_prompt, PROMPT)):
                packed = make(ops.block_size, place)
                layouts = kv.by_group(packed.layouts * pools)
                decoder.forward(packed.ids, layouts, kv.groups, packed.logit_rows)
                with ops.pieces.measuring(tokens):
                    decoder.forward(packed.ids, layouts, kv.groups, packed.logit_rows)
        finally:
            stream.synchronize()
            kv.close()


def _prompt(block_size: int, device: torch.device) -> InputBatch:
    return whole_prompt([0] * PROMPT, block_size, device)


def _one_token(block_size: int, device: torch.device) -> InputBatch:
    """Behind a context of zeros: what was never written may be no number, and no router takes that."""
    last = torch.tensor([CONTEXT - 1], device=device)
    table = list(range(1, 1 + -(-CONTEXT // block_size)))
    layout = PassLayout([1], [CONTEXT], [table], 1, last, last + block_size)
    return InputBatch(torch.zeros(1, dtype=torch.int64, device=device), [layout], [], torch.zeros_like(last))
