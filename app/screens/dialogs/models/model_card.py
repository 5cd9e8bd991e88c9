"""The card of a row of the model picker: all that is known of one model."""

import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

from textual.content import Content

from app.models.builtin import is_builtin
from app.models.fit.fit_words import fit_text
from app.models.fit.speeds import Speed
from app.models.listed.listing import ModelFile
from app.models.listed.order import Known
from app.models.recommended import FROM_OLLAMA
from app.screens.dialogs.models.model_rows import Remote, Row, title_of
from app.screens.fetching import Fetchable
from app.settings.words import age_text, device_text, size_text
from app.terminal.controls import clean

_SYSTEM = 160
"""Characters of a system prompt."""
_LABEL = 11
_LEAST_SHARE = 0.005
_DIM = "$foreground 55%"

Line = tuple[str, str]
"""A label and its text; "!" is an error and "?" a warning, over the whole width."""


def card(row: Row | None, known: Known, width: int, *, now: float | None = None) -> Content:
    """Draw the card of a row for a width; empty for what is no model. now: in seconds since 1970."""
    if isinstance(row, Fetchable):
        return _drawn(row.title, _fetchable_lines(row), width)
    if isinstance(row, Remote):
        return _drawn(row.title, _remote_lines(row), width)
    if not isinstance(row, ModelFile):
        return Content("")
    star = "★ " if known.is_favourite(row) else ""
    title = f"{star}{title_of(row)}"
    return _drawn(title, _model_lines(row, known, time.time() if now is None else now), width)


def _drawn(title: str, lines: Iterator[Line], width: int) -> Content:
    parts: list[tuple[str, str]] = [("\n".join(_wrapped(title, width)), "bold")]
    for label, text in lines:
        style = {"!": "$error", "?": "$warning"}.get(label)
        if style is not None:
            parts.append(("\n" + "\n".join(_wrapped(text, width)), style))
            continue
        first, *more = _wrapped(text, width - _LABEL)
        parts += [(f"\n{label:<{_LABEL}}", _DIM), (first, "")]
        parts += [(f"\n{'':{_LABEL}}{line}", "") for line in more]
    return Content.assemble(*parts)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(clean(text), max(12, width)) or [""]


def _fetchable_lines(row: Fetchable) -> Iterator[Line]:
    if row.shortage:
        yield "?", row.shortage
    yield "Fetched by", f"tui-chat pull {row.what}"
    if row.begun:
        yield "Begun", f"{row.begun} are there"
    if row.terms:
        yield "Takes", row.terms
    if row.good_at:
        yield "Good at", row.good_at


def _remote_lines(row: Remote) -> Iterator[Line]:
    if row.problem is not None:
        yield "!", row.problem
    yield "Runs at", f"{row.endpoint.name}, {row.endpoint.url}"
    yield "Context", f"{row.context_length:,} tokens" if row.context_length else "the server does not say"
    if row.endpoint.api_key_keyring:
        yield "Key", f"{row.endpoint.api_key_keyring} of the system's keyring"
    elif row.endpoint.api_key_env:
        yield "Key", f"of the environment variable {row.endpoint.api_key_env}"


def _model_lines(model: ModelFile, known: Known, now: float) -> Iterator[Line]:
    summary = model.summary
    if model.problem is not None:
        yield "!", model.problem
    if summary is not None and summary.architecture:
        size = f", {_count_text(summary.parameters)} parameters" if summary.parameters else ""
        yield "Family", f"{summary.architecture}{size}"
    yield "Weights", _weights(model)
    if model.context_length:
        yield "Context", _context(model.context_length, known.notes.contexts.get(model.path))
    if model.fit is not None:
        yield "Memory", fit_text(model.fit)
    elif model.caution is not None:
        yield "Memory", model.caution
    if model.path in known.devices:
        yield "Open on", device_text(known.devices[model.path])
    if model.problem is None:
        yield "Speed", _speed(known.speeds.get(model.path), now)
        yield from _sampling(model)
    for number, (what, by) in enumerate(model.kernels):
        yield "" if number else "Kernels", f"{what}: {by}"
    for text in known.by_torch.get(model.path, ()):
        yield "", text
    if summary is not None and summary.architecture:
        template = "in the file" if summary.has_template else "none in the file, a usual one stands in"
        yield "Template", template
        yield "Tokenizer", summary.tokenizer or "not named"
        yield "Licence", summary.license or "not named in the file"
    yield from _place(model, known, now)


def _context(longest: int, chosen: int | None) -> str:
    if chosen is None or chosen >= longest:
        return f"{longest:,} tokens"
    return f"{chosen:,} of {longest:,} tokens, as chosen"


def _weights(model: ModelFile) -> str:
    summary = model.summary
    if summary is None or not summary.type_bytes:
        return f"{size_text(model.size_bytes)}, {model.quantization}"
    total = sum(summary.type_bytes.values())
    shares = {kind: count / total for kind, count in summary.type_bytes.items()}
    mix = ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items() if share >= _LEAST_SHARE)
    parts = f" in {summary.parts} files" if summary.parts > 1 else ""
    return f"{size_text(model.size_bytes)}{parts}, {model.quantization}: {mix}"


def _speed(speed: Speed | None, now: float) -> str:
    if speed is None:
        return "not measured here yet"
    reads = f", reads {speed.read_tok_s:,.0f}" if speed.read_tok_s else ""
    answers = "its last answer" if speed.answers == 1 else f"its last {speed.answers} answers"
    return f"writes {speed.tok_s:,.0f} tok/s{reads}; {answers} on {speed.device}, {_ago(speed.at, now)}"


def _sampling(model: ModelFile) -> Iterator[Line]:
    found = model.recommended
    by_source: dict[str, list[str]] = {}
    for name, value in found.values.items():
        by_source.setdefault(found.sources[name], []).append(f"{name.replace('_', ' ')} {value:g}")
    said = [f"{', '.join(values)}, from {source}" for source, values in by_source.items()]
    yield "Sampling", "; ".join(said) or "nothing recommended"
    if found.system.strip():
        shown = textwrap.shorten(found.system, _SYSTEM, placeholder="…")
        yield "Prompt", f"of chats without a system prompt, from {FROM_OLLAMA}: {shown}"
    for reason in found.ignored:
        yield "", f"not used: {reason}"


def _place(model: ModelFile, known: Known, now: float) -> Iterator[Line]:
    if model.found is not None and not is_builtin(model.path):
        names = ", ".join(model.found.names)
        yield "From", f"{model.found.origin}, as {names}" if names != model.title else model.found.origin
    if known.used(model):
        yield "Last used", _ago(known.used(model), now)
    dated = f", written {_ago(model.modified, now)}" if model.modified else ""
    yield "File", f"{str(model.path).replace(str(Path.home()), '~', 1)}{dated}"


def _ago(at: float, now: float) -> str:
    age = age_text(now - at)
    return "just now" if age == "now" else f"{age} ago"


def _count_text(count: int) -> str:
    return f"{count / 1e9:.1f} B" if count >= 10**9 else f"{count / 1e6:.0f} M"
