"""What is declared of a pass's scratch is what its operations take, at the shapes of 8 B and 30 B models."""

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import GridExecutor
from triton.runtime.jit import JITFunction

from engine.footprint.rules import DeviceRules, Holding
from engine.footprint.scratch import (
    PASS_SHARE,
    activations,
    expert_scratch,
    linear_scratch,
    longest_pass,
    scratch_bytes,
)
from engine.footprint.shape import Experts, Footprint, KVLayers, Linear, Matrix
from kernels.linear import wide
from kernels.quant.formats import GGMLType
from tests.kernels import launches

GPU = DeviceRules("cuda:0", "GPU", Holding.PLANES, 2, "float16", 64, pass_tokens=4096)
TOKENS = 4096
Q4 = GGMLType.Q4_K
GATE = Linear((Matrix(Q4, 12_288), Matrix(Q4, 12_288)), 4096, paired=True)
DOWN = Linear((Matrix(Q4, 4096),), 4096)
EXPERTS = Experts(128, (Matrix(Q4, 768), Matrix(Q4, 768)), Matrix(Q4, 2048), 2048, 768, 8)


class Held(TorchDispatchMode):
    """The most bytes that tensors held at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._users: Counter[int] = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        made = function(*arguments, **(named or {}))
        for one in made if isinstance(made, tuple | list) else (made,):
            if isinstance(one, torch.Tensor):
                self._count(one)
        return made

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        self._users[key] += 1
        if self._users[key] == 1:
            self.now += size
            self.most = max(self.most, self.now)
        weakref.finalize(tensor, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._users[key] -= 1
        if not self._users[key]:
            self.now -= size


@pytest.fixture
def without_kernels(monkeypatch):
    """Kernels write nothing, and the vendor's product is its result alone."""
    monkeypatch.setattr(GridExecutor, "__call__", lambda *_, **__: None)
    monkeypatch.setattr(JITFunction, "run", lambda *_, **__: None)

    def product(values, w, dtype=torch.float32, scale=1.0):
        return torch.empty((1, values.shape[0], w.shape[0]), dtype=dtype, device="meta")

    monkeypatch.setattr(wide, "_matmul", product)


def peak(run: Callable[[], object], weights: int) -> int:
    """What a call holds at most beside its weights."""
    with Held() as held:
        made = run()
    assert made is not None
    return held.most - weights


def planes_bytes(rows: int, columns: int) -> int:
    made = launches._planes(Q4, rows, columns)
    planes = (getattr(made, name) for name in made.__slots__)
    return sum(plane.nbytes for plane in planes if isinstance(plane, torch.Tensor))


def test_a_product_of_many_tokens(without_kernels):
    found = peak(lambda: launches._wide(Q4, TOKENS), planes_bytes(4096, 4096))
    assert linear_scratch(DOWN, TOKENS) == pytest.approx(found, rel=0.01)


def test_a_gated_product(without_kernels):
    found = peak(lambda: launches._gated(Q4, TOKENS), planes_bytes(24_576, 4096))
    assert linear_scratch(GATE, TOKENS) == pytest.approx(found, rel=0.01)


def test_experts(without_kernels):
    weights = planes_bytes(128 * 1536, 2048) + planes_bytes(128 * 2048, 768) + 128 * 2048 * 4
    found = peak(lambda: launches._apply_experts(Q4, TOKENS), weights) - activations(TOKENS, 2048)
    assert 0.95 * found <= expert_scratch(EXPERTS, TOKENS) <= 1.3 * found


def footprint(hidden: int = 4096) -> Footprint:
    head = Linear((Matrix(Q4, 151_936),), hidden)
    qkv = Linear((Matrix(Q4, 6144),), hidden)
    linears = ((head, 1), (qkv, 36), (DOWN, 36), (GATE, 36))
    return Footprint(linears, (), head, False, 0, (KVLayers(36, 0, 8, 128),), 40960)


def test_a_pass_holds_what_layers_keep_and_the_largest_product():
    keep = 2 * 4 * 4096 + 4 * 6144
    assert scratch_bytes(footprint(), GPU, TOKENS) > TOKENS * keep + linear_scratch(GATE, TOKENS)
    assert scratch_bytes(footprint(), GPU, TOKENS) < 1 << 30
    assert scratch_bytes(footprint(), GPU, 16) > 2 * 72 * 151_936 * 4
    assert scratch_bytes(footprint(), replace(GPU, pass_tokens=0), TOKENS) == 0


def test_passes_are_shorter_where_little_is_left():
    assert longest_pass(footprint(), GPU, 80 << 30) == 4096
    some = longest_pass(footprint(), GPU, 2 << 30)
    assert 512 <= some < 4096
    assert scratch_bytes(footprint(), GPU, some) <= PASS_SHARE * (2 << 30)
    assert longest_pass(footprint(), GPU, 0) == 512
