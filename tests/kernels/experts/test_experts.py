"""Experts on the kernels against the plain torch definition."""

from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl

from kernels.contract import Activation, ExpertMatrices, QuantizedMatrix, Routing
from kernels.cuda.activations import Activations
from kernels.experts import experts as products
from kernels.experts.experts import TritonExperts, apply_experts, make_experts
from kernels.experts.norm_router import RoutedActivations, norm_and_route
from kernels.experts.router import FEW_TOKENS, TICKET_STRIDE, ids_of, route_few, sharers
from kernels.experts.routing import group_pairs, route_tokens
from kernels.linear.linear import LinearMaker
from kernels.linear.norm import add_norm
from kernels.quant.formats import GGMLType
from kernels.reference import experts as reference
from kernels.triton_operations import TritonOperations
from tests.kernels.quant_cases import activations, plausible_bytes, relative_error

ROUTINGS = [
    Routing(2, "softmax", True, 1.0),
    Routing(3, "softmax", False, 2.5),
    Routing(2, "sigmoid", True, 1.5),
    Routing(2, "softmax_selected", False, 1.0),
    Routing(3, "sigmoid", True, 1.5, groups=4, groups_used=2),
]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("routing", ROUTINGS, ids=lambda routing: routing.gating + str(routing.used))
def test_routes_are_those_of_the_definition(routing: Routing, biased: bool, device: str):
    torch.manual_seed(3)
    parts = torch.randn(2, 9, 12)
    bias = torch.randn(12) if biased else None
    routes = route_tokens(parts.to(device), None if bias is None else bias.to(device), routing)
    ids, weights = reference.route(parts.sum(0), bias, routing)
    torch.testing.assert_close(routes.weights.cpu().view(9, -1), weights, rtol=1e-5, atol=1e-6)
    groups = group_pairs(routes, 12)
    order, starts = groups.order.cpu(), groups.starts.tolist()
    flat = ids.flatten()
    for expert in range(12):
        own = order[starts[expert] : starts[expert + 1]].tolist()
        assert own == (flat == expert).nonzero().flatten().tolist()
    assert starts[-1] == len(flat)


@pytest.mark.parametrize("tokens", [1, 5, FEW_TOKENS])
@pytest.mark.parametrize("routing", ROUTINGS, ids=lambda routing: routing.gating + str(routing.used))
def test_one_launch_routes_a_few_tokens_as_the_definition_does(routing: Routing, tokens: int, device: str):
    torch.manual_seed(4)
    x, router = torch.randn(tokens, 96).half(), torch.randn(12, 96) / 10
    bias, selection, factors = torch.randn(12), torch.randn(12), torch.rand(12) + 0.5
    on = [part.to(device) for part in (x, router, bias, selection, factors)]
    sizes = FEW_TOKENS * TICKET_STRIDE, 65
    tickets, done = (torch.zeros(size, dtype=torch.int32, device=device) for size in sizes)
    done += 1
    routes = route_few(*on, routing, tickets, done)
    ids, weights = reference.route(x.float() @ router.T + bias, selection, routing)
    weights = weights * factors[ids]
    assert torch.equal(routes.ids.cpu().view(tokens, -1).long(), ids)
    torch.testing.assert_close(routes.weights.cpu().view(tokens, -1), weights, rtol=1e-5, atol=1e-6)
    assert not tickets.any() and not done[: 1 + ids.numel()].any()


@pytest.mark.parametrize(("tokens", "hidden", "splits"), [(1, 300, 3), (3, 128, 1)])
@pytest.mark.parametrize("routing", ROUTINGS, ids=lambda routing: routing.gating + str(routing.used))
def test_a_norm_routes_what_it_gives(routing: Routing, tokens: int, hidden: int, splits: int, device: str):
    torch.manual_seed(5)
    residual, delta = torch.randn(tokens, hidden), torch.randn(splits, tokens, hidden)
    weight, router, bias = torch.rand(hidden) + 0.5, torch.randn(12, hidden) / 10, torch.randn(12)
    selection, factors = torch.randn(12), torch.rand(12) + 0.5
    sizes = FEW_TOKENS * TICKET_STRIDE, 65
    tickets, done = (torch.zeros(size, dtype=torch.int32, device=device) for size in sizes)
    done += 1
    here, before, *on = [
        part.to(device) for part in (residual.clone(), delta, weight, router, bias, selection, factors)
    ]
    given = norm_and_route(here, before, on[0], 1e-6, *on[1:], routing, tickets, done, 0.5, 2.0)
    other = residual.clone().to(device)
    expected = add_norm(other, before, on[0], 1e-6, scale=0.5, sum_scale=2.0)
    assert torch.equal(here, other)
    torch.testing.assert_close(given.values, expected.values, rtol=1e-3, atol=1e-4)
    assert relative_error(given.sums, expected.sums) < 1e-3
    normed = other.cpu() / (other.cpu().square().mean(1, keepdim=True) + 1e-6).sqrt() * weight
    ids, weights = reference.route(normed @ router.T + bias, selection, routing)
    assert torch.equal(given.routes.ids.cpu().view(tokens, -1).long(), ids)
    weights = weights * factors[ids]
    torch.testing.assert_close(given.routes.weights.cpu().view(tokens, -1), weights, rtol=1e-4, atol=1e-5)
    assert not tickets.any() and not done[: 1 + ids.numel()].any()


