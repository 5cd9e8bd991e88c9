"""Every operation of every family by torch, over what the kernels hold: the logits of plain float32."""

import numpy as np
import pytest
import torch

from engine.runner.input_batch import whole_prompt
from kernels.pieces.operations import PieceOperations
from kernels.pieces.table import Pieces
from tests.kernels.whole.test_families import GOLDENS, ROUTE_LIMIT, SHARP_LIMIT, Reader
from tests.support.goldens import nmse
from tests.support.passes import load_decoder, open_kv
from tests.support.tiny_gguf import make_tiny


@pytest.fixture
def all_by_torch(monkeypatch, device) -> PieceOperations:
    monkeypatch.setattr(Pieces, "__contains__", lambda self, operation: True)
    return PieceOperations(torch.device(device), "float16")


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: golden.name)
def test_logits_are_those_of_float32(golden, all_by_torch, tmp_path):
    reader = Reader(load_decoder(golden.write_model(tmp_path), all_by_torch), golden.tokens)
    errors = []
    first, second = sorted(golden.expected)[-2:]
    for count in (first + 1, second - first - 1, 1):
        logits = reader.read(count)
        if reader.computed - 1 in golden.expected:
            errors.append(nmse(logits.numpy(), golden.expected[reader.computed - 1]))
    reader.kv.close()
    routed = any(layer.experts is not None for layer in reader.decoder.config.layers)
    assert errors and max(errors) <= (ROUTE_LIMIT if routed else SHARP_LIMIT), errors


@pytest.mark.parametrize("quant", ["Q4_K_M", "Q8_0", "IQ3_S", "TQ1_0", "NVFP4", "MXFP4", "BF16"])
def test_weights_are_decoded_from_what_kernels_hold(quant, all_by_torch, tmp_path):
    path = make_tiny(tmp_path / "tiny.gguf", "qwen3", quant=quant, seed=3)
    tokens = np.random.default_rng(1).integers(10, 300, 12).tolist()
    plain = load_decoder(path)
    packed, kv = whole_prompt(tokens, plain.ops.block_size, torch.device("cpu")), open_kv(plain, 3)
    expected = plain.forward(packed.ids, kv.by_group(packed.layouts), kv.groups, torch.tensor([11]))
    reader = Reader(load_decoder(path, all_by_torch), tokens)
    assert nmse(reader.read(len(tokens)).numpy(), expected[0].numpy()) <= 1e-5
    reader.kv.close()
