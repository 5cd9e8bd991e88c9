"""Which models may be deleted, and what is said where one may not."""

import pytest

from app.models.builtin import builtin_model_path
from app.models.found import ModelSearch
from app.models.listed.listing import ModelFile, find_models
from app.models.listed.removal import RemovalRefused, plan_removal, remove
from app.models.stores.surroundings import Surroundings
from app.settings.file import EngineSettings
from tests.app.models.stores import Stores


@pytest.fixture
def stores(tmp_path):
    return Stores(tmp_path)


@pytest.fixture
def search(tmp_path):
    around = Surroundings(tmp_path, "linux", {}, shared=False)
    return ModelSearch((tmp_path / "models",), engine=EngineSettings(device="cpu"), around=around)


def found(search, path):
    return next(model for model in find_models(search) if model.path == path)


def refused(model, search, in_use=()):
    with pytest.raises(RemovalRefused) as error:
        plan_removal(model, search, dict(in_use))
    return str(error.value)


def test_a_file_of_the_apps_own_folder_goes(stores, search):
    path = stores.model("models/tern.gguf")
    removal = plan_removal(found(search, path), search, {})
    assert (removal.paths, removal.size, removal.links) == ((path,), path.stat().st_size, False)
    remove(removal)
    assert not path.exists()


def test_a_split_model_goes_with_all_parts_that_are_there(stores, search):
    first = stores.write("models/a-00001-of-00003.gguf", b"12345")
    third = stores.write("models/a-00003-of-00003.gguf", b"123")
    other = stores.write("models/b-00001-of-00003.gguf", b"1")
    removal = plan_removal(ModelFile(first, "a"), search, {})
    assert (removal.paths, removal.size) == ((first, third), 8)
    remove(removal)
    assert not first.exists() and not third.exists() and other.exists()


def test_of_a_link_only_the_link_goes(stores, search):
    path = stores.model("elsewhere/tern.gguf")
    link = search.folders[0] / "tern.gguf"
    link.parent.mkdir()
    link.symlink_to(path)
    removal = plan_removal(ModelFile(link, "tern"), search, {})
    assert removal.links and removal.size == 0
    remove(removal)
    assert path.exists() and not link.is_symlink()


def test_the_built_in_model_stays(search):
    assert "part of tui-chat" in refused(ModelFile(builtin_model_path(), "builtin"), search)


def test_a_model_that_a_chat_has_open_stays(stores, search):
    path = stores.model("models/tern.gguf")
    said = refused(found(search, path), search, {path: "About terns"})
    assert said == "“About terns” has it open: choose another model there, then delete it."


def test_other_programs_are_named_with_their_way_to_remove(stores, search):
    stores.ollama("registry.ollama.ai/library/qwen3/8b", model=stores.model("x.gguf").read_bytes())
    stores.hugging_face("acme/tern-GGUF", "tern-q4.gguf")
    stores.model(".lmstudio/models/acme/gull/gull.gguf")
    said = {model.found.store: refused(model, search) for model in find_models(search)[1:]}
    assert said == {
        "ollama": "It belongs to Ollama: `ollama rm qwen3:8b` removes it.",
        "hugging-face": "It belongs to Hugging Face: `hf cache rm model/acme/tern-GGUF` removes it.",
        "lm-studio": "It belongs to LM Studio: LM Studio's list of its models removes it.",
    }


def test_a_folder_of_the_app_around_a_store_owns_nothing_of_it(stores, tmp_path):
    around = Surroundings(tmp_path, "linux", {}, shared=False)
    search = ModelSearch((tmp_path / ".lmstudio",), engine=EngineSettings(device="cpu"), around=around)
    path = stores.model(".lmstudio/models/acme/gull/gull.gguf")
    model = found(search, path)
    assert model.found.store == "tui-chat"
    assert "belongs to LM Studio" in refused(model, search)


def test_a_typed_file_outside_all_folders_stays(stores, search):
    path = stores.model("elsewhere/tern.gguf")
    assert (
        refused(ModelFile(path, "tern"), search) == f"It is in no folder of tui-chat: delete {path} yourself."
    )
    gone = search.folders[0] / "gone.gguf"
    assert "does not exist any more" in refused(ModelFile(gone, "gone"), search)
