"""The engine that the settings describe calls models by the names that people know."""

import pytest

from app.models.make import make_engine
from app.settings.file import EngineSettings
from app.settings.paths import HOME_VARIABLE
from engine import EngineError
from tests.app.models.stores import Stores


@pytest.fixture
def stores(tmp_path, monkeypatch):
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    return Stores(tmp_path)


def test_a_blob_has_its_programs_name_in_statistics_and_errors(stores):
    content = stores.model("x.gguf").read_bytes()
    blob = stores.ollama("registry.ollama.ai/library/puffin/1b", model=content)
    settings = EngineSettings(device="cpu", weight_dtype="float32", kv_budget="1 MB")
    with make_engine(settings) as engine:
        model = engine.load(blob)
        own = engine.load(stores.model("models/tern.gguf"))
        assert (model.name, own.name) == ("puffin:1b", "tern")
        assert [one.name for one in engine.stats().models] == ["puffin:1b", "tern"]
    with make_engine(EngineSettings(device="cpu", kv_budget="1 kB")) as engine:
        with pytest.raises(EngineError, match=r"puffin:1b(?!.*sha256)"):
            engine.load(blob)
        with pytest.raises(EngineError, match=r"tern\.gguf"):
            engine.load(stores.home / "models" / "tern.gguf")
