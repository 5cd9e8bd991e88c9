"""Shapes of passes that a GPU runner captures, and trimming chunks so that they fill one.

A captured pass costs what its shape costs, however much of it is padding.
"""

from collections.abc import Iterable

from engine.scheduler.cost_model import Load
from engine.scheduler.plan import PrefillChunk

DECODE_ROWS = (1, 2, 4, 8, 16, 32, 64)
"""Rows of a pass without chunks."""
MIXED_ROWS = (0, 8, 32, 64)
"""Decode rows of a pass with chunks."""
CHUNKS = (8, 64)
"""Chunks of a pass."""
PASS_TOKENS = (64, 128, 256, 512)
"""Tokens of a pass with chunks, its decode rows among them."""
VERIFY_TOKENS = (4, 8, 16)
"""Tokens of a pass of decode rows with draft tokens behind them."""
CHUNK_STEP, LONG_STEP = 4, 16
"""Tokens by which quick passes' chunks differ, up to `LONG_STEP` and beyond: a shape that came before takes
less work of the host."""
LEAST_FEW = 4
"""Prompt tokens for which a quick pass is worth while."""
MOST_FEW = 6
"""So many times the tokens of a quick pass are read in a slow one."""


def round_up(count: int, sizes: Iterable[int]) -> int | None:
    """The smallest size that holds `count`, or None."""
    return next((size for size in sizes if size >= count), None)


def padded_load(load: Load, drafts: bool = False) -> Load:
    """What a pass of `load` costs as: a pass that is a CUDA graph computes its padding too.

    drafts: whether some of the rows are draft tokens, for which passes have other sizes.
    """
    if drafts and not load.prefill_tokens:
        return load._replace(rows=round_up(load.rows, VERIFY_TOKENS) or load.rows)
    if not load.prefill_tokens:
        return load._replace(rows=round_up(load.rows, DECODE_ROWS) or load.rows)
    decode = round_up(load.rows, MIXED_ROWS)
    tokens = None if decode is None else round_up(decode + load.prefill_tokens, PASS_TOKENS)
    if decode is None or tokens is None:
        return load
    return load._replace(prefill_tokens=tokens - decode)


def trim_to_pass(chunks: list[PrefillChunk], num_decode: int) -> list[PrefillChunk]:
    """Shorten the last chunks so that the pass is a captured shape and not mostly padding.

    Nothing is trimmed where it would take more than half of the tokens, or where the pass is larger
    than any shape or smaller than the smallest.
    """
    rows = round_up(num_decode, MIXED_ROWS)
    total = sum(chunk.length for chunk in chunks)
    if rows is None or not PASS_TOKENS[0] < rows + total <= PASS_TOKENS[-1]:
        return chunks
    below = max(size for size in PASS_TOKENS if size <= rows + total)
    surplus = rows + total - below
    if all(chunk.completes for chunk in chunks) or 2 * surplus > total:
        return chunks
    return _without_last(chunks, surplus)


def trim_to_few(chunks: list[PrefillChunk], room: int) -> list[PrefillChunk]:
    """Shorten the last chunks to `room` tokens, with which the pass is a quick one.

    Nothing is trimmed where there is next to no room, or so much to read that a slower pass gives more.
    """
    total = sum(chunk.length for chunk in chunks)
    if room < LEAST_FEW or not room < total <= MOST_FEW * room:
        return chunks
    return _without_last(chunks, total - room)


def round_to_step(chunks: list[PrefillChunk], room: int) -> list[PrefillChunk]:
    """Bring a lone chunk of a quick pass to one length of a few, so that passes have few shapes.

    The rest of a prompt is read as it is, and so is what fills a quick pass: it has `room` tokens.
    """
    if len(chunks) != 1 or chunks[0].completes or chunks[0].length >= room:
        return chunks
    (chunk,) = chunks
    step = CHUNK_STEP if chunk.length < LONG_STEP else LONG_STEP
    length = chunk.length // step * step
    if length <= CHUNK_STEP:
        # Chunks of one length say nothing of what a token more costs, and would stay as they are.
        length = max(1, (chunk.length + step // 2) // step) * step
    return [PrefillChunk(chunk.sequence, chunk.start, min(length, chunk.sequence.remaining, room))]


def trim_to_cap(chunks: list[PrefillChunk], most: int) -> list[PrefillChunk]:
    """Shorten the last chunks so that there are at most `most` tokens."""
    surplus = sum(chunk.length for chunk in chunks) - most
    return _without_last(chunks, surplus) if surplus > 0 else chunks


def _without_last(chunks: list[PrefillChunk], surplus: int) -> list[PrefillChunk]:
    """Chunks less the last `surplus` tokens."""
    kept: list[PrefillChunk] = []
    for chunk in reversed(chunks):
        cut = min(surplus, chunk.length)
        surplus -= cut
        if chunk.length > cut:
            kept.append(PrefillChunk(chunk.sequence, chunk.start, chunk.length - cut))
    return kept[::-1]
