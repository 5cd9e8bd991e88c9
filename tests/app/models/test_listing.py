"""What the picker shows of a model: where it was found, what it takes, and how fast it was."""

import json
from dataclasses import replace

import pytest

from app.models.fit import device as module
from app.models.fit.device import Memory, device_rules, memory_of, remember_rules
from app.models.fit.fit_words import advice_text, fit_text
from app.models.fit.speeds import LEAST_TOKENS, SpeedStore
from app.models.found import ModelSearch
from app.models.listed.listing import find_models, read_model
from app.models.make import make_engine
from app.settings.file import EngineSettings
from app.settings.paths import HOME_VARIABLE
from app.settings.words import count_text, tokens_text
from engine import Advice, AdviceKind, Fit, Room, Verdict, fit, summarize
from engine.footprint.split import Split
from engine.model.split.placement import Placement
from tests.support.tiny_gguf import make_tiny

CPU = EngineSettings(device="cpu", weight_dtype="float32")
GB = 10**9


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def search(tmp_path, cache, **options):
    return ModelSearch((tmp_path,), cache=cache, engine=CPU, **options)


def test_the_picker_offers_what_cannot_be_opened_last(tmp_path, cache):
    (tmp_path / "a.gguf").write_bytes(b"")
    make_tiny(tmp_path / "b.gguf", "llama")
    builtin, good, bad = find_models(search(tmp_path, cache))
    assert (builtin.title, good.title, bad.title) == ("builtin", "b", "a")
    assert good.problem is None and good.fit.verdict is Verdict.FITS and good.caution is None
    assert good.found.origin == "tui-chat" and good.found.summary.type_bytes
    assert [what for what, _ in good.kernels] == ["F32", "attention"] and bad.kernels == ()
    assert good.modified == good.path.stat().st_mtime and good.recommended.values == {}
    assert "empty" in bad.problem and bad.fit is None


def test_a_typed_path_is_judged_too(tmp_path, cache):
    path = make_tiny(tmp_path / "b.gguf", "llama")
    assert read_model(path, search(tmp_path, cache)).fit.verdict is Verdict.FITS
    assert "does not exist" in read_model(tmp_path / "c.gguf", search(tmp_path, cache)).problem


def test_a_model_that_is_too_large_says_so_in_numbers(tmp_path, cache, monkeypatch):
    make_tiny(tmp_path / "b.gguf", "llama")
    monkeypatch.setattr("engine.free_memory", lambda rules: 1 << 20)
    model = find_models(search(tmp_path, cache))[1]
    assert model.fit.verdict is Verdict.TOO_LARGE
    assert model.caution.startswith("needs ") and model.caution.endswith("; 1 MB are free")


def test_a_device_that_is_not_there_hides_no_model(tmp_path, cache):
    make_tiny(tmp_path / "b.gguf", "llama")
    absent = replace(search(tmp_path, cache), engine=replace(CPU, device="cuda:63"))
    assert memory_of(absent) is None
    assert [model.fit for model in find_models(absent)] == [None, None]


def test_rules_are_asked_for_once(cache, monkeypatch):
    rules = device_rules(CPU, cache)
    monkeypatch.setattr("engine.device_rules", lambda options: pytest.fail("asked again"))
    assert device_rules(CPU, cache) == rules
    with pytest.raises(pytest.fail.Exception):
        device_rules(replace(CPU, weight_dtype="bfloat16"), cache)


def test_another_version_of_torch_or_another_driver_is_asked_anew(tmp_path, cache, monkeypatch):
    known = module._key(CPU)
    monkeypatch.setattr(module, "_DRIVER", tmp_path / "version")
    (tmp_path / "version").write_text("NVRM version: 1")
    driver = module._key(CPU)
    monkeypatch.setattr(module.metadata, "version", lambda _name: "99")
    assert len({known, driver, module._key(CPU)}) == 3


@pytest.mark.parametrize(
    "damage",
    ["", "[]", '{"key": 1}', {"holding": "magic"}, {"block_size": 0}, {"extra": 1}, {"kv_format": "q9"}],
)
def test_a_damaged_record_of_the_device_is_made_anew(cache, damage):
    rules = device_rules(CPU, cache)
    file = cache / "device.json"
    kept = json.loads(file.read_text())
    damaged = damage if isinstance(damage, str) else kept | {"rules": [kept["rules"][0] | damage]}
    file.write_text(damaged if isinstance(damaged, str) else json.dumps(damaged))
    assert device_rules(CPU, cache) == rules
    assert json.loads(file.read_text()) == kept


