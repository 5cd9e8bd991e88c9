"""How fast a model will write: by what others wrote here, by the memory's bandwidth where none did."""

import json

import pytest

from app.models.fit.device import Memory
from app.models.fit.expectation import expect
from app.models.fit.fit_words import speed_text
from app.models.fit.pace import Pace, pace_of
from app.models.fit.speeds import SpeedStore
from app.models.found import ModelSearch
from app.models.stores.surroundings import Surroundings
from engine import Outline, Room, read_bytes, summarize
from tests.app.computer import CPU, GPU
from tests.support.tiny_gguf import make_tiny

GB = 10**9
SHAPE = Outline("Q8_0", 4, 256, 4, 2, 64, 2048, 16_384, ffn=512)


class Known:
    shape, memory_8k = SHAPE, 0


class Unknown:
    shape, memory_8k = None, 3 * GB


@pytest.fixture
def search(tmp_path):
    return ModelSearch(cache=tmp_path / "cache", around=Surroundings(tmp_path))


def probe(monkeypatch, given):
    asked = []
    monkeypatch.setattr("engine.read_bandwidth", lambda rules, threads: asked.append(rules.device) or given)
    return asked


def test_what_wrote_here_tells_and_the_nearest_in_size_most():
    known = Pace(measured=((100, 1000.0), (10_000, 50_000.0)))
    assert known.tok_s(200) == 5.0 and known.tok_s(5_000) == 10.0
    assert Pace(bandwidth=1000.0).tok_s(200) == 5.0
    assert Pace().tok_s(200) is None and known.tok_s(0) is None


def test_answers_of_this_device_calibrate(tmp_path, search, monkeypatch):
    asked = probe(monkeypatch, 1e9)
    model = make_tiny(tmp_path / "a.gguf", "llama")
    speeds = SpeedStore(tmp_path / "speeds.json")
    speeds.note(model, "cpu", 50.0, 100)
    speeds.note(tmp_path / "gone.gguf", "cpu", 5.0, 100)
    nbytes = read_bytes(summarize(model).footprint, CPU)
    assert pace_of(search, Memory(CPU, Room(GB)), speeds) == Pace(((nbytes, nbytes * 50.0),))
    assert not asked
    # Another device's answers say nothing.
    assert pace_of(search, Memory(GPU, Room(GB)), speeds) == Pace(bandwidth=0.4e9)


def test_without_answers_memory_is_measured_once_for_each_device(tmp_path, search, monkeypatch):
    asked = probe(monkeypatch, 2e9)
    speeds = SpeedStore(tmp_path / "speeds.json")
    for _ in range(2):
        assert pace_of(search, Memory(CPU, Room(GB)), speeds) == Pace(bandwidth=1e9)
    assert asked == ["cpu"]
    pace_of(search, Memory(GPU, Room(GB)), speeds)
    assert asked == ["cpu", "cuda:0"]


@pytest.mark.parametrize("damage", ["", "[]", '{"key": 1}', '{"key": %s, "bytes_a_second": "nan"}'])
def test_a_damaged_record_is_measured_anew(tmp_path, search, monkeypatch, damage):
    asked = probe(monkeypatch, 2e9)
    speeds = SpeedStore(tmp_path / "speeds.json")
    pace_of(search, Memory(CPU, Room(GB)), speeds)
    file = search.cache / "bandwidth.json"
    key = json.loads(file.read_text())["key"]
    file.write_text(damage % json.dumps(key) if "%s" in damage else damage)
    assert pace_of(search, Memory(CPU, Room(GB)), speeds) == Pace(bandwidth=1e9)
    assert asked == ["cpu", "cpu"]


def test_a_device_that_nobody_knows_the_bandwidth_of_has_no_speed(tmp_path, search, monkeypatch):
    probe(monkeypatch, None)
    assert pace_of(search, Memory(GPU, Room(GB)), SpeedStore(tmp_path / "no.json")) == Pace()
    assert not (search.cache / "bandwidth.json").exists()


def test_a_model_without_a_shape_is_held_against_what_its_entry_says():
    said = expect(Unknown(), Memory(GPU, Room(2 * GB)), Pace(bandwidth=1e9))
    assert (said.memory, said.tok_s) == (3 * GB, None)
    assert said.shortage == "needs 3.0 GB of memory; 2.0 GB of memory of the GPU are free"
    assert expect(Unknown(), Memory(CPU, Room(4 * GB)), Pace()).shortage == ""
    assert expect(Unknown(), Memory(CPU, Room(None)), Pace()).shortage == ""
    assert expect(Unknown(), None, Pace()).memory == 3 * GB


def test_a_model_that_does_not_fit_says_what_would_and_that_is_so():
    fits = Memory(GPU, Room(GB))
    whole = fits.fit_of(SHAPE.footprint)
    short = Memory(GPU, Room(whole.weight_bytes + (256 << 20) + (8 << 20), kv_budget_bytes=12 << 20))
    said = expect(Known(), short, Pace(bandwidth=1e9))
    assert said.tok_s == pytest.approx(1e9 / read_bytes(SHAPE.footprint, GPU))
    assert 'fits with kv_dtype = "q8_0"' in said.shortage and "with chats of up to" in said.shortage
    advised = next(one for one in short.fit_of(SHAPE.footprint).advice if one.kind == "context")
    assert short.fit_of(SHAPE.footprint, context=int(advised.value)).verdict == "fits"


@pytest.mark.parametrize(
    ("tok_s", "said"),
    [
        (None, ""),
        (0.4, "under 1 tok/s"),
        (7.6, "about 8 tok/s"),
        (41.0, "about 40 tok/s"),
        (268.0, "about 250 tok/s"),
        (1234.0, "about 1,000 tok/s"),
    ],
)
def test_speeds_in_words(tok_s, said):
    assert speed_text(tok_s) == said
