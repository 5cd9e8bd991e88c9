"""Sampling that makers recommend: from files and from Ollama, under what the reader has chosen."""

import pytest

from app.models.backends.local import LocalModel
from app.models.backends.port import ChatRequest
from app.models.recommended import Recommended, recommended, recommended_for
from app.settings.file import load_settings
from engine import Message, SamplingParams
from tests.app.models.stores import Stores
from tests.support.fakes import FakeEngine, FakeModel
from tests.support.gguf_bytes import entry, gguf

FILE = [
    entry("general.architecture", 8, "llama"),
    entry("general.sampling.temp", 6, 0.6),
    entry("general.sampling.top_k", 5, 20),
    entry("general.sampling.min_p", 6, 7.0),
]


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "a.gguf"
    file.write_bytes(gguf(FILE))
    return file


def test_what_a_file_recommends_replaces_what_nobody_chose(path):
    found = recommended_for(path)
    assert found.values == {"temperature": 0.6, "top_k": 20}
    assert found.text("temperature") == "temperature 0.6, from the file"
    assert found.ignored == ("min_p: 7.0 is not between 0.0 and 1.0",)
    mine = SamplingParams(temperature=1.5, top_p=0.5, seed=3)
    assert found.applied(mine, ()) == SamplingParams(temperature=0.6, top_k=20, top_p=0.5, seed=3)
    assert found.applied(mine, {"temperature"}) == SamplingParams(
        temperature=1.5, top_k=20, top_p=0.5, seed=3
    )


def test_the_longest_answer_that_a_file_recommends_counts_where_nobody_set_one(path):
    path.write_bytes(gguf([*FILE[:2], entry("tui_chat.sampling.max_tokens", 4, 200)]))
    found = recommended_for(path)
    assert found.text("max_tokens") == "max tokens 200, from the file"
    assert found.applied(SamplingParams(), ()) == SamplingParams(temperature=0.6)
    assert found.limit(None, {"temperature"}) == 200
    assert found.limit(500, ()) == 500
    assert found.limit(None, {"max_tokens"}) is None
    assert Recommended().limit(None, ()) is None


@pytest.mark.parametrize(("kind", "most"), [(5, 0), (5, -1), (6, 20.5), (8, "many")])
def test_a_longest_answer_that_is_none_is_named_and_not_used(path, kind, most):
    path.write_bytes(gguf([*FILE[:1], entry("tui_chat.sampling.max_tokens", kind, most)]))
    found = recommended_for(path)
    assert not found.values and found.limit(None, ()) is None
    assert len(found.ignored) == 1 and "max_tokens" in found.ignored[0]


def test_a_file_that_is_changed_is_read_again_and_none_recommends_nothing(path):
    recommended_for(path)
    path.write_bytes(gguf([*FILE[:1], entry("general.sampling.temp", 6, 0.25)]))
    assert recommended_for(path).values == {"temperature": 0.25}
    assert recommended_for(path.with_name("none.gguf")) == Recommended()
    path.write_bytes(b"no model")
    assert recommended_for(path) == Recommended()


def test_ollamas_parameters_come_before_the_files():
    parameters = {"temperature": 1, "repeat_penalty": 1.1, "top_p": "high", "stop": ["x"], "num_ctx": 4096}
    found = recommended({"temperature": 0.6, "top_k": 20}, (), {"parameters": parameters})
    assert found.values == {"temperature": 1, "top_k": 20, "repetition_penalty": 1.1}
    assert found.text("top_k") == "top k 20, from the file"
    assert found.text("repetition_penalty") == "repetition penalty 1.1, from Ollama"
    assert found.ignored == ("top_p: 'high' is not a number",)


def test_what_ollama_keeps_beside_a_blob_is_found_by_its_file(tmp_path):
    stores = Stores(tmp_path)
    named = "registry.ollama.ai/library/tern/1b"
    blob = stores.ollama(named, model=gguf(FILE), params=b'{"temperature": 1.25, "min_p": 0.1}')
    assert recommended_for(blob).values == {"temperature": 1.25, "top_k": 20, "min_p": 0.1}
    stores.ollama(named, model=gguf(FILE), params=b"[]")
    assert recommended_for(blob).values == {"temperature": 0.6, "top_k": 20}


def test_a_chosen_setting_is_one_that_the_file_names_whatever_its_value(tmp_path):
    settings = tmp_path / "settings.toml"
    settings.write_text('[sampling]\ntemperature = 0.7\ntop_k = "many"\n')
    loaded, _ = load_settings(settings)
    assert loaded.sampling.chosen == {"temperature"}
    assert load_settings(tmp_path / "none.toml")[0].sampling.chosen == frozenset()


def test_a_chat_without_a_system_prompt_begins_with_that_of_ollama(tmp_path):
    stores = Stores(tmp_path)
    blob = stores.ollama("registry.ollama.ai/library/pirate/1b", model=gguf(FILE), system=b"Be a pirate.")
    fake = FakeModel(FakeEngine(), blob, 1000)
    asks = [Message("user", "Hello"), Message("assistant", "Ahoy"), Message("user", "Again")]
    for messages in (asks, [Message("system", "Be brief."), *asks]):
        own = len(messages) == len(asks)
        request = ChatRequest(messages, {len(messages) - 2: None}, SamplingParams(), 10, ())
        LocalModel(fake).chat(request)
        read, kept = fake.template.calls[-1]
        assert read[0] == ("system", "Be a pirate." if own else "Be brief.")
        assert [role for role, _ in read] == ["system", "user", "assistant", "user"]
        assert list(kept) == [2]
