"""Addresses in a text: which a terminal may open by itself, and which there are."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from app.markdown.text import Run

_SAFE_SCHEMES = frozenset({"http", "https", "mailto"})
FILE = "file://"


def safe_link(url: str) -> str:
    """Return `url` when a terminal may open it, else an empty string."""
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        return ""
    return url if scheme in _SAFE_SCHEMES and url.isascii() and url.isprintable() else ""


def links_of(runs: Iterable[Run]) -> list[tuple[str, str]]:
    """Return the label and the address of every link, each address once; a file's too, which nothing opens
    unless it is asked for.
    """
    found: dict[str, str] = {}
    open_address = ""
    for run in runs:
        address = address_of(run)
        if address and address == open_address:
            found[address] += run.text
        elif address and address not in found:
            found[address] = run.text
            open_address = address
        else:
            open_address = ""
    return [(label.strip() or address, address) for address, label in found.items()]


def address_of(run: Run) -> str:
    """Return the address that a run is the label of, else an empty string."""
    if run.look.kind != "link":
        return ""
    return run.look.href or (run.text if run.text.startswith(FILE) else "")
