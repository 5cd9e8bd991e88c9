"""The logits of one prompt by itself, on a GPU, in KV of its own."""

from torch import Tensor

from engine.device.stream import DeviceStream
from engine.model.decoder import Decoder
from engine.runner.input_batch import whole_prompt
from engine.runner.model_kv import ModelKV


def prompt_logits(decoder: Decoder, stream: DeviceStream, pools: int, token_ids: list[int]) -> Tensor:
    """float32 [T, vocab]; the KV is given back when the stream is done with it."""
    ops = decoder.ops
    blocks = (len(token_ids) + ops.block_size - 1) // ops.block_size + 1
    kv = ModelKV(ops, decoder.config, [blocks] * pools)
    try:
        for pool in range(pools):
            kv.back(pool, blocks)
        packed = whole_prompt(token_ids, ops.block_size, ops.device)
        layouts = kv.by_group(packed.layouts * pools)
        return decoder.forward(packed.ids, layouts, kv.groups, None).cpu()
    finally:
        stream.synchronize()
        kv.close()
