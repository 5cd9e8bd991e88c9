"""Drives one decoder pass by pass with hand-made layouts, for equivalence tests."""

from pathlib import Path

import torch
from torch import Tensor

from engine.gguf.file import open_gguf
from engine.model.config import read_config
from engine.model.decoder import Decoder
from engine.model.spec import ModelConfig
from engine.model.split.placement import Placement
from engine.model.split.split_decoder import GroupKV, SplitDecoder
from engine.model.split.split_weights import load_split_weights
from engine.model.weights import load_weights
from engine.runner.model_kv import ModelKV, pool_bytes
from engine.runner.split.split_kv import SplitKV
from kernels.contract import Operations, PassLayout
from kernels.cpu.operations import CPUOperations
from kernels.reference.paged_kv import PagedKV
from kernels.select import operations_for


def load_decoder(path: Path, ops: Operations | None = None) -> Decoder:
    """A float32 decoder of a model file."""
    ops = ops or operations_for("cpu", "float32", "float32")
    with open_gguf(path) as file:
        config: ModelConfig = read_config(file)
        return Decoder(config, load_weights(file, config, ops, lambda fraction, what: None), ops)


def load_split(
    path: Path, placement: Placement, ops: Operations | None = None, host_ops: Operations | None = None
) -> SplitDecoder:
    """A decoder of a model file of which the processor computes a part; float32 where nothing is said."""
    ops = ops or operations_for("cpu", "float32", "float32")
    host_ops = host_ops or CPUOperations(torch.device("cpu"), "float32", ops.kv_format, ops.block_size)
    with open_gguf(path) as file:
        config = read_config(file)
        weights = load_split_weights(file, config, placement, ops, host_ops, lambda fraction, what: None)
        return SplitDecoder(config, weights, placement, ops, host_ops)


def open_kv(decoder: Decoder | SplitDecoder, pages: int) -> ModelKV:
    """KV of so many pages in every pool, all backed: windows keep theirs."""
    counts = [pages] * len(pool_bytes(decoder.ops, decoder.config))
    if isinstance(decoder, SplitDecoder):
        first = decoder.placement.layers
        kv: ModelKV = SplitKV(decoder.ops, decoder.host_ops, decoder.config, counts, first)
    else:
        kv = ModelKV(decoder.ops, decoder.config, counts)
    for pool in range(kv.num_pools if decoder.ops.runs_ahead else 0):
        kv.back(pool, pages)
    return kv


class Passes:
    """A paged KV and the tables of a few sequences, whose tokens are read in any chunks.

    `tables[name]` lists block ids; by default each sequence has scattered, interleaved blocks.
    """

    def __init__(
        self, decoder: Decoder | SplitDecoder, sequences: dict[str, list[int]], scattered: bool = True
    ) -> None:
        self.decoder = decoder
        self.tokens = sequences
        self.computed = dict.fromkeys(sequences, 0)
        self.logits: dict[str, Tensor] = {}
        """The last logits of each sequence, float32 [vocab]."""
        size = self.size = decoder.ops.block_size
        blocks = {name: len(ids) // size + 5 for name, ids in sequences.items()}
        total = sum(blocks.values())
        order = (
            torch.randperm(total, generator=torch.Generator().manual_seed(7))
            if scattered
            else torch.arange(total)
        )
        free = (order + 1).tolist()
        self.tables = {name: [free.pop(0) for _ in range(count)] for name, count in blocks.items()}
        self.kv = open_kv(decoder, total + 1)
        groups = [
            part for group in self.kv.groups for part in (group if isinstance(group, GroupKV) else [group])
        ]
        for group in groups:
            for layer in group.layers if isinstance(group, PagedKV) else ():
                (layer.values if layer.scales is None else layer.scales)[:, size:].fill_(float("nan"))

    def run(self, *spans: tuple[str, int]) -> None:
        """One packed pass: (sequence, how many of its next tokens), decode rows first."""
        ids, positions, slots, rows, lens, contexts, tables = [], [], [], [], [], [], []
        size = self.size
        for name, count in spans:
            start = self.computed[name]
            table = self.tables[name]
            ids += self.tokens[name][start : start + count]
            positions += range(start, start + count)
            slots += [table[p // size] * size + p % size for p in range(start, start + count)]
            rows.append(len(ids) - 1)
            lens.append(count)
            contexts.append(start + count)
            tables.append(table)
            self.computed[name] = start + count
        decode = 0
        while decode < len(lens) and lens[decode] == 1 and contexts[decode] > 1:
            decode += 1
        layout = PassLayout(lens, contexts, tables, decode, torch.tensor(positions), torch.tensor(slots))
        layouts = self.kv.by_group([layout] * self.kv.num_pools)
        logits = self.forward(torch.tensor(ids), layouts, torch.tensor(rows))
        for (name, _), row in zip(spans, logits, strict=True):
            self.logits[name] = row.clone()

    def forward(self, ids: Tensor, layouts: list[PassLayout], rows: Tensor) -> Tensor:
        """Logits of one pass."""
        return self.decoder.forward(ids, layouts, self.kv.groups, rows)

    def greedy(self, *names: str, steps: int) -> dict[str, list[int]]:
        """Batched greedy decoding of sequences whose prompts were read."""
        answers: dict[str, list[int]] = {name: [] for name in names}
        for _ in range(steps):
            for name in names:
                token = int(self.logits[name].argmax())
                answers[name].append(token)
                self.tokens[name] = [*self.tokens[name], token]
            self.run(*((name, 1) for name in names))
        return answers


def assert_same_logits(ours: Tensor, expected: Tensor) -> None:
    """The float32 bar of the equivalences."""
    assert bool(torch.isfinite(ours).all())
    relative = float((ours - expected).norm() / expected.norm())
    assert relative <= 5e-6, f"relative difference {relative:.2e}"
    assert float((ours - expected).abs().max()) <= 2e-4