@pytest.mark.parametrize(("count", "tokens"), [(100, 1), (100, 2), (5, 1)])
def test_experts_behind_a_norm_are_those_behind_norm_and_router(count: int, tokens: int, device: str):
    torch.manual_seed(6)
    hidden, ops = 64, TritonOperations(torch.device(device), "auto")
    experts = on_device(made("Q8_0", count, hidden, 32, False), ROUTINGS[0], "silu", device)
    delta = torch.randn(2, tokens, hidden, device=device)
    norm = ops.make_norm(torch.rand(hidden) + 0.5, 1e-6)
    results = []
    for asked in (experts, None):
        residual = torch.ones(tokens, hidden, device=device)
        x = ops.add_norm(residual, delta, norm, reader=asked)
        assert isinstance(x, RoutedActivations) == (asked is not None and (count, tokens) == (100, 1))
        results.append(ops.experts(x, experts).sum(0))
    assert relative_error(*results) < 1e-3


@triton.jit
def _list_sharers(ids, out, pairs, USED: tl.constexpr, BM: tl.constexpr):
    """Grid (pairs,): expert, whether it begins here, and each token's pair or -1."""
    expert, begins, pair, live = sharers(ids_of(ids, pairs, USED, BM), tl.program_id(0), USED, BM)
    row = out + tl.program_id(0) * (2 + BM)
    tl.store(row, expert)
    tl.store(row + 1, begins.to(tl.int32))
    tl.store(row + 2 + tl.arange(0, BM), tl.where(live, pair, -1))


@pytest.mark.parametrize(("tokens", "used"), [(1, 8), (3, 3), (8, 2)])
def test_every_pair_is_served_once_with_all_that_share_its_expert(tokens: int, used: int, device: str):
    torch.manual_seed(6)
    ids = torch.stack([torch.randperm(9)[:used] for _ in range(tokens)]).flatten()
    out = torch.zeros(len(ids), 2 + FEW_TOKENS, dtype=torch.int32, device=device)
    _list_sharers[(len(ids),)](ids.int().to(device), out, len(ids), USED=used, BM=FEW_TOKENS)
    served = [row for row in out.tolist() if row[1]]
    assert sorted(row[0] for row in served) == ids.unique().tolist()
    for expert, _, *pairs in served:
        assert [pair for pair in pairs if pair >= 0] == (ids == expert).nonzero().flatten().tolist()
        assert all(pair // used == token for token, pair in enumerate(pairs) if pair >= 0)


def test_equal_probabilities_and_no_numbers_still_choose_different_experts(device: str):
    logits = torch.zeros(1, 2, 5)
    logits[0, 1] = float("nan")
    routes = route_tokens(logits.to(device), None, ROUTINGS[0])
    first, second = routes.ids.view(2, 2).tolist()
    assert first == [0, 1] and len(set(second)) == 2 and all(0 <= expert < 5 for expert in second)


FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}


def matrix(kind: str, rows: int, columns: int) -> QuantizedMatrix:
    if kind in FLOATS:
        raw = (torch.randn(rows, columns) / columns**0.5).to(FLOATS[kind]).view(torch.uint8).flatten()
    else:
        raw = plausible_bytes(GGMLType[kind], (rows, columns), "cpu")
    return QuantizedMatrix(raw, GGMLType[kind], (rows, columns))


def made(kind: str, count: int, hidden: int, size: int, fused: bool, down: str = "") -> ExpertMatrices:
    parts = [matrix(kind, count * size, hidden) for _ in range(2)]
    if fused:
        parts = [matrix(kind, count * 2 * size, hidden)]
    return ExpertMatrices(
        count, matrix("F32", count, hidden), None, parts, matrix(down or kind, count * hidden, size)
    )


