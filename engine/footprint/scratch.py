"""What a pass takes of a GPU beside weights and KV: the sum of what its operations declare for T tokens.

A layer's projections, attention and residual stream stay until its end; of the products one at a time adds
its input, its result and a dense copy of its weights. A runner measures the same when a model is loaded.
"""

from engine.footprint.rules import KEPT_BYTES, PLANE_BYTES, DeviceRules
from engine.footprint.shape import Experts, Footprint, Linear

COPY_WEIGHTS = 128 << 20
"""Most weights of a dense copy."""
SUM_WIDTH = 16
"""Values that share a sum of 4 bytes."""
SAMPLED_ROWS = 72
"""Rows of logits of the longest pass, each twice: as partial sums and added up."""
WORKSPACE = 32 << 20
"""Of the vendor's products."""
_GAPS = 1.1
"""What an allocator takes beyond what it is asked for."""
LEAST_PASS = 512
"""Tokens to which a pass is cut at most."""
PASS_SHARE = 0.25
"""Most of what weights leave that the longest pass may take."""


def scratch_bytes(footprint: Footprint, rules: DeviceRules, tokens: int) -> int:
    """Memory of a pass of so many tokens; 0 where it is none of a GPU's own."""
    if not rules.pass_tokens:
        return 0
    hidden, vocabulary = footprint.embedding.columns, footprint.embedding.parts[0].rows
    linears = [one for one, _ in footprint.linears if _rows(one) != vocabulary]
    stages = [linear_scratch(one, tokens) for one in linears]
    stages += [expert_scratch(one, tokens) for one, _ in footprint.experts]
    projected = max((_rows(one) for one in linears if one.columns == hidden and not one.paired), default=0)
    stream = 4 * tokens * hidden
    held = stream + 4 * tokens * projected + activations(tokens, projected)
    layer = held + stream + activations(tokens, hidden) + max(stages, default=0)
    ending = stream + 2 * 4 * SAMPLED_ROWS * vocabulary
    return int(_GAPS * max(layer, ending)) + WORKSPACE


def longest_pass(footprint: Footprint, rules: DeviceRules, left: int, share: float = PASS_SHARE) -> int:
    """Tokens of a pass that takes no more than its share of what weights leave, halved as often as needed."""
    tokens = rules.pass_tokens
    while tokens > LEAST_PASS and scratch_bytes(footprint, rules, tokens) > share * left:
        tokens //= 2
    return tokens


def activations(tokens: int, width: int) -> int:
    """float16 values and their sums."""
    return tokens * (2 * width + 4 * -(-width // SUM_WIDTH))


def linear_scratch(linear: Linear, tokens: int) -> int:
    """Of one product of many tokens: its input, a copy of its weights, its result; with a gate, that too."""
    rows, columns = _rows(linear), linear.columns
    source = activations(tokens, columns)
    if all(part.type in PLANE_BYTES for part in linear.parts):
        copy = 2 * columns * min(rows, max(64, COPY_WEIGHTS // columns // 64 * 64))
        result = (2 if linear.paired else 4) * tokens * rows
    else:
        # Of bfloat16 both halves of the input are multiplied; other types are joined behind it.
        copy = 4 * tokens * columns
        result = 2 * max(KEPT_BYTES.values()) * tokens * rows
    opened = activations(tokens, rows // 2) if linear.paired else 0
    return source + max(copy + result, result + opened)


def expert_scratch(experts: Experts, tokens: int) -> int:
    """Of the experts of one layer: what each token's are opened to, and their results."""
    pairs = tokens * experts.used
    return activations(pairs, experts.size) + 4 * pairs * experts.hidden + 32 * pairs


def _rows(linear: Linear) -> int:
    return sum(part.rows for part in linear.parts)
