"""The figures of a run as a table for people."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Sequence[str]


def render(figures: Mapping[str, Any]) -> str:
    """Aligned tables, one per part that was measured."""
    sections = [_head(figures)]
    if figures["prefill"]:
        lines = [
            (str(p["tokens"]), _speed(p["tok_s"]), f"{p['ttft_ms']:,.0f} ms") for p in figures["prefill"]
        ]
        sections.append(_table(("prefill tokens", "tok/s", "first token"), lines))
    if figures["decode"]:
        sections.append(
            _table(("decode rows", "depth", "total tok/s", "per row"), map(_decode_row, figures["decode"]))
        )
    if figures["packed"]:
        sections.append(_packed(figures["packed"]))
    if figures["stall"]:
        sections.append(_stall(figures["stall"]))
    sections.append(_memory(figures["memory"]))
    return "\n\n".join(sections)


def render_short(figures: Mapping[str, Any]) -> str:
    """What a short measurement beside chats has found, to be read in a dialog or pasted elsewhere."""
    machine = f"{figures['machine']['name']} ({figures['device']})"
    head = [f"{figures['model']}, {figures['quantization']}", f"on {machine}: {figures['kernels']}"]
    read = figures["prefill"]
    lines = [(f"reading {read['tokens']} tokens", _speed(read["tok_s"]), f"{read['ttft_ms']:,.0f} ms")]
    table = _table(("", "tok/s", "first token"), lines)
    rows = _table(("writing", "tok/s", "each"), map(_short_row, figures["decode"]))
    return "\n\n".join(["\n".join(head), table, rows, figures["others"]])


def _short_row(entry: Mapping[str, Any]) -> Row:
    rows, speed = entry["rows"], entry["tok_s"]
    return "1 answer" if rows == 1 else f"{rows} answers", _speed(speed), _speed(speed / rows)


def _head(figures: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in figures["versions"].items())
    where = f"{figures['machine']['name']} ({figures['device']})"
    lines = [f"{figures['model']} on {where}: {figures['kernels']}, KV {figures['kv_dtype']}", versions]
    if start := figures.get("start"):
        lines.append(f"loaded in {start['load_s']:.1f} s, first token after {start['first_token_s']:.1f} s")
    if placement := figures.get("placement"):
        lines.append(placement)
    lines += [f"slower than it could be: {fallback}" for fallback in figures["fallbacks"]]
    return "\n".join(lines)


def _decode_row(entry: Mapping[str, Any]) -> Row:
    rows, speed = entry["rows"], entry["tok_s"]
    return str(rows), str(entry["depth"]), _speed(speed), _speed(speed / rows)


def _packed(packed: Mapping[str, Any]) -> str:
    name = f"{packed['prompts']} prompts of {packed['tokens']}"
    row = (name, _speed(packed["tok_s"]), _speed(packed["one_by_one_tok_s"]), f"{packed['ratio']:.2f}x")
    return _table(("packed prefill", "together tok/s", "one by one", "gain"), [row])


def _stall(stall: Mapping[str, Any]) -> str:
    idle, loaded = stall["idle_ms"], stall["loaded_ms"]
    title = (
        f"{stall['rows']} rows while {stall['prompts']} x {stall['tokens']} tokens are read "
        f"(last first token after {stall['ttft_ms']:,.0f} ms)"
    )
    lines = [
        ("idle", f"{idle['p50']:.1f}", f"{idle['p99']:.1f}", ""),
        ("loaded", f"{loaded['p50']:.1f}", f"{loaded['p99']:.1f}", f"{loaded['max']:.1f}"),
        ("ratio", f"{loaded['p50'] / idle['p50']:.2f}x", f"{loaded['p99'] / idle['p99']:.2f}x", ""),
    ]
    return title + "\n" + _table(("gap, ms", "p50", "p99", "max"), lines)


def _memory(memory: Mapping[str, int]) -> str:
    return "memory: " + ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in memory.items())


def _speed(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def _table(head: Row, lines: Iterable[Row]) -> str:
    rows = [head, *lines]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(_line(row, widths) for row in rows)


def _line(row: Row, widths: Sequence[int]) -> str:
    first, *others = zip(row, widths, strict=True)
    cells = [first[0].ljust(first[1])] + [text.rjust(width) for text, width in others]
    return "  ".join(cells).rstrip()