def with_biases(matrices: ExpertMatrices, hidden: int, size: int) -> ExpertMatrices:
    count = matrices.count
    return replace(
        matrices,
        router_bias=torch.randn(count),
        gate_up_bias=torch.randn(count, 2, size),
        down_bias=torch.randn(count, hidden),
    )


CASES = [
    ("Q4_K", 4, 256, 256, "silu", False, 3),
    ("F16", 3, 64, 96, "gelu", True, 2),
    ("F32", 3, 96, 80, "silu", False, 2),
    ("MXFP4", 5, 96, 160, "swiglu_oai", False, 3),
    ("Q6_K", 4, 256, 256, "gelu", False, 40),
    ("Q8_0", 8, 320, 96, "swiglu_oai", True, 70),
    ("BF16", 3, 64, 96, "swiglu_oai", True, 3),
    ("NVFP4", 5, 192, 128, "swiglu_oai", False, 3),
    ("IQ2_S", 4, 256, 256, "silu", False, 3),
    ("IQ1_S", 4, 256, 256, "gelu", True, 40),
    ("IQ3_XXS", 4, 256, 256, "silu", False, 70),
    ("TQ1_0", 4, 256, 256, "silu", False, 9),
    ("Q5_0", 6, 64, 32, "silu", False, 9),
]


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize(("kind", "count", "hidden", "size", "activation", "fused", "tokens"), CASES)
def test_experts_are_those_of_the_definition(
    kind, count, hidden, size, activation, fused, tokens, invariant, device
):
    torch.manual_seed(5)
    matrices, routing = made(kind, count, hidden, size, fused), Routing(2, "softmax", True, 1.0)
    if activation == "swiglu_oai":
        matrices = with_biases(matrices, hidden, size)
    experts = on_device(matrices, routing, activation, device)
    given = activations(tokens, hidden, device)
    parts = apply_experts(given, experts, invariant)
    assert parts.shape == (2, tokens, hidden)
    plain = reference.make_experts(matrices, routing, activation, torch.device("cpu"))
    expected = reference.apply_experts(given.values.float().cpu(), plain)
    assert relative_error(parts.sum(0).cpu(), expected) < 2e-3
    if invariant:
        last = Activations(given.values[-1:].clone(), given.sums[-1:].clone())
        assert torch.equal(apply_experts(last, experts, True)[:, 0], parts[:, -1])


def test_a_router_may_read_something_else_and_experts_have_factors(device):
    torch.manual_seed(6)
    hidden, routing = 64, Routing(2, "softmax", True, 1.0)
    matrices = replace(made("Q8_0", 6, hidden, 32, True), factors=torch.rand(6) + 0.5)
    experts = on_device(matrices, routing, "gelu", device)
    given, routed = activations(5, hidden, device), activations(5, hidden, device)
    parts = apply_experts(given, experts, routed=routed)
    plain = reference.make_experts(matrices, routing, "gelu", torch.device("cpu"))
    expected = reference.apply_experts(given.values.float().cpu(), plain, routed.values.float().cpu())
    assert relative_error(parts.sum(0).cpu(), expected) < 2e-3
    others = reference.apply_experts(given.values.float().cpu(), plain)
    assert relative_error(others, expected) > 0.1


@pytest.mark.parametrize(
    ("kind", "down", "size", "tokens", "used"),
    [("Q4_K", "Q4_K", 256, 3, 2), ("Q4_K", "Q6_K", 256, 3, 2), ("MXFP4", "MXFP4", 160, 8, 3)],
)
def test_both_products_at_once_give_the_bits_of_two_launches(
    kind, down, size, tokens, used, device, monkeypatch
):
    torch.manual_seed(6)
    hidden, results = 128 if kind == "MXFP4" else 256, []
    matrices = with_biases(made(kind, 5, hidden, size, False, down), hidden, size)
    experts = on_device(matrices, Routing(used, "softmax_selected", False, 1.0), "swiglu_oai", device)
    given = activations(tokens, hidden, device)
    # With no program at once, those without an expert come last.
    for both, resident in ((False, 8), (True, 8), (True, 0)):
        monkeypatch.setattr(products, "_fills_twice", lambda pairs, experts, both=both: both)
        monkeypatch.setattr(products, "RESIDENT", resident)
        results.append(apply_experts(given, experts))
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    ended, blocks = int(experts.done[1:].sum()), -(-2 * size // 64)
    assert ended and ended % blocks == 0, "what the second product waits for was counted"


def on_device(
    matrices: ExpertMatrices, routing: Routing, activation: Activation, device: str
) -> TritonExperts:
    maker = LinearMaker(torch.device(device))
    try:
        return make_experts(maker, matrices, routing, activation)
    finally:
        maker.close()
