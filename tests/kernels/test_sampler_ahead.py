"""The sampler is compiled ahead for just what passes give it."""

import torch

from engine import graph_runner
from engine.captured_pass import FIRST_SIZES, CapturedPass
from engine.device_queue import open_queue
from engine.gguf.file import open_gguf
from engine.graph_runner import GraphRunner
from engine.model.config import read_config
from engine.model.decoder import Decoder
from engine.model.weights import load_weights
from kernels import sampler_gpu
from kernels.triton_ops import TritonOperations
from tests.tiny_gguf import make_tiny


def kind(tensor: torch.Tensor) -> tuple:
    """What a kernel is compiled for: type, strides, and whether the address is a multiple of 16."""
    strides = tuple(stride % 16 == 0 for stride in tensor.stride())
    return tensor.dtype, strides, tensor.data_ptr() % 16 == 0


def test_what_is_compiled_ahead_is_what_first_passes_launch(device, monkeypatch, tmp_path):
    path = make_tiny(tmp_path / "tiny.gguf", "qwen3", quant="Q8_0", seed=1)
    ops = TritonOperations(torch.device(device), "auto")
    with open_gguf(path) as file:
        config = read_config(file)
        decoder = Decoder(config, load_weights(file, config, ops, lambda part, what: None), ops)
    runner = GraphRunner(decoder, 20, 256, [])
    asked: list[tuple] = []
    original = sampler_gpu.sample

    def spied(logits, state, slots, lengths):
        given = (logits, slots, lengths, state.rows, state.counts, state.bias)
        asked.append((logits.shape[0], logits.shape[2], *map(kind, given)))
        return original(logits, state, slots, lengths)

    monkeypatch.setattr(sampler_gpu, "sample", spied)
    monkeypatch.setattr(graph_runner, "sample", spied)
    runner._try_sampler(FIRST_SIZES[0])
    queue = open_queue(ops.device)
    with torch.inference_mode(), queue.current():
        CapturedPass(runner._state, FIRST_SIZES[0], queue).launch(runner._tick)
    queue.synchronize()
    runner.close()
    assert len(asked) == 2
    ahead, first = asked
    # A tiny output matrix gives its logits in several parts; what a kernel is compiled for differs in that.
    assert ahead[0] == 1 and ahead[1:] == first[1:]
