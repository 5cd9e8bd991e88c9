import json
import os
import shutil

import pytest
from gguf import GGUFReader

from engine import catalog as module
from engine.catalog import ModelSummary, model_paths, part_paths, recommended_sampling, summarize
from engine.gguf import metadata
from engine.gguf.file import open_gguf
from engine.gguf.labels import LLAMA_FTYPE
from tests.support.family_goldens import FamilyGolden, changed_copy
from tests.support.gguf_bytes import entry, gguf, tensor
from tests.support.tiny_gguf import make_tiny


def test_supported_model(tmp_path):
    path = make_tiny(tmp_path / "tiny.gguf", "llama", quant="Q4_K_M")
    summary = summarize(path)
    assert (summary.supported, summary.problem) == (True, None)
    assert summary.architecture == "llama"
    assert summary.quantization == "Q4_K_M"
    assert summary.context_length == 512
    assert summary.kv_bytes_per_token_f16 == 2 * 2 * 2 * 64 * 2
    assert summary.size_bytes == path.stat().st_size
    assert summary.parts == 1
    assert summarize(path) == summary


def test_summary_follows_a_changed_file(tmp_path):
    path = make_tiny(tmp_path / "tiny.gguf", "llama")
    assert summarize(path).supported
    path.write_bytes(b"GGUF")
    assert not summarize(path).supported


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"GGUF\3\0\0\0", "truncated"),
        (gguf([entry("general.architecture", 8, "llama")]), "no weights"),
        (gguf(tensors=[tensor("t", [8])], data=b"\0" * 32), "general.architecture is missing"),
        (gguf([entry("general.architecture", 8, "mamba")], [tensor("t", [8])], b"\0" * 32), "'mamba'"),
        (gguf([entry("general.architecture", 8, "llama")], [tensor("t", [8])], b"\0" * 32), "missing"),
        (gguf([entry("general.type", 8, "adapter")]), "adapter"),
        (gguf([entry("general.name", 4, 1)]), "general.name"),
    ],
)
def test_problem_says_why(tmp_path, content, words):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    summary = summarize(path)
    assert not summary.supported
    assert words in summary.problem
    assert summary.name == "model"


def test_names_from_files_cannot_disturb_a_terminal(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf([entry("general.name", 8, "a\x1b[31m\nb\u202e" + "x" * 9000)]))
    name = summarize(path).name
    assert name.startswith("a[31m b")
    assert name.isprintable()
    assert len(name) <= 120


def test_quantization_without_file_type_is_the_main_type(tmp_path):
    tensors = [tensor("a", [32, 8], 8, 0), tensor("b", [8], 0, 288)]
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(tensors=tensors, data=b"\0" * 320))
    assert summarize(path).quantization == "Q8_0"


def test_file_type_labels_are_llama_cpps():
    from gguf import LlamaFileType

    theirs = {int(m): m.name.removeprefix("ALL_").removeprefix("MOSTLY_") for m in LlamaFileType}
    theirs.pop(1024)
    assert theirs == {number: label for number, label in LLAMA_FTYPE.items() if number in theirs}


def test_folder(tmp_path):
    good = make_tiny(tmp_path / "good.gguf", "qwen3")
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    shutil.copy(good, deep / "deep.gguf")
    far = tmp_path / "1/2/3/4/5/6/7"
    far.mkdir(parents=True)
    shutil.copy(good, far / "far.gguf")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "gone.gguf").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "mmproj.gguf").write_bytes(gguf([entry("general.architecture", 8, "clip")]))
    (tmp_path / "notes.txt").write_text("no model")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    for number in (2, 3):
        (tmp_path / f"split-{number:05d}-of-00003.gguf").write_bytes(
            gguf([entry("split.count", 2, 3), entry("split.no", 2, number - 1)])
        )
    found = {path.name: summarize(path) for path in model_paths(tmp_path)}
    assert list(found) == [
        "deep.gguf", "broken.gguf", "gone.gguf", "good.gguf", "mmproj.gguf", "pipe.gguf",
        "split-00002-of-00003.gguf",
    ]  # fmt: skip
    assert found["mmproj.gguf"].problem == "This is an image projector, not a language model."
    assert [name for name, summary in found.items() if summary.supported] == ["deep.gguf", "good.gguf"]
    assert "split-00001-of-00003.gguf" in found["split-00002-of-00003.gguf"].problem


def test_absent_folder_is_empty(tmp_path):
    assert model_paths(tmp_path / "absent") == []


def large_vocabulary(words, *, tail=()):
    entries = [
        entry("general.architecture", 8, "llama"),
        entry("tokenizer.ggml.tokens", 9, (8, words)),
        *tail,
    ]
    return gguf(entries, [tensor("token_embd.weight", [32, 8], 8, 0)], b"\0" * 288)


