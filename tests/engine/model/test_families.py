"""Every architecture against Hugging Face transformers, on tiny models that llama.cpp's converter wrote."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader

from engine.api.errors import ModelFileError, UnsupportedModelError
from engine.api.request import Request, SamplingParams
from engine.engine import Engine
from engine.model.decoder import Decoder
from engine.model.families import FAMILIES as ARCHITECTURES
from kernels.contract import Operations
from kernels.cpu.operations import CPUOperations
from kernels.reference.operations import TorchOperations
from kernels.select import CPU_BLOCK_SIZE as BLOCK_SIZE
from tests.engine.test_moving_budget import ids_of, pause_at
from tests.support.family_goldens import REFUSED as VARIANTS
from tests.support.family_goldens import FamilyGolden, all_families, changed_copy
from tests.support.goldens import nmse
from tests.support.passes import Passes, load_decoder

NMSE_LIMIT = 1e-8
COVERED_ELSEWHERE = {"llama", "qwen2", "qwen3"}
"""`test_logits_golden` compares these with llama.cpp."""
CHUNKS = (1, 9, 15, 15, 8)
"""Each ends at a position whose logits are known; only the last ends where a block could."""
ANSWER = 24
"""Greedy tokens asked for: more than fill the prompt's last block."""
WHOLE_ANSWERS = {"gemma3", "llama", "mistral3", "phi3-longrope"}
"""Fixtures all of whose greedy tokens are asked for: windows, and each way that a rotation or the queries
depend on the position."""
AFTER_HIT = 4
"""Greedy tokens asked for when a prompt is sent a second time."""
RESUMED = 16
"""Greedy tokens asked for of an answer that is paused after the first three."""
RIVAL_BLOCKS = 5
"""All that there are: a prompt that begins the last of them takes the answer's."""
IN_TORCH = {
    "command-r", "gemma2", "gemma4-moe", "glm4moe", "gpt-oss", "granite-bias", "mistral3", "nemotron",
    "phi3-longrope", "qwen2moe", "smollm3", "starcoder2",
}  # fmt: skip
"""Fixtures that together need every operation and option of the definition."""

ALL = all_families()
RUNS = [golden for golden in ALL if golden.architecture in ARCHITECTURES and golden.name not in VARIANTS]
REFUSED = [golden for golden in ALL if golden not in RUNS]


def name_of(golden: FamilyGolden) -> str:
    return golden.name


def operations(kind: type[Operations]) -> Operations:
    return kind(torch.device("cpu"), "float32", "float32", BLOCK_SIZE)


@pytest.fixture(scope="module", params=RUNS, ids=name_of)
def golden(request) -> FamilyGolden:
    return request.param


@pytest.fixture(scope="module")
def model_file(golden: FamilyGolden, tmp_path_factory) -> Path:
    return golden.write_model(tmp_path_factory.mktemp("family"))


@pytest.fixture(scope="module")
def decoder(model_file: Path) -> Decoder:
    return load_decoder(model_file, operations(CPUOperations))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine("cpu", kv_dtype="float32", weight_dtype="float32", threads=1, debug=True) as engine:
        yield engine


def check(golden: FamilyGolden, passes: Passes, name: str) -> None:
    """The last logits of a sequence that is the prompt as far as it was read."""
    position = passes.computed[name] - 1
    difference = nmse(passes.logits[name].numpy(), golden.expected[position])
    assert difference <= NMSE_LIMIT, f"position {position}"


def greedy(tokens: list[int], count: int) -> Request:
    return Request(tuple(tokens), SamplingParams(temperature=0.0), max_tokens=count, ignore_eog=True)


def test_every_architecture_has_a_fixture():
    assert ARCHITECTURES.keys() - COVERED_ELSEWHERE <= {golden.architecture for golden in RUNS}


@pytest.mark.parametrize("golden", REFUSED, ids=name_of)
def test_what_is_not_supported_is_refused(golden: FamilyGolden, tmp_path: Path):
    with pytest.raises(UnsupportedModelError) as caught:
        load_decoder(golden.write_model(tmp_path))
    key = VARIANTS.get(golden.name)
    assert (f"{golden.architecture}.{key}: " if key else golden.architecture) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_chunks(golden: FamilyGolden, decoder: Decoder):
    passes = Passes(decoder, {"a": golden.tokens})
    for count in CHUNKS:
        passes.run(("a", count))
        check(golden, passes, "a")
    assert passes.computed["a"] == len(golden.tokens)


def test_packed_prompts_of_different_lengths(golden: FamilyGolden, decoder: Decoder):
    lengths = {"a": 31, "b": len(golden.tokens), "c": 7}
    passes = Passes(decoder, {name: golden.tokens[:length] for name, length in lengths.items()})
    passes.run(*lengths.items())
    for name in lengths:
        check(golden, passes, name)


def check_beside_another_prompt(golden: FamilyGolden, decoder: Decoder, start: int) -> None:
    """Tokens from `start` on are read one at a time, the first of them in passes with chunks of a prompt."""
    passes = Passes(decoder, {"a": golden.tokens, "b": golden.tokens})
    passes.run(("a", start))
    for count in (4, 3, 12):
        passes.run(("a", 1), ("b", count))
    check(golden, passes, "b")
    for _ in range(4):
        passes.run(("a", 1))
        if passes.computed["a"] - 1 in golden.expected:
            check(golden, passes, "a")


