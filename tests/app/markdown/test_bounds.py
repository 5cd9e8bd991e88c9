"""No text, however it is made, takes more work than its length."""

import pytest

from app.markdown import inline
from app.markdown.code import Highlighter
from app.markdown.document import Document
from app.markdown.inline import parse_inline
from app.markdown.text import Look, Run, cut_runs

MANY = 50_000


class Counted(list):
    """Runs that count how often they are looked at."""

    reads = 0

    def __getitem__(self, index):
        self.reads += 1
        return super().__getitem__(index)


@pytest.mark.parametrize(
    "text", ["[" * 2000, "![" * 1000, "*a " * 600, "` " * 1000, "~~a" * 600, "[a](b) " * 280]
)
def test_marks_that_nobody_wrote_are_not_parsed(text, monkeypatch):
    def parser():
        raise AssertionError("it was parsed")

    monkeypatch.setattr(inline, "_parser", parser)
    assert "".join(run.text for run in parse_inline(text)) == text.strip()


def test_marks_that_somebody_may_have_written_are():
    text = "**a** `b` [c](http://d.e) " * 25
    assert {run.look.kind for run in parse_inline(text)} >= {"text", "code", "link"}


def test_colours_of_a_long_line_come_in_small_steps():
    steps = list(Highlighter("py").whole("[" * MANY))
    assert len(steps) > MANY / 1000
    assert sum(len(batch) for batch in steps) == 1


def test_a_very_long_line_of_code_stays_one_run():
    document = Document()
    for _ in range(10):
        document.feed("" if document.elements else "```py\n")
        document.feed("[" * (MANY // 10))
        document.layout(80)
    document.feed("\n```\n")
    document.finish()
    document.layout(80)
    for _ in document.polish():
        pass
    [runs] = document.elements[0].runs
    assert len(runs) == 1 and len(document.block_at(0)[1]) == MANY


def test_every_run_is_read_once_whatever_the_rows():
    runs = Counted(Run("[", Look()) for _ in range(1000))
    rows = [(start, start + 10) for start in range(0, 1000, 10)]
    assert ["".join(run.text for run in row) for row in cut_runs(runs, rows)] == ["[" * 10] * 100
    assert runs.reads <= 1100


def test_rows_are_cut_where_they_are_whatever_the_runs():
    text = "ab cde  fghij"
    runs = [Run(part, Look(kind)) for part, kind in (("ab c", "x"), ("", "e"), ("de  fg", "y"), ("hij", "z"))]
    rows = [(0, 2), (3, 6), (8, 13)]
    assert ["".join(run.text for run in row) for row in cut_runs(runs, rows)] == [text[a:b] for a, b in rows]
    assert [[run.look.kind for run in row] for row in cut_runs(runs, rows)] == [["x"], ["x", "y"], ["y", "z"]]


@pytest.mark.parametrize(
    "piece", ["x = [1]; ", "中文 and a word that is long, ", "e\u0301", "wwwwwwwwwwwwwwwwwwwwwwwwwwwwwww中"]
)
def test_a_line_of_code_that_grows_has_the_rows_of_the_whole_and_each_is_laid_out_once(piece):
    grown, whole = Document(), Document()
    text = "```text\n" + piece * 1500
    for start in range(0, len(text), 997):
        grown.feed(text[start : start + 997])
        before = grown.elements[0].stable[:-1] if grown.elements else []
        grown.layout(40)
        assert all(one is other for one, other in zip(before, grown.elements[0].stable, strict=False))
    whole.feed(text)
    whole.layout(40)
    assert [line.text for line in grown.lines] == [line.text for line in whole.lines]
    assert [line.mark for line in grown.lines] == [line.mark for line in whole.lines]
