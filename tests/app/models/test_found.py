"""Every model that other programs left on a computer is found, each once, with its names and its reason."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from app.models import builtin
from app.models.builtin import builtin_model_path, model_title
from app.models.choice import ModelChoiceError, resolve_model
from app.models.found import ModelSearch, find
from app.models.recommended import recommended_for
from app.models.stores import ollama
from app.models.stores.ollama import weights_of
from app.models.stores.surroundings import Surroundings, surroundings
from app.models.stores.table import KEYS, STORES
from app.settings.file import ModelSettings
from app.settings.paths import HOME_VARIABLE
from engine import summarize
from tests.app.models.stores import Stores
from tests.support.gguf_bytes import entry, gguf

TEMPLATE = b"{{ range .Messages }}{{ .Content }}{{ end }}"


@pytest.fixture
def stores(tmp_path):
    return Stores(tmp_path / "home")


def search(stores, platform="linux", **options):
    variables = options.pop("variables", {})
    around = Surroundings(stores.home, platform, variables, shared=False)
    return ModelSearch(around=around, **options)


def found_in(stores, platform="linux", **options):
    """All but the built-in model, by path."""
    return {one.path: one for one in find(search(stores, platform, **options))[1:]}


def names(found):
    return [(one.origin, one.names[0]) for one in found.values()]


def test_nothing_but_the_built_in_model_on_a_new_computer(stores):
    (only,) = find(search(stores))
    assert (only.path, only.title, only.store) == (builtin_model_path(), "builtin", "tui-chat")


def test_a_built_in_model_that_is_missing_hides_no_other(stores, monkeypatch):
    there = stores.hugging_face("bartowski/Qwen3-8B-GGUF", "Q4/Qwen3-8B-Q4_K_M.gguf", "new")
    monkeypatch.setattr(builtin, "BUILTIN_FILE", "lost.gguf")
    assert [one.path for one in find(search(stores))] == [there]


def test_the_cache_of_hugging_face_lists_a_file_of_two_revisions_once(stores):
    newest = stores.hugging_face("bartowski/Qwen3-8B-GGUF", "Q4/Qwen3-8B-Q4_K_M.gguf", "old", "new")
    found = found_in(stores)
    assert list(found) == [newest]
    assert names(found) == [("Hugging Face", "bartowski/Qwen3-8B-GGUF/Q4/Qwen3-8B-Q4_K_M")]
    assert found[newest].summary.supported


@pytest.mark.parametrize(
    ("variables", "root"),
    [
        ({"HF_HUB_CACHE": "{home}/hub"}, "hub"),
        ({"HUGGINGFACE_HUB_CACHE": "{home}/hub"}, "hub"),
        ({"HF_HOME": "{home}/hf"}, "hf/hub"),
        ({"XDG_CACHE_HOME": "{home}/c"}, "c/huggingface/hub"),
    ],
)
def test_variables_move_the_cache_of_hugging_face(stores, variables, root):
    stores.hugging_face("a/b", "not-here.gguf")
    there = stores.hugging_face("a/b", "m.gguf", root=root)
    variables = {name: value.format(home=stores.home) for name, value in variables.items()}
    assert list(found_in(stores, variables=variables)) == [there]


def test_lm_studio_where_it_is_and_where_its_settings_say(stores):
    usual = stores.model(".lmstudio/models/lmstudio-community/gemma/gemma-Q4.gguf")
    former = stores.model(".cache/lm-studio/models/TheBloke/m/m.gguf")
    moved = stores.model("elsewhere/models/a/b/c.gguf")
    chosen = stores.model("big-disk/a/b/d.gguf")
    stores.write(".lmstudio-home-pointer", f"{stores.home}/elsewhere\n")
    stores.write("elsewhere/settings.json", {"downloadsFolder": f"{stores.home}/big-disk"})
    found = found_in(stores)
    assert set(found) == {usual, former, moved, chosen}
    assert (found[usual].names[0], found[usual].title) == ("lmstudio-community/gemma/gemma-Q4", "gemma-Q4")
    assert {one.store for one in found.values()} == {"lm-studio"}


@pytest.mark.parametrize("broken", ["{", "[1]", '{"downloadsFolder": 7}', b"\xff\xfe"])
def test_settings_of_another_program_that_make_no_sense_are_passed_over(stores, broken):
    stores.write(".lmstudio/settings.json", broken)
    stores.write(".local/share/Jan/settings.json", broken)
    stores.write(".config/nomic.ai/GPT4All.ini", b"modelPath=\n\xff")
    usual = stores.model(".lmstudio/models/a/b/c.gguf")
    assert list(found_in(stores)) == [usual]


def gguf_bytes(stores):
    """Of a small model."""
    path = stores.model("spare.bin")
    content = path.read_bytes()
    path.unlink()
    return content


def test_ollama_under_its_names_with_what_its_manifest_keeps(stores):
    content = gguf_bytes(stores)
    params = b'{"temperature": 0.6, "stop": ["<|im_end|>"]}'
    layers = {"model": content, "template": TEMPLATE, "system": b"Be brief.", "params": params}
    blob = stores.ollama("registry.ollama.ai/library/qwen3/8b", **layers)
    stores.ollama("registry.ollama.ai/library/qwen3/latest", **layers)
    other = stores.ollama("hf.co/bartowski/X-GGUF/Q4_K_M", model=gguf_bytes(stores))
    mine = stores.ollama("registry.ollama.ai/me/tern/latest", model=gguf_bytes(stores))
    found = found_in(stores)
    assert set(found) == {blob, other, mine}
    assert found[blob].names == ("qwen3:8b", "qwen3:latest")
    assert found[blob].details == {
        "template": TEMPLATE.decode(),
        "system": "Be brief.",
        "parameters": {"temperature": 0.6, "stop": ["<|im_end|>"]},
    }
    assert (found[other].title, found[mine].title) == ("hf.co/bartowski/X-GGUF:Q4_K_M", "me/tern:latest")
    assert all(one.summary.supported for one in found.values())
    assert model_title(blob) == "qwen3:8b"


def test_a_name_of_ollama_with_other_parameters_is_a_model_of_its_own(stores):
    content = gguf_bytes(stores)
    blob = stores.ollama("registry.ollama.ai/library/qwen3/8b", model=content, params=b'{"temperature": 0.6}')
    for name in ("tern", "wren"):
        stores.ollama(
            f"registry.ollama.ai/library/{name}/latest", model=content, params=b'{"temperature": 0}'
        )
    found = found_in(stores)
    tern = stores.home / ".ollama/models/manifests/registry.ollama.ai/library/tern/latest"
    assert {path: one.names for path, one in found.items()} == {
        blob: ("qwen3:8b",),
        tern: ("tern:latest", "wren:latest"),
    }
    assert found[tern].summary == replace(found[blob].summary, path=tern)
    assert (found[tern].title, model_title(tern)) == ("tern:latest", "tern:latest")
    there = search(stores)
    assert resolve_model("tern", there) == resolve_model("wren", there) == tern
    assert resolve_model("qwen3:8b", there) == blob
    with pytest.raises(ModelChoiceError, match="named 'latest'"):
        resolve_model("latest", there)
    assert (weights_of(tern), weights_of(blob)) == (blob, blob)
    assert [recommended_for(path).values["temperature"] for path in (blob, tern)] == [0.6, 0]


def test_a_name_of_ollama_with_a_system_prompt_of_its_own_is_a_model_of_its_own(stores):
    content = gguf_bytes(stores)
    blob = stores.ollama("registry.ollama.ai/library/qwen3/8b", model=content)
    stores.ollama("registry.ollama.ai/library/tern/latest", model=content, system=b"Talk like a pirate.")
    tern = stores.home / ".ollama/models/manifests/registry.ollama.ai/library/tern/latest"
    assert set(found_in(stores)) == {blob, tern}
    assert [recommended_for(path).system for path in (blob, tern)] == ["", "Talk like a pirate."]


def test_names_of_programs_are_names_of_models(stores):
    blob = stores.ollama("registry.ollama.ai/library/qwen3/8b", model=gguf_bytes(stores))
    latest = stores.ollama("registry.ollama.ai/library/tern/latest", model=gguf_bytes(stores))
    hub = stores.hugging_face("a/Some-GGUF", "Some-Q4_K_M.gguf")
    there = search(stores)
    assert resolve_model("qwen3:8b", there) == resolve_model("QWEN3", there) == blob
    assert resolve_model("tern", there) == resolve_model("tern:latest", there) == latest
    assert resolve_model("a/Some", there) == resolve_model("some-q4_k_m", there) == hub
    with pytest.raises(ModelChoiceError, match=r"named 'gone'.*qwen3:8b"):
        resolve_model("gone", there)


def test_files_of_one_name_in_two_repositories_are_two_models(stores):
    one = stores.hugging_face("bartowski/Tern-GGUF", "Tern-Q4_K_M.gguf")
    other = stores.hugging_face("unsloth/Tern-GGUF", "Tern-Q4_K_M.gguf")
    with pytest.raises(ModelChoiceError, match=r"several models: bartowski/.*, unsloth/.*more of the name"):
        resolve_model("tern-q4_k_m", search(stores))
    assert resolve_model("unsloth/Tern-GGUF/Tern-Q4_K_M", search(stores)) == other
    assert resolve_model("bart", search(stores)) == one
    own = stores.model("models/Tern-Q4_K_M.gguf")
    assert resolve_model("tern-q4_k_m", search(stores, folders=(own.parent,))) == own


def test_a_name_of_a_file_that_several_programs_link_is_one_of_it(stores):
    blob = stores.ollama("registry.ollama.ai/library/qwen3/8b", model=gguf_bytes(stores))
    own = stores.home / "models/mine.gguf"
    own.parent.mkdir()
    os.link(blob, own)
    assert resolve_model("qwen3:8b", search(stores, folders=(own.parent,))) == own


def test_what_ollama_has_and_cannot_be_opened_says_why(stores):
    content = gguf_bytes(stores)
    stores.ollama("registry.ollama.ai/library/a/missing", model=None)
    stores.ollama("registry.ollama.ai/library/a/cloud", license=b"none")
    stores.ollama("registry.ollama.ai/library/a/tensors", tensor=b"1")
    stores.ollama("registry.ollama.ai/library/a/lora", model=content, adapter=b"GGUF")
    vision = stores.ollama(
        "registry.ollama.ai/library/a/vision",
        model=gguf_bytes(stores),
        projector=gguf([entry("general.architecture", 8, "clip")]),
    )
    for number, damaged in enumerate(
        ["{", {"layers": [1]}, {"layers": [{"mediaType": "x", "digest": "../y"}]}]
    ):
        stores.write(f".ollama/models/manifests/registry.ollama.ai/library/a/damaged{number}", damaged)
    found = found_in(stores)
    problems = {one.title: one.summary.problem for one in found.values()}
    assert problems.pop("a:vision") is None and found[vision].summary.supported
    assert "image projector" in problems.pop("a:vision projector")
    assert "missing; ollama pull a:missing" in problems.pop("a:missing")
    assert "Ollama's servers" in problems.pop("a:cloud")
    assert "separate tensors" in problems.pop("a:tensors")
    assert "adapter" in problems.pop("a:lora")
    assert len(problems) == 3 and all("damaged" in problem for problem in problems.values())
    assert not any(one.summary.supported for one in found.values() if one.path != vision)
    with pytest.raises(ModelChoiceError, match="a:cloud cannot be opened: It runs on"):
        resolve_model("a:cloud", search(stores))


def test_ollamas_variable_and_the_services_store_are_looked_into(stores):
    around = Surroundings(stores.home, "linux", {"OLLAMA_MODELS": "/big/ollama"})
    assert ollama.folders(around) == [
        Path("/big/ollama"), stores.home / ".ollama/models", Path("/usr/share/ollama/.ollama/models")
    ]  # fmt: skip
    assert ollama.folders(replace(around, platform="darwin"))[1:] == [stores.home / ".ollama/models"]


def test_llama_cpp_under_its_own_names_and_as_a_hub(stores):
    own = stores.model(".cache/llama.cpp/ggml-org_gemma-3-1b-it-GGUF_gemma-3-1b-it-Q4_K_M.gguf")
    stores.write(".cache/llama.cpp/manifest=ggml-org=gemma.json", "{}")
    stores.write(".cache/llama.cpp/half.gguf.downloadInProgress", b"GGUF")
    hub = stores.hugging_face("ggml-org/x", "x.gguf", root="llama")
    found = found_in(stores, variables={"LLAMA_CACHE": str(stores.home / "llama")})
    assert names(found) == [("llama.cpp", "ggml-org/x/x"), ("llama.cpp", own.stem)]
    assert list(found) == [hub, own]


def test_jan_names_models_after_their_folders(stores):
    plain = stores.model(".local/share/Jan/data/llamacpp/models/unsloth/Qwen3-4B-Q4/model.gguf")
    former = stores.model("jan/models/tern/tern-q4.gguf")
    imported = stores.model("disk/mine.gguf")
    record = ".local/share/Jan/data/llamacpp/models/mine/model.yml"
    stores.write(record, f"name: mine\nmodel_path: '{imported}'\nsize_bytes: 5\n")
    stores.write(
        ".local/share/Jan/data/llamacpp/models/unsloth/Qwen3-4B-Q4/model.yml",
        "model_path: llamacpp/models/unsloth/Qwen3-4B-Q4/model.gguf\n",
    )
    moved = stores.model("jan-data/llamacpp/models/moved/model.gguf")
    stores.write(".local/share/Jan/settings.json", {"data_folder": f"{stores.home}/jan-data"})
    found = found_in(stores)
    assert {path: one.names[0] for path, one in found.items()} == {
        plain: "unsloth/Qwen3-4B-Q4", former: "tern/tern-q4", imported: "mine", moved: "moved"
    }  # fmt: skip
    assert model_title(plain) == "Qwen3-4B-Q4"


def test_gpt4all_without_what_it_is_still_fetching(stores):
    usual = stores.model(".local/share/nomic.ai/GPT4All/Llama-3.gguf")
    stores.model(".local/share/nomic.ai/GPT4All/incomplete-Other.gguf")
    library = stores.model(".cache/gpt4all/mini.gguf")
    chosen = stores.model("disk/c.gguf")
    stores.write(".config/nomic.ai/GPT4All.ini", f"[General]\nmodelPath={stores.home}/disk\n")
    assert list(found_in(stores)) == [chosen, usual, library]


PLACES = {
    "linux": (".cache/llama.cpp", ".local/share/Jan/data", ".local/share/nomic.ai/GPT4All"),
    "darwin": (
        "Library/Caches/llama.cpp", "Library/Application Support/Jan/data",
        "Library/Application Support/nomic.ai/GPT4All",
    ),
    "win32": ("AppData/Local/llama.cpp", "AppData/Roaming/Jan/data", "AppData/Local/nomic.ai/GPT4All"),
}  # fmt: skip


@pytest.mark.parametrize("platform", PLACES)
def test_every_system_has_its_places(stores, platform):
    llama, jan, gpt4all = PLACES[platform]
    expected = [
        stores.hugging_face("a/b", "m.gguf"),
        stores.model(".lmstudio/models/a/b/c.gguf"),
        stores.ollama("registry.ollama.ai/library/qwen3/8b", model=gguf_bytes(stores)),
        stores.model(f"{llama}/x.gguf"),
        stores.model(f"{jan}/llamacpp/models/y/model.gguf"),
        stores.model(f"{gpt4all}/z.gguf"),
    ]
    found = found_in(stores, platform)
    assert list(found) == expected
    assert tuple(one.store for one in found.values()) == KEYS


def test_windows_variables_name_other_places(stores):
    variables = {"APPDATA": f"{stores.home}/r", "LOCALAPPDATA": f"{stores.home}/l"}
    expected = [stores.model("l/llama.cpp/x.gguf"), stores.model("r/Jan/data/models/y.gguf")]
    expected.append(stores.model("l/nomic.ai/GPT4All/z.gguf"))
    assert list(found_in(stores, "win32", variables=variables)) == expected


def test_a_file_that_several_programs_link_is_one_model_with_all_names(stores):
    blob = stores.ollama("registry.ollama.ai/library/qwen3/8b", model=gguf_bytes(stores), template=TEMPLATE)
    own = stores.home / "models/mine.gguf"
    own.parent.mkdir()
    os.link(blob, own)
    found = found_in(stores, folders=(own.parent,))
    assert list(found) == [own]
    assert found[own].names == ("mine", "qwen3:8b") and found[own].store == "tui-chat"
    assert found[own].details == {"template": TEMPLATE.decode()}
    assert resolve_model("qwen3:8b", search(stores, folders=(own.parent,))) == own


def test_weights_that_one_name_cannot_open_are_open_under_another(stores):
    content = gguf_bytes(stores)
    blob = stores.ollama("registry.ollama.ai/library/a/lora", model=content, adapter=b"GGUF")
    stores.ollama("registry.ollama.ai/library/b/plain", model=content)
    assert {one.title: one.summary.supported for one in find(search(stores))[1:]} == {
        "a:lora": False, "b:plain": True
    }  # fmt: skip
    assert resolve_model("b:plain", search(stores)) == blob


def test_stores_can_be_left_out(stores):
    kept = stores.hugging_face("a/b", "m.gguf")
    stores.model(".lmstudio/models/a/b/c.gguf")
    assert list(found_in(stores, left_out=("lm-studio",))) == [kept]
    assert ModelSettings.__dataclass_fields__["leave_out"].metadata["choices"] == KEYS


def test_a_folder_that_cannot_be_searched_hides_no_other(stores, monkeypatch):
    def fail(folder):
        yield from ()
        raise PermissionError(13, "denied", str(folder))

    last = stores.model(".cache/gpt4all/mini.gguf")
    stores.model(".lmstudio/models/a/b/c.gguf")
    table = tuple(replace(one, models=fail) if one.key == "lm-studio" else one for one in STORES)
    monkeypatch.setattr("app.models.found.STORES", table)
    assert list(found_in(stores)) == [last]


def test_nothing_in_a_store_is_changed(stores):
    stores.ollama("registry.ollama.ai/library/qwen3/8b", model=gguf_bytes(stores), params=b"{}")
    stores.hugging_face("a/b", "m.gguf")

    def state():
        return {path: path.lstat().st_mtime_ns for path in stores.home.rglob("*")}

    before = state()
    found_in(stores, cache=stores.home.parent / "cache")
    assert state() == before


def test_a_home_of_its_own_has_stores_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    monkeypatch.setenv("HF_HOME", "/elsewhere")
    assert surroundings() == Surroundings(tmp_path, shared=False)
    monkeypatch.delenv(HOME_VARIABLE)
    monkeypatch.setenv("HF_HOME", "/elsewhere")
    assert surroundings().folder("HF_HOME") == [Path("/elsewhere")] and surroundings().shared


def index_file(stores):
    return stores.home.parent / "cache" / "models.json"


def test_what_was_read_is_read_again_only_where_it_changed(stores, monkeypatch):
    path = stores.model("models/a.gguf")
    stores.model("models/b.gguf")
    options = {"folders": (stores.home / "models",), "cache": index_file(stores).parent}
    first = found_in(stores, **options)
    read = []
    monkeypatch.setattr("engine.summarize", lambda path: read.append(path) or summarize(path))
    assert found_in(stores, **options) == first and not read
    path.write_bytes(b"GGUF")
    found = found_in(stores, **options)
    assert read == [path] and not found[path].summary.supported


def test_a_missing_part_that_comes_is_seen(stores):
    part = gguf(
        [entry("split.count", 2, 2), entry("split.no", 2, 0), entry("general.architecture", 8, "llama")]
    )
    first = stores.write("models/a-00001-of-00002.gguf", part)
    options = {"folders": (stores.home / "models",), "cache": index_file(stores).parent}
    assert "part 2 of 2 is missing" in found_in(stores, **options)[first].summary.problem
    second = gguf([entry("split.count", 2, 2), entry("split.no", 2, 1)])
    stores.write("models/a-00002-of-00002.gguf", second)
    found = found_in(stores, **options)
    assert list(found) == [first] and "no weights" in found[first].summary.problem


@pytest.mark.parametrize(
    "damage",
    [
        b"", b"{", b"[]", b"\xff", b'{"program": 1, "files": {}}', b'{"files": 3}',
        lambda kept: kept | {"program": "older"},
        lambda kept: kept | {"files": [1]},
        lambda kept: kept | {"files": {path: [one[0], {}] for path, one in kept["files"].items()}},
        lambda kept: kept | {"files": {path: [one[0], None] for path, one in kept["files"].items()}},
        lambda kept: kept | {"files": dict.fromkeys(kept["files"], 5)},
        lambda kept: kept | {
            "files": {p: [one[0], one[1] | {"footprint": [1]}] for p, one in kept["files"].items()}
        },
    ],
)  # fmt: skip
def test_a_damaged_index_is_made_anew(stores, damage):
    stores.model("models/a.gguf")
    options = {"folders": (stores.home / "models",), "cache": index_file(stores).parent}
    first = found_in(stores, **options)
    file = index_file(stores)
    kept = file.read_bytes()
    file.write_bytes(damage if isinstance(damage, bytes) else json.dumps(damage(json.loads(kept))).encode())
    assert found_in(stores, **options) == first
    assert json.loads(file.read_bytes()) == json.loads(kept)


def test_an_index_that_cannot_be_written_is_done_without(stores):
    path = stores.model("models/a.gguf")
    cache = stores.write("cache", "a file where a folder should be")
    assert list(found_in(stores, folders=(path.parent,), cache=cache)) == [path]
