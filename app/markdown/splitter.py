"""Incremental splitter: markdown text in pieces of any size to blocks, each closed as early as is safe."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, replace
from typing import Literal

from app.markdown.blocks import Block, BlockKind, CodeLine, End, Event, Prefix, Row

# A paragraph or line longer than this is cut, so that the open tail stays cheap to draw again.
TAIL_LIMIT = 2000
MAX_DEPTH = 8

_FENCE = re.compile(r"( {0,3})(`{3,}(?=[^`]*$)|~{3,})[ \t]*(.*?)[ \t]*$")
_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))??(?:[ \t]+#+)?[ \t]*$")
_MATH = re.compile(r" {0,3}(\$\$|\\\[)")
_MATH_ENDS = {"$$": "$$", "\\[": "\\]"}
_RULE = re.compile(r" {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$")
_SETEXT = re.compile(r" {0,3}(={2,}|-{2,})[ \t]*$")
_ALIGNMENT = re.compile(r" {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$")
_QUOTE = re.compile(r" {0,3}> ?")
_ITEM = re.compile(r"( {0,3})([-+*]|\d{1,9}[.)])(?:( +)(?=\S)| *$)")
_TASK = re.compile(r"\[([ xX])\] +")
_CELL_BORDER = re.compile(r"(?<!\\)\|")
_ONLY_MARKS = re.compile(r"[\s`~#*_=+>|:.\-\d]*$")
_BULLETS = "•◦▪"

Leaf = Literal["", "paragraph", "fence", "indented", "table", "math"]


@dataclass(frozen=True, slots=True)
class _Container:
    number: int
    kind: Literal["quote", "item"]
    indent: int = 0
    marker: str = ""
    fresh: bool = True


def split_cells(line: str) -> tuple[str, ...]:
    """Return the cells of a table row, unescaped."""
    line = line.strip()
    if line.startswith("|"):
        line = line[1:]
    if line.endswith("|") and not line.endswith("\\|"):
        line = line[:-1]
    return tuple(cell.strip().replace("\\|", "|") for cell in _CELL_BORDER.split(line))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _alignments(line: str) -> str:
    sides = {(True, True): "c", (False, True): "r"}
    return "".join(sides.get((cell.startswith(":"), cell.endswith(":")), "l") for cell in split_cells(line))


class Splitter:
    """Feeds on text and gives out events; how the text was cut into pieces never changes them.

    With `markdown` false only fenced code is recognised and every other line stands for itself.
    """

    def __init__(self, markdown: bool = True) -> None:
        self.markdown = markdown
        self._partial = ""
        self._continues = False
        self._containers: list[_Container] = []
        self._leaf: Leaf = ""
        self._paragraph: list[str] = []
        self._size = 0
        self._fence = ("", 0, 0)
        self._math_end = ""
        self._blank_lines = 0
        self._last_kind: BlockKind | None = None
        self._cut = False
        self._numbers = 0
        self._events: list[Event] = []

    def feed(self, text: str) -> list[Event]:
        """Take more text and return what it closed."""
        self._events = []
        *lines, self._partial = (self._partial + text).split("\n")
        for line in lines:
            self._whole_line(line)
        self._partial = self._cut_long(self._partial)
        return self._events

    def finish(self) -> list[Event]:
        """Close everything; the splitter is used up."""
        self._events = []
        if self._partial or self._continues:
            self._whole_line(self._partial)
            self._partial = ""
        self._close_containers(0)
        return self._events

    def preview(self) -> list[Event]:
        """Return what `finish` would, changing nothing; a last line of mere marks is not yet shown."""
        twin = copy.copy(self)
        twin._containers = list(self._containers)
        twin._paragraph = list(self._paragraph)
        if not self._continues and self._leaf != "indented" and _ONLY_MARKS.match(self._partial):
            twin._partial = ""
        return twin.finish()

    # lines

    def _cut_long(self, line: str) -> str:
        while len(line) > TAIL_LIMIT:
            cut = line.rfind(" ", TAIL_LIMIT // 2, TAIL_LIMIT) + 1 or TAIL_LIMIT
            self._line(line[:cut])
            self._continues = True
            line = line[cut:]
        return line

    def _whole_line(self, line: str) -> None:
        self._line(self._cut_long(line).removesuffix("\r"))
        self._continues = False

    def _line(self, line: str) -> None:
        if self._continues:
            self._continue_line(line)
            return
        if self._containers and "\t" in line:
            body = line.lstrip(" \t")
            line = line[: len(line) - len(body)].expandtabs(4) + body
        rest, matched = self._match(line)
        if matched == len(self._containers) and self._in_code(rest):
            return
        if not rest.strip():
            self._blank(matched)
            return
        if not self.markdown:
            self._plain(rest)
            return
        rest, opened = self._open_containers(rest, matched)
        if opened or matched == len(self._containers):
            self._leaf_line(rest)
        elif self._leaf == "paragraph" and not self._starts_block(rest):
            self._add_paragraph(rest)
        else:
            self._close_containers(matched)
            self._leaf_line(rest)

    def _continue_line(self, text: str) -> None:
        if self._leaf in ("fence", "indented"):
            self._events.append(CodeLine(text, more=True))
        elif not self.markdown:
            self._block("plain", text, joined=True)
        elif text:
            self._cut = self._leaf == ""
            self._add_paragraph(text, joined=True)

    def _match(self, line: str) -> tuple[str, int]:
        """Strip the prefixes of the open containers; return the rest and how many matched."""
        rest = line
        for index, container in enumerate(self._containers):
            if container.kind == "quote":
                match = _QUOTE.match(rest)
                if match is None:
                    return rest, index
                rest = rest[match.end() :]
            else:
                indent = _indent(rest)
                if rest.strip() and indent < container.indent:
                    # Models indent bullets below "1." by two; strict markdown wants three.
                    nested = indent >= 2 and container.indent <= 4 and _ITEM.match(rest.lstrip(" "))
                    if not nested or self._leaf == "fence":
                        return rest, index
                rest = rest[min(indent, container.indent) :]
        return rest, len(self._containers)

    def _in_code(self, rest: str) -> bool:
        """Handle a line of open code or of a formula; false where the line is not part of it."""
        if self._leaf == "fence":
            mark, length, indent = self._fence
            stripped = rest.strip()
            if len(stripped) >= length and not stripped.strip(mark) and _indent(rest) <= 3:
                self._close_leaf()
            else:
                self._events.append(CodeLine(rest[min(indent, _indent(rest)) :]))
            return True
        if self._leaf == "math" and rest.strip():
            self._math_line(rest)
            return True
        if self._leaf == "indented" and rest.strip():
            if _indent(rest) < 4:
                self._close_leaf()
                return False
            self._events.extend(CodeLine("") for _ in range(self._blank_lines))
            self._blank_lines = 0
            self._events.append(CodeLine(rest[4:]))
            return True
        return False

    def _blank(self, matched: int) -> None:
        quotes = [
            i for i, container in enumerate(self._containers) if container.kind == "quote" and i >= matched
        ]
        if quotes:
            self._close_containers(quotes[0])
        if self._leaf != "indented":
            self._close_leaf()
        self._blank_lines += 1
        if not self.markdown:
            self._cut = False

    def _open_containers(self, rest: str, matched: int) -> tuple[str, bool]:
        opened = False
        while (len(self._containers) if opened else matched) < MAX_DEPTH:
            interrupting = not opened and self._leaf == "paragraph" and matched == len(self._containers)
            match = _QUOTE.match(rest)
            item = None if match else self._item_match(rest, interrupting)
            if match is None and item is None:
                break
            if not opened:
                self._close_containers(matched)
            self._close_leaf()
            container = self._new_item(item) if item else self._new("quote")
            match = item or match
            assert match is not None
            rest = rest[match.end() :]
            if container.kind == "item":
                if match[3] and len(match[3]) > 4:
                    rest = " " * (len(match[3]) - 1) + rest
                if task := _TASK.match(rest):
                    container = replace(container, marker="☐ " if task[1] == " " else "☑ ")
                    rest = rest[task.end() :]
            self._containers.append(container)
            opened = True
        return rest, opened

    def _item_match(self, rest: str, interrupting: bool) -> re.Match[str] | None:
        match = _ITEM.match(rest)
        if (
            match is None
            or _RULE.match(rest)
            or (self._leaf == "paragraph" and interrupting and _SETEXT.match(rest))
        ):
            return None
        if interrupting and (match[3] is None or (match[2][0].isdigit() and match[2][:-1] != "1")):
            return None
        return match

    def _new(self, kind: Literal["quote", "item"], indent: int = 0, marker: str = "") -> _Container:
        self._numbers += 1
        return _Container(self._numbers, kind, indent, marker)

    def _new_item(self, match: re.Match[str]) -> _Container:
        offset, marker, spaces = match.groups()
        padding = len(spaces) if spaces and len(spaces) <= 4 else 1
        if marker in "-+*":
            depth = sum(container.kind == "item" for container in self._containers)
            shown = _BULLETS[depth % len(_BULLETS)] + " "
        else:
            shown = marker + " "
        return self._new("item", len(offset) + len(marker) + padding, shown)

    # leaves

    def _starts_block(self, rest: str) -> bool:
        return bool(_FENCE.match(rest) or _HEADING.match(rest) or _RULE.match(rest))

    def _leaf_line(self, rest: str) -> None:
        if not rest.strip():
            return
        if self._leaf == "paragraph" and (self._setext(rest) or self._table_start(rest)):
            return
        if match := _FENCE.match(rest):
            self._close_leaf()
            self._fence = (match[2][0], len(match[2]), len(match[1]))
            self._block("code", match[3])
            self._leaf = "fence"
        elif match := _HEADING.match(rest):
            self._close_leaf()
            self._block("heading", match[2] or "", len(match[1]))
        elif _RULE.match(rest):
            self._close_leaf()
            self._block("rule")
        elif (match := _MATH.match(rest)) and self._is_formula(rest, match[1]):
            self._close_leaf()
            self._leaf, self._math_end, self._size = "math", _MATH_ENDS[match[1]], 0
            self._math_line(rest)
        elif self._leaf == "table":
            self._events.append(Row(split_cells(rest)))
        elif self._leaf != "paragraph" and _indent(rest) >= 4:
            self._block("code")
            self._leaf = "indented"
            self._events.append(CodeLine(rest[4:]))
        else:
            self._add_paragraph(rest)

    def _is_formula(self, line: str, mark: str) -> bool:
        """Whether a line that begins with a formula's mark has nothing behind its end."""
        end = line.find(_MATH_ENDS[mark], line.index(mark) + len(mark))
        return end < 0 or not line[end + len(mark) :].strip(" .,;")

    def _math_line(self, line: str) -> None:
        """Take a line of a formula that stands alone; it ends with its mark, or at a blank line."""
        begun = bool(self._paragraph)
        self._paragraph.append(line.strip())
        self._size += len(line)
        inside = line.strip() if begun else line.strip()[2:]
        if self._math_end in inside or self._size > TAIL_LIMIT:
            self._close_leaf()

    def _plain(self, line: str) -> None:
        if match := _FENCE.match(line):
            self._fence = (match[2][0], len(match[2]), len(match[1]))
            self._block("code", match[3])
            self._leaf = "fence"
        else:
            self._block("plain", line)

    def _setext(self, rest: str) -> bool:
        match = _SETEXT.match(rest)
        if match is None:
            return False
        text = "\n".join(self._paragraph)
        self._paragraph.clear()
        self._leaf = ""
        self._block("heading", text, 1 if match[1][0] == "=" else 2)
        return True

    def _table_start(self, rest: str) -> bool:
        header = self._paragraph[-1]
        if "|" not in header or "|" not in rest or not _ALIGNMENT.match(rest):
            return False
        columns = split_cells(header)
        if len(columns) != len(split_cells(rest)):
            return False
        self._paragraph.pop()
        self._close_leaf()
        self._block("table", _alignments(rest))
        self._events.append(Row(columns))
        self._leaf = "table"
        return True

    def _add_paragraph(self, text: str, joined: bool = False) -> None:
        if self._leaf not in ("paragraph", ""):
            self._close_leaf()
        if self._leaf == "paragraph" and self._size + len(text) > TAIL_LIMIT:
            self._close_leaf()
            self._cut = True
        if self._leaf != "paragraph":
            self._size = 0
        self._leaf = "paragraph"
        self._size += len(text)
        if joined and self._paragraph:
            self._paragraph[-1] += text
        else:
            self._paragraph.append(text)

    # closing

    def _close_leaf(self) -> None:
        leaf, self._leaf = self._leaf, ""
        if leaf in ("paragraph", "math"):
            if self._paragraph:
                self._block("math" if leaf == "math" else "paragraph", "\n".join(self._paragraph))
            self._paragraph.clear()
        elif leaf:
            self._events.append(End())

    def _close_containers(self, keep: int) -> None:
        """Close the open leaf and all containers but the first `keep`."""
        self._close_leaf()
        while len(self._containers) > keep:
            if self._containers[-1].kind == "item" and self._containers[-1].fresh:
                self._block("paragraph")
            self._containers.pop()

    def _block(self, kind: BlockKind, text: str = "", level: int = 0, joined: bool = False) -> None:
        gap = self._needs_gap(kind) and not joined
        prefixes = []
        for index, container in enumerate(self._containers):
            blank = " " * len(container.marker)
            if container.kind == "quote":
                prefixes.append(Prefix(container.number, "quote", "▎ ", "▎ "))
            else:
                first = container.marker if container.fresh else blank
                prefixes.append(Prefix(container.number, "item", first, blank))
            self._containers[index] = replace(container, fresh=False)
        self._events.append(Block(kind, text, level, tuple(prefixes), gap))
        self._last_kind, self._blank_lines, self._cut = kind, 0, False

    def _needs_gap(self, kind: BlockKind) -> bool:
        if self._last_kind is None or self._cut:
            return False
        if self._blank_lines:
            return True
        if self._containers and self._containers[-1].kind == "item" and self._containers[-1].fresh:
            return self._last_kind != "paragraph"
        loud = ("heading", "code", "rule", "table", "math")
        return kind in loud or self._last_kind in loud
