"""Markdown that grows: golden rows of each construct, and nothing depends on how the text was cut."""

# ruff: noqa: E501 (golden rows read best as one line)
from __future__ import annotations

import itertools
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from app.markdown.document import Document
from app.markdown.inline import close_open_marks, parse_inline
from app.markdown.splitter import MAX_DEPTH, TAIL_LIMIT
from app.markdown.text import break_text, cells
from app.terminal.controls import clean


def rows(source: str, width: int = 40, markdown: bool = True) -> list[str]:
    document = Document(markdown)
    document.feed(source)
    document.finish()
    document.layout(width)
    return [line.text.rstrip() for line in document.lines]


def looks(source: str) -> list[tuple[str, str, bool, bool]]:
    return [(run.text, run.look.kind, run.look.bold, run.look.italic) for run in parse_inline(source)]


GOLDEN = [
    ("heading", "# One *two*\ntext\n## Three ##\n", 40, ["One two", "", "text", "", "Three"]),
    ("setext", "Title\n=====\nSub\n---\n", 40, ["Title", "", "Sub"]),
    ("paragraph", "one two three four five", 12, ["one two", "three four", "five"]),
    ("breaks", "roses are red\nviolets  \nend", 40, ["roses are red", "violets", "end"]),
    ("bullets", "- a\n- b\n  - c c c c c c c c\n- d", 12, ["• a", "• b", "  ◦ c c c c", "    c c c c", "• d"]),
    ("loose", "1. a\n\n2. b\n", 40, ["1. a", "", "2. b"]),
    ("two space nesting", "1. a\n  - b\n2. c", 40, ["1. a", "   ◦ b", "2. c"]),
    ("tasks", "- [x] done\n- [ ] open\n", 40, ["☑ done", "☐ open"]),
    ("empty item", "- \n- b", 40, ["•", "• b"]),
    ("quote", "> a\nlazy\n> > b\n\nc", 40, ["▎ a", "▎ lazy", "▎ ▎ b", "", "c"]),
    ("rule", "a\n\n---\nb", 10, ["a", "", "─" * 10, "", "b"]),
    ("fence", "```py\nx = 1\n\n  y\n```\nz", 20, [" 1 · py       copy", " x = 1", "", "   y", "", "z"]),
    ("longer fence", "````\n```\n````\n~~~\n```\n~~~", 20, [" 1 · text     copy", " ```", "", " 2 · text     copy", " ```"]),
    ("fence in item", "- a\n  ```\n  x\n  ```\n- b", 20, ["• a", "", "   1 · text   copy", "   x", "", "• b"]),
    ("indented code", "a\n\n    x\n\n      y\n\nb", 20, ["a", "", " 1 · text     copy", " x", "", "   y", "", "b"]),
    ("wrapped code", "```\n0123456789abcdef0123\n```", 18, [" 1 · text   copy", " 0123456789abcdef", "↳0123"]),
    ("inline formula", r"so \(x_1^2 \le \alpha\) and $a*b*c$ for $5 or $6", 60, ["so x₁² ≤ α and a*b*c for $5 or $6"]),
    ("formula in code", "`$x_1$` and `\\(y\\)`", 60, ["$x_1$ and \\(y\\)"]),
    ("formula", "As\n$$\n\\frac{a+b}{2} = \\sqrt{x}\n$$\nso", 40, ["As", "", "  (a+b)/2 = √x", "", "so"]),
    ("formula of lines", "\\[\na \\\\\n- b\n\\]", 40, ["  a", "", "  - b"]),
    ("money", "$5 and $10, or US$6", 40, ["$5 and $10, or US$6"]),
    ("image", "![a cat](https://a.b/c.png) ![](data:image/png;base64,AAAA)", 80, ["[image: a cat] (https://a.b/c.png) [image: untitled] (embedded)"]),
    ("html", "<b>x</b> <script>", 40, ["<b>x</b> <script>"]),
    ("markup", "[red]not markup[/red] [@click=app.quit]x[/]", 60, ["[red]not markup[/red] [@click=app.quit]x[/]"]),
    ("entities", r"&amp; &copy; \*no\* &#x202e;", 40, ["& © *no* ‹U+202E›"]),
    ("link", "[label](https://a.b/c) <https://a.b> [x](javascript:1)", 80, ["label (https://a.b/c) https://a.b [x](javascript:1)"]),
    ("table", "|a|bb|\n|-|-:|\n|1|2|\n|中|🎉x|", 40, ["a  │  bb", "───┼────", "1  │   2", "中 │ 🎉x"]),
    ("narrow table", "|name|words|\n|-|-|\n|x|one two three four|", 18, ["name │ words", "─────┼────────────", "x    │ one two", "     │ three four"]),
    ("no table", "a | b\nc | d", 40, ["a | b", "c | d"]),
    ("cjk", "中文文本需要换行。好", 10, ["中文文本需", "要换行。好"]),
    ("kinsoku", "中文文本。好", 8, ["中文文", "本。好"]),
    ("controls", "a\x1b[31mb\x07\x9b", 40, ["a␛[31mb␇\N{REPLACEMENT CHARACTER}"]),
    ("crlf", "a\r\n\r\n- b\r\n", 40, ["a", "", "• b"]),
    ("nothing", "", 40, []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "width", "expected"), [case[1:] for case in GOLDEN], ids=[case[0] for case in GOLDEN]
)
def test_construct(source: str, width: int, expected: list[str]) -> None:
    assert rows(source, width) == expected


