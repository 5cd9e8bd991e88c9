"""The engine's figures and what memory holds, as rows of text. No widget."""

from collections.abc import Callable, Sequence

from app.screens.engine_view.block_map import BlockMap
from app.settings.words import device_text, size_text
from app.widgets.lines import Row, fit, pair, row_width
from app.widgets.sentence import BETWEEN
from engine import DeviceUse, EngineStats, KVPool


def figure_rows(stats: EngineStats, use: DeviceUse | None, width: int, most: int) -> list[Row]:
    """Lay out all figures in at most so many rows; what does not fit is left out."""
    used, kept = size_text(stats.kv_bytes_used), size_text(stats.kv_bytes_cached)
    limit = f" of {stats.tick_limit_ms:.0f}" if stats.tick_limit_ms else ""
    parts = [
        f"{stats.device} · {stats.kernels}",
        *_device_parts(use),
        *map(_part_text, stats.parts),
        f"context {used} used, {kept} kept of {size_text(stats.kv_bytes_total)}, {stats.kv_dtype}",
        f"tick {stats.tick_ms:.0f}{limit} ms",
        f"{stats.rows} rows",
        f"writing {stats.decode_tok_s:.0f}/s, reading {stats.prefill_tok_s:.0f}/s",
        f"program {size_text(stats.process_bytes)}",
    ]
    groups = [group for model in stats.models for group in model.kv_groups if group.window]
    parts += [f"{size_text(g.bytes_used)} for the last {g.window:,} tokens" for g in groups if g.bytes_used]
    if stats.kv_bytes_host:
        parts.append(f"{size_text(stats.kv_bytes_host)} in host memory")
    if stats.preemptions:
        parts.append(f"made room {stats.preemptions:,} times")
    parts += [f"slower than it could be: {name}" for name in stats.slower]
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]}{BETWEEN if lines[-1] else ' '}{part}"
        if len(longer) <= width:
            lines[-1] = longer
        elif len(lines) < most:
            lines.append(f" {part}")
    return [((fit(line, width), "dim"),) for line in lines[:most]]


def _device_parts(use: DeviceUse | None) -> list[str]:
    """What the driver tells of a GPU, as far as it does."""
    if use is None:
        return []
    if use.parts:
        return [f"{device_text(one.device)} {', '.join(_device_parts(one))}" for one in use.parts]
    parts = []
    if use.memory_used is not None and use.memory_total is not None:
        size = f"{size_text(use.memory_used)} of {size_text(use.memory_total)}"
        parts.append(size if use.device else f"GPU {size}")
    if use.watts is not None:
        parts.append(f"{use.watts:.0f} W")
    return parts


def _part_text(part: EngineStats) -> str:
    """What one of several devices holds and does."""
    if part.failure:
        return f"{device_text(part.device)} lost until a restart"
    used, total = size_text(part.kv_bytes_used), size_text(part.kv_bytes_total)
    figures = f"{part.decode_tok_s:.0f}/s, tick {part.tick_ms:.0f} ms"
    return f"{device_text(part.device)} context {used} of {total}, {figures}"


def heading(title: str, middle: str, right: Row, width: int) -> Row:
    """A rule that begins with a title and ends with a few words."""
    left: Row = ((f" {title} ", "strong"), (f"{middle} " if middle else "", "dim"))
    room = width - row_width(left) - row_width(right) - 3
    if room < 0:
        left = ((f" {title} ", "strong"),)
        room = width - row_width(left) - row_width(right) - 3
    return pair(left, (("─" * max(0, room), "faint"), (" ", ""), *right, (" ", "")), width)


def pool_title(pool: KVPool, number: int, count: int) -> str:
    """Name a pool: its model, what its layers see, and which of how many it is."""
    layers = f", layers that see {pool.window:,} tokens" if pool.window else ""
    more = f" ({number} of {count})" if count > 1 else ""
    on = f" on {device_text(pool.device)}" if pool.device else ""
    return f"{pool.model}{on}{layers}{more}"


def scale_row(pool: KVPool, per_dot: int) -> Row:
    """Say what a dot of the map stands for."""
    blocks = "1 block" if per_dot == 1 else f"{per_dot:,} blocks"
    return ((f"1 dot = {blocks} of {pool.block_size} tokens", "accent"),)


def cursor_row(
    blocks: BlockMap,
    first: int,
    count: int,
    name: Callable[[int], str],
    kept_name: Callable[[str], str],
    width: int,
) -> Row:
    """Say what the cursor stands on: which blocks, whose they are, and what for.

    name, kept_name: of a sequence, and of an owner whose blocks are kept.
    """
    if not count:
        return ((" This model has no blocks", "dim"),)
    place = f" block {first:,}" if count == 1 else f" blocks {first:,} to {first + count - 1:,}"
    held = blocks.held_by(first, count)
    shared, kept, free = blocks.counts(first, count)
    kept_of = blocks.kept_of(first, count)
    if count == 1:
        of = "".join(f"kept of {kept_name(owner)}" for owner in kept_of)
        words = _one_block(blocks, first, list(held), name) or of
        words = words or ("kept for chats to come" if kept else "free")
    else:
        parts = [f"{name(sequence)} {number:,}" for sequence, number in held.most_common(3)]
        parts += [f"{number:,} kept of {kept_name(owner)}" for owner, number in kept_of.most_common(2)]
        counts = ((shared, "shared"), (kept, "kept"), (free, "free"))
        words = BETWEEN.join(parts + [f"{number:,} {word}" for number, word in counts if number])
    room = max(0, width - len(place) - 2)
    return ((place, "accent"), (": ", "dim"), (fit(words, room), "text"))


def _one_block(blocks: BlockMap, block: int, held: Sequence[int], name: Callable[[int], str]) -> str:
    """Whose a block is and which of their tokens it has; empty where nobody holds it."""
    if not held:
        return ""
    words = name(held[0])
    if len(held) > 1:
        words += (
            f" and {', '.join(map(name, held[1:3]))}{' …' if len(held) > 3 else ''}, shared by {len(held)}"
        )
    place = blocks.place_of(held[0], block)
    size = blocks.pool.block_size
    return words if place is None else f"{words}; tokens {place * size + 1:,} to {(place + 1) * size:,}"


def host_text(pool: KVPool) -> str:
    """Say what of a pool waits in host memory; empty where there is none for it."""
    if not pool.host_blocks:
        return ""
    size = size_text(pool.host_used * pool.block_bytes)
    return f"host memory: {pool.host_used:,} of {pool.host_blocks:,} blocks, {size}"
