"""The table of models by name, the user's own, and the plans that come of them."""

import hashlib
from pathlib import Path

import pytest

from app.fetch.catalogue import Entry, KnownFile, read_catalogue
from app.fetch.fetch import State
from app.fetch.sources import make_plan
from app.transfer.errors import FetchError
from engine.model.families import FAMILIES
from tests.support.file_server import File

OWN = """
[[model]]
name = "qwen3-4b"
title = "Mine"
good_at = "everything"
licence = "MIT"
architecture = "qwen3"
parameters = 4_000_000_000
memory_8k = "4 GB"
sources = ["https://models.example/mine.gguf"]
"""


def entry(*sources, files=(), consent=False):
    return Entry("tiny", "Tiny", "tests", "MIT", "", consent, "llama", 1, 1, tuple(sources), tuple(files))


def test_the_package_s_catalogue_is_sound():
    entries, warnings = read_catalogue()
    assert warnings == []
    assert len({entry.name for entry in entries}) == len(entries)
    sizes = [entry.parameters for entry in entries]
    assert sizes == sorted(sizes) and sizes[0] < 150e6 and sizes[-1] > 110e9
    for found in entries:
        assert found.architecture in FAMILIES, found.name
        assert all(source.startswith(("hf:", "pypi:")) for source in found.sources), found.name
        # Layers that guess tokens ahead are in a file's parameters and not in what runs.
        assert found.shape.parameters == pytest.approx(
            found.parameters, rel=0.04 if "glm" in found.name else 0.001
        )
        assert all(
            source.endswith(f":{found.shape.type}") for source in found.sources if source.count(":") > 1
        )
        assert found.title and found.good_at and found.licence
        assert not found.consent or found.licence_url.startswith("https://"), found.name


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("smollm2-135m", 98_362_432),
        ("qwen3-1.7b", 1_834_426_016),
        ("smollm3-3b", 1_915_305_312),
        ("gemma3-4b", 2_489_757_856),
        ("qwen3-4b-instruct", 2_497_281_120),
    ],
)
def test_a_file_is_as_large_as_its_shape_says(name, size):
    found = next(entry for entry in read_catalogue()[0] if entry.name == name)
    assert found.shape.file_bytes == pytest.approx(size, rel=0.03)


def test_every_entry_can_be_planned_as_far_as_its_words_go():
    for found in read_catalogue()[0]:
        for source in found.sources:
            kind, _, rest = source.partition(":")
            assert rest.count("/") == 1 if kind == "hf" else rest.count("==") == 1


def test_a_user_s_own_models_are_added_and_replace(tmp_path):
    own = tmp_path / "catalogue.toml"
    own.write_text(OWN + OWN.replace("qwen3-4b", "new"))
    entries, warnings = read_catalogue(own)
    assert warnings == []
    by_name = {entry.name: entry for entry in entries}
    assert by_name["qwen3-4b"].title == "Mine" and by_name["new"].memory_8k == 4 * 10**9
    assert len(entries) == len(read_catalogue()[0]) + 1
    assert read_catalogue(tmp_path / "none.toml")[1] == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('title = "Mine"', "", "qwen3-4b: title is missing"),
        ('title = "Mine"', "title = 3", "title must be text in quotes"),
        ('title = "Mine"', 'title = "x"\ntitel = "Mine"', "unknown field titel"),
        ("4_000_000_000", "0", "parameters must be a whole number above 0"),
        ("4_000_000_000", "true", "parameters must be a whole number"),
        ('"4 GB"', '"much"', "memory_8k: 'much' is not a size"),
        ('memory_8k = "4 GB"', "", "shape is missing"),
        ('memory_8k = "4 GB"', "shape = { layers = 1 }", "shape: type is missing"),
        ('memory_8k = "4 GB"', "shape = { layers = '1' }", "shape: layers must be a whole number"),
        ('memory_8k = "4 GB"', "shape = { layer = 1 }", "shape: unknown layer"),
        ('"qwen3-4b"', '"hf:x"', "name must be a word"),
        ('["https://models.example/mine.gguf"]', "[]", "sources must be one or more"),
        ('["https://models.example/mine.gguf"]', '["qwen"]', "sources must be one or more"),
        ("parameters", "files = [{ name = 'a.gguf', size = 3 }]\nparameters", "files must be tables"),
        ("parameters", "files = [{ name = '../a.gguf', size = 3, sha256 = '0' }]\nparameters", "files: name"),
        (
            "parameters",
            "files = [{ name = 'a.gguf', size = 3, sha256 = '0' }]\nparameters",
            "sha256 of a.gguf",
        ),
        ("[[model]]", "[model]", "must be tables below [[model]]"),
        ("[[model]]", "[[modell]]", "unknown modell"),
        ('name = "qwen3-4b"', "name = ", "cannot be read"),
    ],
)
def test_a_bad_entry_is_named_by_file_and_field_and_left_out(tmp_path, old, new, said):
    own = tmp_path / "catalogue.toml"
    own.write_text(OWN.replace(old, new))
    entries, warnings = read_catalogue(own)
    assert len(warnings) == 1 and warnings[0].startswith(f"{own}: ") and said in warnings[0]
    assert all(entry.title != "Mine" for entry in entries)


def test_a_name_is_fetched_from_the_first_source_that_answers(server, fetched, models, model_bytes):
    server.files["/tiny.gguf"] = File(model_bytes)
    sha256 = hashlib.sha256(model_bytes).hexdigest()
    known = KnownFile("tiny.gguf", len(model_bytes), sha256)
    found = entry(server.url("/gone/tiny.gguf"), server.url("/tiny.gguf"), files=[known], consent=True)
    fetch = fetched("TINY", [found])
    assert fetch.progress.state is State.DONE
    plan = fetch.plan
    assert (plan.what, plan.title, plan.licence.name, plan.licence.consent) == ("tiny", "Tiny", "MIT", True)
    assert plan.files[0].sha256 == sha256
    assert "has no /gone/tiny.gguf" in plan.notes[0]


def test_the_catalogue_s_checksum_is_the_one_that_counts(server, fetched, models, model_bytes):
    server.files["/tiny.gguf"] = File(model_bytes)
    known = KnownFile("tiny.gguf", len(model_bytes), "0" * 64)
    progress = fetched("tiny", [entry(server.url("/tiny.gguf"), files=[known])]).progress
    assert "is not what its checksum says" in progress.error


def test_a_source_that_has_changed_is_said_so(server, model_bytes):
    server.files["/tiny.gguf"] = File(model_bytes)
    known = KnownFile("other.gguf", 3, "0" * 64)
    with pytest.raises(FetchError, match=r"no longer holds other\.gguf"):
        make_plan("tiny", [entry(server.url("/tiny.gguf"), files=[known])], environment={})


def test_when_no_source_answers_all_are_named(server):
    found = entry(server.url("/a.gguf"), server.url("/b.gguf"))
    with pytest.raises(FetchError, match=r"no /a\.gguf.*; .*no /b\.gguf"):
        make_plan("tiny", [found], environment={})


def test_an_unknown_name_says_which_may_be_meant():
    with pytest.raises(FetchError, match="did you mean qwen3-4b"):
        make_plan("qwen3-4", read_catalogue()[0], environment={})


def test_the_catalogue_goes_with_the_package():
    import app.fetch

    assert (Path(app.fetch.__file__).parent / "catalogue.toml").is_file()
