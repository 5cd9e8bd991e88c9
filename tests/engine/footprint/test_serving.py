"""What is said to serve a model is what its handles are then made for."""

from dataclasses import replace

import pytest
import torch

from engine.footprint.rules import DeviceRules, Holding
from engine.footprint.serving import serving
from engine.footprint.shape import Experts, Matrix, read_footprint
from engine.gguf.file import open_gguf
from engine.model.config import read_config
from engine.model.tensors import check_tensors
from engine.model.weights import load_weights
from kernels.cpu.linear import CPULinear
from kernels.cpu.operations import CPUOperations
from kernels.cpu.packed.tiles import PackedMatrix
from kernels.quant.formats import GGMLType
from tests.support.tiny_gguf import make_tiny

CPU = DeviceRules("cpu", "", Holding.PACKED, 4, "bfloat16", 32)
GPU = replace(CPU, holding=Holding.PLANES, kv_format="float16")
TORCH = replace(CPU, holding=Holding.DENSE)


class Recording(CPUOperations):
    def _make(self, *args, **options):
        self.made.append(made := super()._make(*args, **options))
        return made


def footprint_of(path):
    with open_gguf(path) as file:
        config = read_config(file)
        return read_footprint(file, config, check_tensors(file, config))


@pytest.mark.parametrize("quant", ["Q4_K_M", "Q8_0", "F16", "MXFP4"])
def test_a_cpus_kernels_serve_what_it_holds_packed(tmp_path, quant):
    path = make_tiny(tmp_path / "a.gguf", "llama", quant=quant)
    ops = Recording(torch.device("cpu"), "float32", "bfloat16", 32)
    ops.made = []
    with open_gguf(path) as file:
        load_weights(file, read_config(file), ops, lambda _part, _what: None)
    assert ops.made and all(isinstance(one, CPULinear) for one in ops.made)
    compiled = {isinstance(part, PackedMatrix) for one in ops.made for part in one.parts}
    said = {by.startswith("LLVM") for _, by in serving(footprint_of(path), CPU)[:-1]}
    assert said == compiled


def test_types_are_listed_with_what_serves_them(tmp_path):
    footprint = footprint_of(make_tiny(tmp_path / "a.gguf", "llama", quant="Q4_K_M", head_dim=64))
    quants, attention = serving(footprint, CPU)
    assert quants == ("Q4_K, Q6_K", "LLVM kernel over packed weights for few tokens, torch for more")
    assert attention == ("attention", "LLVM kernel for few tokens, torch for more, KV in bfloat16")
    assert serving(footprint, TORCH)[-1] == ("attention", "torch, KV in bfloat16")
    normed = serving(replace(footprint, norms_values=True), CPU)[-1]
    assert normed == ("attention", "torch, KV in bfloat16")
    assert dict(serving(footprint, GPU)) == {
        "Q4_K, Q6_K": "Triton kernels over the quantised weights",
        "attention": "Triton kernels, KV in float16",
    }
    long = replace(footprint, kv=tuple(group._replace(head_dim=576) for group in footprint.kv))
    reason = "no kernel serves heads of 576, more than 512"
    assert serving(long, GPU)[-1] == ("attention", f"torch, as {reason}, KV in float16")


def test_experts_are_said_beside_the_rest(tmp_path):
    plain = footprint_of(make_tiny(tmp_path / "a.gguf", "llama", quant="F16"))
    experts = Experts(8, (Matrix(GGMLType.MXFP4, 64),), Matrix(GGMLType.MXFP4, 256), 256, 32, 2)
    footprint = replace(plain, linears=(), experts=((experts, 2),))
    assert serving(footprint, CPU)[0] == ("MXFP4", "experts: LLVM kernel over packed weights")
    half = Experts(8, (Matrix(GGMLType.F16, 64),), Matrix(GGMLType.F16, 256), 256, 32, 2)
    kept = replace(footprint, experts=((half, 2),))
    assert serving(kept, CPU)[0] == ("F16", "experts: LLVM kernel over the file's own blocks")
    odd = replace(footprint, experts=((half._replace(size=40), 2),))
    assert serving(odd, CPU)[0] == ("F16", "experts: torch in float32")
    small = experts._replace(down=Matrix(GGMLType.IQ2_XS, 256))
    (types, by), _ = serving(replace(footprint, experts=((small, 2),)), GPU)
    assert types == "IQ2_XS, MXFP4" and by == "experts: Triton kernels over the quantised weights"
    rare = experts._replace(down=Matrix(GGMLType.F64, 256))
    (types, by), _ = serving(replace(footprint, experts=((rare, 2),)), GPU)
    assert types == "F64, MXFP4" and "widened to float16" in by
