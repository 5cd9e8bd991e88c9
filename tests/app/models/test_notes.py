"""Favourites and last uses on disk, and the speeds of reading beside those of writing."""

import json
from pathlib import Path

import pytest

from app.models.fit.speeds import SpeedStore, reading_speed
from app.models.listed.notes import ModelNotes, Notes
from engine import Finished, FinishReason

TERN, GULL = Path("/m/tern.gguf"), Path("/m/gull.gguf")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "state" / "models.json"


def test_favourites_come_and_go_and_are_there_the_next_time(file):
    notes = ModelNotes(file)
    assert notes.toggle_favourite(TERN) and notes.toggle_favourite(GULL)
    assert not notes.toggle_favourite(TERN)
    assert ModelNotes(file).read().favourites == {GULL}


def test_what_another_version_keeps_stays(file):
    file.parent.mkdir()
    file.write_text(json.dumps({"stars": 5, "favourites": [str(TERN), 7], "used": {str(GULL): True}}))
    notes = ModelNotes(file)
    notes.note_use(GULL)
    notes.keep_order("size")
    assert json.loads(file.read_text())["stars"] == 5
    assert (notes.read().favourites, notes.read().order) == ({TERN}, "size")
    assert notes.read().used[GULL] > 1.7e9


@pytest.mark.parametrize("text", ["", "[]", "{", '{"favourites": 1, "used": [], "order": 2}', "[" * 9999])
def test_a_damaged_file_says_nothing_and_is_written_anew(file, text):
    file.parent.mkdir()
    file.write_text(text)
    notes = ModelNotes(file)
    assert notes.read() == Notes()
    notes.toggle_favourite(TERN)
    assert notes.read().favourites == {TERN}


def test_a_favourite_that_cannot_be_kept_is_an_error_and_a_use_is_not(file):
    file.parent.write_text("a file where a folder should be")
    notes = ModelNotes(file)
    notes.note_use(TERN)
    with pytest.raises(OSError):
        notes.toggle_favourite(TERN)


def finished(**more):
    values = {"prompt_tokens": 1000, "cached_tokens": 200, "queue_ms": 500.0, "ttft_ms": 2500.0}
    return Finished(FinishReason.STOP, None, completion_tokens=50, tok_s=30.0, **(values | more))


def test_how_fast_a_prompt_was_read():
    assert reading_speed(finished()) == pytest.approx(400.0)
    assert reading_speed(finished(cached_tokens=990)) == 0.0
    assert reading_speed(finished(ttft_ms=None)) == 0.0
    assert reading_speed(finished(ttft_ms=500.0)) == 0.0


def test_speeds_written_before_keep_opening(tmp_path):
    file = tmp_path / "speeds.json"
    old = {str(TERN): {"device": "cpu", "tok_s": [10.0, 30.0], "at": 1}}
    file.write_text(json.dumps({"models": old}))
    store = SpeedStore(file)
    assert (store.all()[TERN].tok_s, store.all()[TERN].read_tok_s) == (20.0, 0.0)
    store.note(TERN, "cpu", 50.0, 100, 400.0)
    assert (store.all()[TERN].tok_s, store.all()[TERN].read_tok_s) == (30.0, 400.0)
    store.note(TERN, "cuda:0", 99.0, 100)
    assert (store.all()[TERN].tok_s, store.all()[TERN].read_tok_s) == (99.0, 0.0)
