"""How long one layer's experts take on a GPU, by the number of tokens, beside the bytes that they must read.

python -m tests.perf.experts --shapes 128x8x2048x768 --quant q4_k_m
"""

import argparse

import torch

from kernels.contract import ExpertMatrices, QuantizedMatrix, Routing
from kernels.cuda.activations import Activations
from kernels.experts.experts import TritonExperts, apply_experts, make_experts
from kernels.linear.linear import LinearMaker
from kernels.quant.formats import GGMLType
from tests.kernels.quant_cases import activations, plausible_bytes

LAYERS, ROUNDS = 6, 20


def make_layer(
    maker: LinearMaker, count: int, used: int, hidden: int, size: int, kinds: list[str]
) -> TritonExperts:
    """Random weights of one layer."""

    def matrix(kind: str, rows: int, columns: int) -> QuantizedMatrix:
        raw = plausible_bytes(GGMLType[kind], (rows, columns), "cuda").cpu()
        return QuantizedMatrix(raw, GGMLType[kind], (rows, columns))

    router = torch.randn(count, hidden).view(torch.uint8).flatten()
    wide = [matrix(kinds[0], count * size, hidden) for _ in range(2)]
    matrices = ExpertMatrices(
        count,
        QuantizedMatrix(router, GGMLType.F32, (count, hidden)),
        None,
        wide,
        matrix(kinds[1], count * hidden, size),
    )
    return make_experts(maker, matrices, Routing(used, "softmax", True, 1.0), "silu")


def graph_of(layers: list[TritonExperts], inputs: list[Activations]) -> torch.cuda.CUDAGraph:
    """Every input through every layer."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for layer in layers:
            apply_experts(inputs[0], layer)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for x in inputs:
                for layer in layers:
                    apply_experts(x, layer)
    return graph


def measure(layers: list[TritonExperts], tokens: int, hidden: int) -> float:
    """Milliseconds of one layer, median of several replays."""
    inputs = [activations(tokens, hidden, "cuda") for _ in range(8 if tokens <= 32 else 2)]
    graph = graph_of(layers, inputs)
    times = []
    for _ in range(ROUNDS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / len(inputs) / len(layers))
    return sorted(times)[len(times) // 2]


def main() -> None:
    """Print a line for each number of tokens."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="128x8x2048x768", help="experts x used x hidden x size")
    parser.add_argument("--types", default="Q4_K,Q4_K", help="of gate and up, and of down")
    parser.add_argument("--tokens", default="1,2,4,8,16,32,64,128,512,2048,4096")
    args = parser.parse_args()
    count, used, hidden, size = map(int, args.shapes.split("x"))
    maker = LinearMaker(torch.device("cuda"))
    layers = [make_layer(maker, count, used, hidden, size, args.types.split(",")) for _ in range(LAYERS)]
    maker.close()
    per_expert = (layers[0].gate_up.nbytes + layers[0].down.nbytes) / count
    for tokens in map(int, args.tokens.split(",")):
        milliseconds = measure(layers, tokens, hidden)
        touched = count * (1 - (1 - used / count) ** tokens)
        flops = tokens * used * 6 * hidden * size
        rate = touched * per_expert / milliseconds / 1e9
        print(
            f"{tokens:6} tokens: {milliseconds * 1e3:9.1f} us, {rate:7.3f} TB/s of weights read once, "
            f"{flops / milliseconds / 1e9:7.1f} TFLOP/s",
            flush=True,
        )


if __name__ == "__main__":
    main()
