"""Texts that are put into a message under a name: how they stand in it, and how they are found again.

A file or a chat is a line with its name and a fenced block; a folder is a line with its name and the
number of the files that follow.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

_OPENING = re.compile(r"^(File|Chat) (\S[^\n]*):\n(`{3,})[^\n`]*\n", re.MULTILINE)
_FOLDER = re.compile(r"^Folder (\S[^\n]*), (\d{1,4}) files?:\n\n", re.MULTILINE)
_FENCES = re.compile(r"`{3,}")
_GAP = "\n\n"


@dataclass(frozen=True, slots=True)
class Block:
    """Where a named text stands in a message; `kind` is `file`, `folder` or `chat`."""

    start: int
    end: int
    kind: str
    name: str


def fenced(kind: str, name: str, text: str, language: str = "") -> str:
    """Write a text under a name; its fence is longer than any in it."""
    longest = max((len(found[0]) for found in _FENCES.finditer(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{kind.capitalize()} {_one_line(name)}:\n{fence}{language}\n{text.rstrip()}\n{fence}"


def gathered(name: str, files: Sequence[str]) -> str:
    """Write the files of a folder, each of them fenced already, under its name."""
    count = f"{len(files)} file" + ("s" if len(files) != 1 else "")
    return f"Folder {_one_line(name)}, {count}:{_GAP}{_GAP.join(files)}"


def blocks_in(text: str) -> list[Block]:
    """Find the named texts of a message, in order."""
    single = list(_single_blocks(text))
    starts = {block.start: index for index, block in enumerate(single)}
    found: list[Block] = []
    taken = 0
    for header in _FOLDER.finditer(text):
        index = starts.get(header.end(), len(single))
        files = single[index : index + int(header[2])]
        whole = len(files) == int(header[2]) > 0 and all(
            before.end + len(_GAP) == after.start for before, after in pairwise(files)
        )
        if whole and index >= taken:
            found += [*single[taken:index], Block(header.start(), files[-1].end, "folder", header[1])]
            taken = index + len(files)
    return found + single[taken:]


def _single_blocks(text: str) -> Iterator[Block]:
    at = 0
    unclosed: set[str] = set()
    while opening := _OPENING.search(text, at):
        at = opening.end()
        fence = opening[3]
        # Each fence is looked for to the text's end once: a text full of openings takes no longer.
        end = -1 if fence in unclosed else _closing(text, fence, at - 1)
        if end < 0:
            unclosed.add(fence)
            continue
        yield Block(opening.start(), end, opening[1].casefold(), opening[2])
        at = end


def _closing(text: str, fence: str, at: int) -> int:
    found = re.compile(rf"^{fence}(?=[ \t]*$)", re.MULTILINE).search(text, at + 1)
    return found.end() if found else -1


def _one_line(name: str) -> str:
    return " ".join(name.split()) or "without a name"
