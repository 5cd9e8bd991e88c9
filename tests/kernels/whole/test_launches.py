"""What a decode tick launches: seven kernels a layer, and no torch computation at all."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.device.stream import ImmediateStream, open_stream
from engine.gguf.file import open_gguf
from engine.model.config import read_config
from engine.model.decoder import Decoder
from engine.model.weights import load_weights
from engine.runner import apart, warmup
from engine.runner.cuda_graph import FIRST_SIZES, CUDAGraphPass, PassSize
from engine.runner.graph_runner import GraphRunner
from engine.runner.warmup import launch_sampler
from kernels.sampling import sampler
from kernels.triton_operations import TritonOperations
from tests.support.tiny_gguf import make_tiny

LAYOUT_ONLY = {
    "empty", "view", "slice", "select", "unsqueeze", "transpose", "t", "alias", "detach", "as_strided",
    "unbind", "split", "squeeze", "_unsafe_view", "reshape", "expand", "unflatten", "_reshape_alias",
}  # fmt: skip
"""Operations of torch that move no data."""
OUTSIDE_LAYERS = 10
"""Tables, attention plan, embedding, output norm, output matrix, four of sampling and `advance`."""


class Computed(TorchDispatchMode):
    """Counts what torch computes itself."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()
        self.launching = False
        """An interpreter of kernels moves their arguments itself."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::").split(".")[0]
        if name not in LAYOUT_ONLY and not self.launching:
            self.names[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def runner(tmp_path_factory, device) -> GraphRunner:
    sizes = {} if device == "cuda" else {"width": 64, "ffn": 64, "heads": 2, "kv_heads": 1, "head_dim": 32}
    path = make_tiny(tmp_path_factory.mktemp("m") / "tiny.gguf", "qwen3", quant="Q8_0", seed=1, **sizes)
    ops = TritonOperations(torch.device(device), "auto")
    with open_gguf(path) as file:
        config = read_config(file)
        decoder = Decoder(config, load_weights(file, config, ops, lambda part, what: None), ops)
    return GraphRunner(decoder, [20], 256, [])


def launched(runner: GraphRunner, monkeypatch) -> tuple[Counter, Counter]:
    """Kernels by name, and torch's computations, of one decode tick."""
    kernels: Counter[str] = Counter()
    kind = type(__import__("kernels.linear.norm", fromlist=["_add_norm"])._add_norm)
    original = kind.run

    def run(self, *args, **kwargs):
        kernels[self.fn.__name__] += 1
        computed.launching = True
        try:
            return original(self, *args, **kwargs)
        finally:
            computed.launching = False

    one = CUDAGraphPass(runner._state, PassSize(2, 0, 2), ImmediateStream())
    if torch.cuda.is_available():
        one.launch(runner._tick)  # compiles, which launches by itself
    monkeypatch.setattr(kind, "run", run)
    computed = Computed()
    with torch.inference_mode(), computed:
        one.launch(runner._tick)
    return kernels, computed.names


def test_a_layer_is_seven_kernels_and_torch_computes_nothing(runner, monkeypatch):
    kernels, computed = launched(runner, monkeypatch)
    layers = runner.decoder.config.num_layers
    assert not computed, f"torch computed {dict(computed)}"
    assert kernels["_attention_decode"] == layers
    assert kernels["_add_norm"] == 2 * layers + 1
    outside = kernels.total() - 7 * layers
    assert outside == OUTSIDE_LAYERS, dict(kernels)


def kind(tensor: torch.Tensor) -> tuple:
    """What a kernel is compiled for: type, strides, and whether the address is a multiple of 16."""
    strides = tuple(stride % 16 == 0 for stride in tensor.stride())
    return tensor.dtype, strides, tensor.data_ptr() % 16 == 0


def test_the_sampler_is_compiled_ahead_for_what_first_passes_launch(runner, monkeypatch):
    asked: list[tuple] = []
    original = sampler.sample

    def spied(logits, state, slots, lengths):
        given = (logits, slots, lengths, state.rows, state.counts, state.bias)
        asked.append((logits.shape[0], logits.shape[2], *map(kind, given)))
        return original(logits, state, slots, lengths)

    monkeypatch.setattr(warmup, "sample", spied)
    monkeypatch.setattr(apart, "sample", spied)
    launch_sampler(runner.decoder.config.vocab_size, runner._ops.device)
    queue = open_stream(runner._ops.device)
    with torch.inference_mode(), queue.current():
        CUDAGraphPass(runner._state, FIRST_SIZES[0], queue).launch(runner._tick)
    queue.synchronize()
    assert len(asked) == 2
    ahead, first = asked
    # A tiny output matrix gives its logits in several parts; what a kernel is compiled for differs in that.
    assert ahead[0] == 1 and ahead[1:] == first[1:]
