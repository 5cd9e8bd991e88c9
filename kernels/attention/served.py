"""Which attention the kernels serve: what a model's header alone tells."""

from kernels.quant.formats import KVFormat

LARGEST_HEAD = 512
"""Tiles of longer heads do not fit into shared memory."""
LARGEST_WIDE_HEAD = 256
"""Products of longer float32 heads do not fit into registers."""


def unserved_attention(head_dim: int, kv_format: KVFormat) -> str:
    """Why no kernel computes the attention of heads of a size; empty where one does."""
    if head_dim > LARGEST_HEAD:
        return f"no kernel serves heads of {head_dim}, more than {LARGEST_HEAD}"
    if head_dim > LARGEST_WIDE_HEAD and kv_format == "float32":
        return f"no kernel serves float32 KV of heads of {head_dim}, more than {LARGEST_WIDE_HEAD}"
    return ""