def test_an_engine_that_starts_says_how_it_holds_models(home):
    with make_engine(CPU) as engine:
        record = json.loads((home / "cache" / "device.json").read_text())
    assert record["rules"] == [rules.as_data() for rules in engine.rules]


def test_a_record_that_cannot_be_written_is_done_without(tmp_path, cache):
    cache.write_text("a file where a folder should be")
    remember_rules(device_rules(CPU, None), CPU, cache)
    assert memory_of(search(tmp_path, cache)) is not None


def test_a_limit_of_a_gpus_memory_is_what_is_free(tmp_path, cache, monkeypatch):
    gpu = replace(device_rules(CPU, None)[0], device="cuda:0", gpu="GPU-1")
    monkeypatch.setattr(module, "device_rules", lambda settings, cache: (gpu,))
    monkeypatch.setattr("engine.free_memory", lambda rules: 40 * GB)
    limited = replace(search(tmp_path, cache), engine=replace(CPU, vram_limit="12GB", kv_budget="2GB"))
    assert memory_of(limited).room == Room(12 * GB, 2 * GB)
    assert memory_of(search(tmp_path, cache)).room == Room(40 * GB)


def test_of_several_gpus_a_model_goes_to_the_one_with_most_free(tmp_path, cache, monkeypatch):
    (rules,) = device_rules(CPU, None)
    gpus = tuple(replace(rules, device=f"cuda:{number}", gpu=f"GPU-{number}") for number in range(3))
    monkeypatch.setattr(module, "device_rules", lambda settings, cache: gpus)
    free = {"GPU-0": 4 * GB, "GPU-1": 40 * GB, "GPU-2": None}
    monkeypatch.setattr("engine.free_memory", lambda rules: free[rules.gpu])
    memory = memory_of(search(tmp_path, cache))
    assert (memory.rules.device, memory.room.free_bytes) == ("cuda:1", 40 * GB)
    assert memory.others == ("cuda:0", "cuda:2"), "what wrote there tells of the speed here"
    assert module._read(cache / "device.json", "none") is None
    remember_rules(gpus, CPU, cache)
    assert module._read(cache / "device.json", module._key(CPU)) == gpus


DIVIDED = Split(Placement(layers=8), 36, 4_700_000_000, 2_100_000_000, 0, 1, 1)


def made(verdict, *, free=11_200_000_000, chats=1, fitting=6, advice=()):
    return Fit(
        verdict, 4_700_000_000, chats * 1_100_000_000, 1 << 28, free, 8192, chats, 1, fitting, fitting, advice
    )


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (made(Verdict.FITS), "4.7 GB + 1.1 GB KV of 11.2 GB free: six chats of 8k"),
        (made(Verdict.FITS, fitting=1), "4.7 GB + 1.1 GB KV of 11.2 GB free: one chat of 8k"),
        (made(Verdict.FITS, fitting=1234), "4.7 GB + 1.1 GB KV of 11.2 GB free: 1,234 chats of 8k"),
        (
            made(Verdict.FEWER, chats=4, fitting=2),
            "4.7 GB + 4.4 GB KV of 11.2 GB free: two of four chats of 8k at once",
        ),
        (
            replace(made(Verdict.FITS), kv_format="q8_0", kv_note="float16 would hold 5,120 tokens"),
            "4.7 GB + 1.1 GB q8_0 KV of 11.2 GB free: six chats of 8k",
        ),
        (made(Verdict.UNKNOWN, free=None), "needs 4.7 GB + 1.1 GB KV"),
        (
            made(Verdict.FEWER, fitting=0, free=5_200_000_000, advice=(
                Advice(AdviceKind.KV_TYPE, "q8_0", 1), Advice(AdviceKind.CONTEXT, "3072", 1)
            )),
            "4.7 GB + 1.1 GB KV of 5.2 GB free: no chats of 8k at once; "
            'fits with kv_dtype = "q8_0" or with chats of up to 3k',
        ),
        (
            made(Verdict.TOO_LARGE, free=4 * GB, advice=(Advice(AdviceKind.QUANTISATION, "Q3_K_M", 1),)),
            "needs 4.7 GB + 1.1 GB KV; 4.0 GB are free; fits as Q3_K_M",
        ),
        (
            replace(made(Verdict.FITS), split=DIVIDED, tok_s=12.3),
            "28 of 36 layers on the GPU, 8 on the processor: about 12 tok/s; "
            "4.7 GB + 1.1 GB KV of 11.2 GB free on the GPU, 2.1 GB in the computer's memory",
        ),
        (
            replace(made(Verdict.TOO_LARGE), split=DIVIDED, host_short=10**9),
            "needs 4.7 GB of the GPU's memory and 2.1 GB of the computer's, where 1.0 GB are missing",
        ),
    ],
)  # fmt: skip
def test_the_sentence(found, text):
    assert fit_text(found) == text