@pytest.mark.parametrize("width", [40, 100])
def test_no_row_is_wider_than_the_text(width: int) -> None:
    source = textwrap.dedent(
        """\
        # A heading that is rather long and has to be wrapped somewhere, also at a hundred columns it has to be
        > > - a quoted item with `code` and 中文中文中文中文中文中文中文中文中文中文中文中文中文中文中文中文中文中文中文
        ```python
        value = "a very long line of code that does not fit into forty columns and not into a hundred either: 中文"
        ```
        | one | two two two two two two two two two two two two two | three three three three three three three |
        |---|:-:|--:|
        | a | b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b | cccccccccccccccccccccccccccccccccccccccc |
        """
    )
    assert max(cells(row) for row in rows(source, width)) <= width


def test_plain_text_keeps_everything_but_fences() -> None:
    assert rows("# no\n  * no\n```py\nx\n```", 30, markdown=False)[:2] == ["# no", "  * no"]


def test_inline() -> None:
    assert looks("a **b *c*** `d`") == [
        ("a ", "text", False, False),
        ("b ", "text", True, False),
        ("c", "text", True, True),
        (" ", "text", False, False),
        ("d", "code", False, False),
    ]
    assert [run.look.href for run in parse_inline("see https://x.y/z.") if run.look.href] == ["https://x.y/z"]


def test_unfinished_marks_are_closed_for_drawing() -> None:
    assert close_open_marks("a **b") == "a **b**"
    assert close_open_marks("a `b") == "a `b`"
    assert close_open_marks("a **") == "a "


PIECES = st.sampled_from(
    ["# ", "- ", "  - ", "1. ", "> ", "```py\n", "```\n", "~~~", "|a|b|\n", "|-|-|\n", "| x | y |\n", "\n", "\n\n",
     "    ", "---\n", "===\n", "**b**", "*", "`c`", "[l](http://x.y)", "word ", "中文", "🎉", "\t", "\r\n", "\x1b[2J", "\u202e",
     "&#27;", "<b>", "[red]", "def f(x): return '''", "/*", "x" * 300, "\\", "[ ] ", "=", "\u2028", "\ud800"]
)  # fmt: skip
TEXTS = st.lists(st.one_of(PIECES, st.text(max_size=6)), max_size=25).map("".join)