def test_one_token_at_a_time_beside_another_prompt(golden: FamilyGolden, decoder: Decoder):
    check_beside_another_prompt(golden, decoder, BLOCK_SIZE - 2)


@pytest.mark.parametrize("name", sorted(IN_TORCH))
def test_one_token_at_a_time_in_torch(name: str, tmp_path: Path):
    golden = FamilyGolden.load(name)
    decoder = load_decoder(golden.write_model(tmp_path), operations(TorchOperations))
    check_beside_another_prompt(golden, decoder, 41)


def test_frequencies_follow_the_context_that_was_asked_for(engine: Engine, tmp_path: Path):
    """A file with factors for long and for short contexts: who asks for a short one gets these."""
    golden = FamilyGolden.load("phi3-longrope")
    path, logits = golden.write_model(tmp_path), []
    for context_length in (None, 16):
        model = engine.load(path, context_length=context_length)
        logits.append(model.logits(golden.tokens[:16]).numpy())
        model.unload()
    whole, short = logits
    assert nmse(whole[12], golden.expected[12]) <= NMSE_LIMIT
    assert nmse(short[12], whole[12]) > 1e-4


def test_one_pass_and_greedy_answers_of_the_engine(golden: FamilyGolden, model_file: Path, engine: Engine):
    """The answer is the same when its prompt's blocks are found in the prefix cache."""
    model = engine.load(model_file)
    try:
        rows = list(golden.expected)
        ours = model.logits(golden.tokens)[rows].numpy()
        assert nmse(ours, np.stack([golden.expected[row] for row in rows])) <= NMSE_LIMIT
        answer = golden.greedy if golden.name in WHOLE_ANSWERS else golden.greedy[:ANSWER]
        for wanted in (answer, answer[:AFTER_HIT]):
            events = list(model.submit(greedy(golden.tokens, len(wanted))).events())
            assert [token for event in events for token in getattr(event, "token_ids", ())] == wanted
        assert events[-1].cached_tokens >= BLOCK_SIZE
    finally:
        model.unload()


def test_an_answer_whose_memory_another_takes_is_read_again(
    golden: FamilyGolden, model_file: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    """While it is paused a longer prompt needs all blocks that there are."""
    loop, model = engine._loop, engine.load(model_file)
    try:
        budget = RIVAL_BLOCKS * BLOCK_SIZE * model.info.kv_bytes_per_token
        monkeypatch.setattr(loop.models, "_kv_limit", lambda _held: budget)
        loop.call(loop.update_budget)
        before, wanted = loop.scheduler.preemptions, golden.greedy[:RESUMED]
        answer = model.submit(greedy(golden.tokens, len(wanted)))
        taken = pause_at(answer, 3)
        rival = (golden.tokens[::-1] * 3)[: (RIVAL_BLOCKS - 1) * BLOCK_SIZE + 1]
        assert len(ids_of(model.submit(greedy(rival, 1)))) == 1
        answer.resume()
        assert ids_of(answer) == wanted[taken:]
        assert loop.scheduler.preemptions == before + 1
    finally:
        model.unload()


EVERYWHERE = ("block_count", "context_length", "embedding_length", "attention.head_count")
REQUIRED_KEYS = {
    "llama": ("feed_forward_length", "attention.layer_norm_rms_epsilon"),
    "qwen3moe": ("expert_used_count",),
    "gemma4-moe": ("expert_used_count", "attention.sliding_window_pattern"),
    "glm4moe": ("expert_used_count", "feed_forward_length"),
    "muse-glimmer": ("logit_scale", "attention.sliding_window"),
    "ernie4_5-moe": ("interleave_moe_layer_step", "expert_used_count"),
    "command-r": ("logit_scale", "attention.layer_norm_epsilon"),
    "gpt-oss": ("expert_used_count", "attention.sliding_window"),
    "phi3": ("attention.layer_norm_rms_epsilon",),
}
"""Fixture → keys that nothing stands in for."""
OPTIONAL = (
    "output.weight",
    "rope_",
    ".bias",
    ".scale",
    "layer_output_scale",
    "attn_v",
    "attn_q_norm",
    "attn_k_norm",
)
"""Parts of names of tensors that some model of some architecture does without."""


def damaged(golden: FamilyGolden, folder: Path) -> Iterator[tuple[str, Path]]:
    """(the name that must be in the error, file) for tensors outside of layers and of the first, and keys."""
    reader, target = GGUFReader(str(golden.write_model(folder))), folder / "damaged.gguf"
    for tensor in reader.tensors:
        name = tensor.name
        if name.startswith("blk.") and not name.startswith("blk.0."):
            continue
        if not any(part in name for part in OPTIONAL):
            yield name, changed_copy(reader, target, without=name)
        if tensor.data.shape[-1] > 1:
            yield name, changed_copy(reader, target, halved=name)
    for key in EVERYWHERE + REQUIRED_KEYS[golden.name]:
        name = f"{golden.architecture}.{key}"
        yield name, changed_copy(reader, target, without=name)


@pytest.mark.parametrize("golden", [golden for golden in RUNS if golden.name in REQUIRED_KEYS], ids=name_of)
def test_a_damaged_file_is_refused_by_name(golden: FamilyGolden, tmp_path: Path):
    for name, path in damaged(golden, tmp_path):
        with pytest.raises((ModelFileError, UnsupportedModelError)) as caught:
            load_decoder(path)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)