def test_every_advice_has_words():
    texts = {advice_text(Advice(kind, "4096", 1)) for kind in AdviceKind}
    assert len(texts) == len(AdviceKind)


def test_numbers_of_tokens_and_chats():
    assert [tokens_text(count) for count in (600, 1024, 5504, 8192, 40960)] == [
        "600",
        "1k",
        "5.4k",
        "8k",
        "40k",
    ]
    assert [count_text(count) for count in (0, 1, 10, 11, 5000)] == ["no", "one", "ten", "11", "5,000"]


def test_context_and_chats_are_the_askers(tmp_path, cache):
    summary = summarize(make_tiny(tmp_path / "b.gguf", "llama", context_length=4096))
    memory = memory_of(search(tmp_path, cache))
    longer = memory.fit(summary, context=2048, chats=3)
    assert (longer.context, longer.chats, longer.kv_bytes) == (2048, 3, 3 * longer.chat_bytes)
    assert longer == fit(summary.footprint, memory.rules, memory.room, context=2048, chats=3)
    assert Memory(memory.rules, memory.room).fit(replace(summary, footprint=None)) is None


@pytest.fixture
def speeds(tmp_path):
    return SpeedStore(tmp_path / "data" / "speeds.json")


def test_the_last_answers_make_a_models_speed(speeds, tmp_path):
    a, b = tmp_path / "a.gguf", tmp_path / "b.gguf"
    for tok_s in (1.0, 10.0, 11.0, 50.0, 12.0, 13.0):
        speeds.note(a, "GPU", tok_s, 100)
    speeds.note(b, "GPU", 5.0, LEAST_TOKENS)
    found = speeds.all()
    assert (found[a].tok_s, found[a].answers, found[a].device) == (12.0, 5, "GPU")
    assert (found[b].tok_s, found[b].answers) == (5.0, 1) and found[b].at > 1e9


def test_another_device_begins_anew(speeds, tmp_path):
    speeds.note(tmp_path, "CPU", 3.0, 100)
    speeds.note(tmp_path, "GPU", 300.0, 100)
    assert (speeds.all()[tmp_path].tok_s, speeds.all()[tmp_path].answers) == (300.0, 1)


@pytest.mark.parametrize(
    ("tok_s", "tokens"), [(0.0, 100), (float("nan"), 100), (9e9, 100), (5.0, LEAST_TOKENS - 1)]
)
def test_what_says_nothing_of_a_speed_is_not_kept(speeds, tmp_path, tok_s, tokens):
    speeds.note(tmp_path, "CPU", tok_s, tokens)
    assert speeds.all() == {}


@pytest.mark.parametrize("content", ["", "[]", '{"models": 3}', '{"models": {"/a": {"tok_s": []}, "/b": 1}}'])
def test_damaged_speeds_say_nothing_and_can_be_written_again(tmp_path, content):
    file = tmp_path / "speeds.json"
    file.write_text(content)
    store = SpeedStore(file)
    assert store.all() == {}
    store.note(tmp_path / "a", "CPU", 7.0, 100)
    assert store.all()[tmp_path / "a"].tok_s == 7.0


def test_speeds_that_cannot_be_written_end_no_answer(tmp_path):
    (tmp_path / "data").write_text("a file where a folder should be")
    SpeedStore(tmp_path / "data" / "speeds.json").note(tmp_path, "CPU", 7.0, 100)