@settings(max_examples=250, deadline=None)
@given(source=TEXTS, cuts=st.lists(st.integers(0, 400), max_size=8), width=st.sampled_from([8, 40, 100]))
def test_any_cuts_give_the_rows_of_one_piece(source: str, cuts: list[int], width: int) -> None:
    whole = rows(source, width)
    document = Document()
    edges = [0, *sorted(min(cut, len(source)) for cut in cuts), len(source)]
    for start, end in itertools.pairwise(edges):
        document.feed(source[start:end])
        first = document.layout(width)
        assert 0 <= first <= len(document.lines)
    document.finish()
    document.layout(width)
    assert [line.text.rstrip() for line in document.lines] == whole
    marks = [line.mark for line in document.lines]
    assert marks == sorted(marks)
    for row in whole:
        assert clean(row) == row


@settings(max_examples=150, deadline=None)
@given(source=TEXTS)
def test_no_letter_is_lost(source: str) -> None:
    # Of what stands behind an opening fence the first word is shown, as the block's name.
    source = source.replace("~~~", "~~~\n")
    letters = [character for character in source if character in "中🎉"]
    shown = "".join(rows(source, 100))
    assert [character for character in shown if character in "中🎉"] == letters


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet="ab 中文。🎉e\u0301-", max_size=60), width=st.integers(2, 20))
def test_break_text_covers_all_but_spaces(text: str, width: int) -> None:
    spans = break_text(text, width)
    assert all(cells(text[start:end]) <= width or end - start <= 2 for start, end in spans)
    assert "".join(text[start:end] for start, end in spans).replace(" ", "") == text.replace(" ", "")


def test_fences_agree_with_markdown_it() -> None:
    source = "a\n```py\nx\n~~~\n```\n- b\n\n  ~~~\n  y\n   z\n  ~~~\n\n````x\n```\n````\n> ```\n> q\n"
    document = Document()
    document.feed(source)
    document.finish()
    expected = [token.content for token in MarkdownIt().parse(source) if token.type == "fence"]
    assert [block.text + "\n" for block in document.code_blocks()] == expected


def test_a_long_paragraph_is_cut_so_that_the_tail_stays_small() -> None:
    document = Document()
    document.feed("word " * 20_000)
    changed = document.layout(100)
    assert changed == 0
    document.feed("more ")
    assert len(document.lines) - document.layout(100) <= TAIL_LIMIT // 50
    assert sum(len(line.text.split()) for line in document.lines) == 20_001


def test_closed_code_keeps_its_rows_when_coloured_as_a_whole() -> None:
    document = Document()
    document.feed("```c\n/* a\n b */\nint x;\n```\nend\n")
    document.finish()
    document.layout(60)
    before = [line.text for line in document.lines]
    for _ in document.polish():
        pass
    document.layout(60)
    assert [line.text for line in document.lines] == before
    assert {run.look.kind for run in document.lines[2].runs if run.text.strip()} == {
        "token:Token.Comment.Multiline"
    }


@pytest.mark.parametrize(
    ("head", "line"),
    [
        ("```python\n", "value_{0} = compute({0})\n"),
        ("", "- item {0} with **bold** text\n"),
        ("|a|b|\n|-|-|\n", "| {0} | text |\n"),
        ("", "paragraph {0}\n\n"),
    ],
)
def test_a_frame_costs_the_new_rows_and_not_the_old_ones(head: str, line: str) -> None:
    document = Document()
    document.feed(head)
    document.layout(80)
    for number in range(300):
        before = list(document.lines)
        document.feed(line.format(number))
        document.layout(80)
        kept = sum(old is new for old, new in zip(before, document.lines, strict=False))
        assert len(before) - kept <= 30


@pytest.mark.parametrize("mark", ["> ", "- ", "1. "])
def test_nesting_is_bounded(mark: str) -> None:
    document = Document()
    document.feed(mark * 900 + "x")
    document.finish()
    assert max(len(element.block.prefixes) for element in document.elements) == MAX_DEPTH
