"""No pass waits for a compiler: whatever a runner launches was compiled before, in time for who asks."""

import inspect
from types import SimpleNamespace

import pytest
import torch

from engine.device.stream import ImmediateStream
from engine.gguf.file import open_gguf
from engine.model.config import read_config
from engine.model.decoder import Decoder
from engine.model.weights import load_weights
from engine.runner.cuda_graph import BESIDE, FIRST_SIZES, WARM_SIZES, CUDAGraphPass, PassSize
from engine.runner.graph_runner import GraphRunner
from engine.scheduler.buckets import CHUNKS, DECODE_ROWS, MIXED_ROWS, PASS_TOKENS
from kernels.cuda.compile import _variant
from kernels.linear.norm import _add_norm
from kernels.triton_operations import TritonOperations
from tests.support.tiny_gguf import make_tiny

LONGER = (1024, 2048, 4096, 8192)


@pytest.fixture(scope="module")
def runner(tmp_path_factory) -> GraphRunner:
    path = tmp_path_factory.mktemp("m") / "tiny.gguf"
    make_tiny(path, "qwen3", quant="Q4_K", seed=1, layers=1, ffn=256)
    ops = TritonOperations(torch.device("cpu"), "auto")
    with open_gguf(path) as file:
        config = read_config(file)
        decoder = Decoder(config, load_weights(file, config, ops, lambda part, what: None), ops)
    return GraphRunner(decoder, [20], 256, [])


@pytest.fixture
def asked(runner, monkeypatch):
    """The kernels, and what they are compiled for, of passes of some sizes; nothing is run."""
    found: set[object] = set()

    def launch(kernel, *args, grid, warmup, **options):
        parameters = inspect.signature(kernel.fn).parameters.values()
        params = [
            SimpleNamespace(name=p.name, is_constexpr="constexpr" in str(p.annotation)) for p in parameters
        ]
        names = [parameter.name for parameter in parameters]
        _, *variant = _variant(SimpleNamespace(arg_names=names, params=params), args, options)
        found.add((kernel.fn.__name__, *variant))

    monkeypatch.setattr(type(_add_norm), "run", launch)

    def of(*sizes: PassSize) -> set[object]:
        found.clear()
        for size in sizes:
            with torch.inference_mode():
                CUDAGraphPass(runner._state, size, ImmediateStream()).launch(runner._tick)
        return set(found)

    return of


def lacking(asked, ahead: set[object], sizes: list[PassSize]) -> dict[tuple[int, int, int], list[str]]:
    missing = {size.counts: sorted(name for name, *_ in asked(size) - ahead) for size in sizes}
    return {counts: names for counts, names in missing.items() if names}


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are looked at, not run, under the interpreter")
def test_a_prompt_beside_the_first_answer_waits_for_no_compiler(asked):
    longest = PassSize(MIXED_ROWS[-1], CHUNKS[0], MIXED_ROWS[-1] + LONGER[-1])
    ahead = asked(*FIRST_SIZES, BESIDE, longest)
    beside = [PassSize(MIXED_ROWS[1], CHUNKS[0], tokens) for tokens in (*PASS_TOKENS, *LONGER[:2])]
    assert lacking(asked, ahead, [*FIRST_SIZES, *beside]) == {}


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are looked at, not run, under the interpreter")
def test_once_all_is_compiled_no_shape_is_left(asked):
    sizes = [PassSize(rows, 0, rows) for rows in DECODE_ROWS]
    sizes += [
        PassSize(rows, chunks, tokens)
        for rows in MIXED_ROWS
        for chunks in CHUNKS
        for tokens in (*PASS_TOKENS, *LONGER)
        if rows + chunks <= tokens
    ]
    assert lacking(asked, asked(*FIRST_SIZES, BESIDE, *WARM_SIZES), sizes) == {}