@pytest.mark.parametrize(
    "words",
    [
        [f"w{i}" for i in range(2000)],
        [f"w{i}" for i in range(2000)] + ["tokenizer.", "general.name", "x" * 400, "y" * 12],
        ["tokenizer.ggml.x\x04\0\0\0\1\0\0\0"] * 2000,
        # By its beginning it would end far behind the file.
        ["x" * 200] * 100 + ["y"] * 20_000,
    ],
)
@pytest.mark.parametrize("tail", [(), (entry("tokenizer.ggml.pre", 8, "x"),), (entry("zzz.key", 4, 1),)])
def test_skimmed_vocabulary_gives_the_same_summary(tmp_path, monkeypatch, words, tail):
    path = tmp_path / "model.gguf"
    path.write_bytes(large_vocabulary(words, tail=tail))
    skimmed = summarize(path)
    monkeypatch.setattr(module, "open_gguf", lambda path, skim: open_gguf(path))
    assert summarize(path) == skimmed
    assert skimmed.parameters == 256
    assert open_gguf(path).strings("tokenizer.ggml.tokens") == words


def test_skimming_walks_no_strings(tmp_path, monkeypatch):
    path = tmp_path / "model.gguf"
    path.write_bytes(
        large_vocabulary([f"w{i}" for i in range(2000)], tail=[entry("general.file_type", 4, 7)])
    )
    monkeypatch.setattr(metadata, "string_fields", lambda *_: pytest.fail("walked"))
    assert summarize(path).quantization == "Q8_0"


def test_a_split_model_is_all_of_its_parts(tmp_path):
    parts = [tmp_path / f"a-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]
    assert part_paths(parts[1]) == parts
    assert part_paths(tmp_path / "a.gguf") == [tmp_path / "a.gguf"]


def card(tmp_path, *more):
    """Of a file without a decoder."""
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf([entry("general.architecture", 8, "llama"), *more]))
    return summarize(path)


def test_what_a_card_shows(tmp_path):
    tiny = summarize(make_tiny(tmp_path / "tiny.gguf", "qwen3", quant="Q4_K_M"))
    assert list(tiny.type_bytes) == ["Q4_K", "Q6_K", "F32"]
    assert sum(tiny.type_bytes.values()) < tiny.size_bytes
    assert (tiny.tokenizer, tiny.has_template, tiny.sampling) == ("gpt2 (qwen2)", True, {})
    more = card(
        tmp_path,
        entry("general.license", 8, "apache\x1b-2.0"),
        entry("general.sampling.temp", 6, 0.6),
        entry("general.sampling.top_k", 5, 20),
        entry("general.sampling.top_p", 6, 1.5),
        entry("general.sampling.min_p", 6, float("nan")),
        entry("general.sampling.penalty_repeat", 8, "much"),
    )
    assert (more.license, more.tokenizer, more.has_template) == ("apache-2.0", "", False)
    assert more.sampling == {"temperature": 0.6, "top_k": 20}
    assert more.sampling_ignored == (
        "top_p: 1.5 is not between 0.0 and 1.0",
        "min_p: nan is not between 0.0 and 1.0",
        "repetition_penalty: 'much' is not a number",
    )


def test_recommended_sampling_that_has_no_equal_is_named(tmp_path):
    more = card(
        tmp_path,
        entry("general.sampling.mirostat", 5, 2),
        entry("general.sampling.xtc_probability", 6, 0.0),
        entry("general.sampling.top_k", 6, 20.5),
        entry("general.sampling.temp", 9, (4, [1])),
    )
    assert more.sampling == {}
    assert more.sampling_ignored == ("top_k: 20.5 is not a whole number", "mirostat has no use here")
    assert recommended_sampling(more.path) == (more.sampling, more.sampling_ignored)
    assert recommended_sampling(tmp_path / "none.gguf") == ({}, ())


def test_a_card_of_odd_values_is_no_error(tmp_path):
    more = card(tmp_path, entry("general.license", 4, 7), entry("tokenizer.ggml.model", 9, (4, [1])))
    assert (more.license, more.tokenizer) == ("", "")


def test_a_file_that_loading_would_refuse_says_so_in_the_list(tmp_path):
    good = make_tiny(tmp_path / "good.gguf", "llama")
    bad = changed_copy(GGUFReader(str(good)), tmp_path / "bad.gguf", without="blk.1.ffn_up.weight")
    summary = summarize(bad)
    assert "tensor blk.1.ffn_up.weight is missing" in summary.problem
    assert summary.footprint is None and summarize(good).footprint is not None


@pytest.mark.parametrize("golden", ["llama-experts", "gpt-oss-mxfp4", "gemma3"])
def test_a_summary_survives_json(tmp_path, golden):
    summary = summarize(FamilyGolden.load(golden).write_model(tmp_path))
    assert summary.supported and summary.footprint.linears
    read = ModelSummary.from_data(summary.path, json.loads(json.dumps(summary.as_data())))
    assert read == summary
