"""A decoder of which the processor computes a part, as `engine.model.split.placement` says.

Both parts are decoders of their own operations. The stream of residuals crosses over between them, and so do
the inputs of experts that are the processor's and what these give.
"""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from engine.model.decoder import Decoder, finish
from engine.model.layer_weights import HostExperts
from engine.model.spec import ModelConfig
from engine.model.split.device_part import DevicePart, HostExchange
from engine.model.split.placement import Placement
from engine.model.split.split_weights import SplitWeights
from engine.model.split.streamed_pass import StreamedPart, VisitingLayers
from kernels.contract import Branch, Operations, PassLayout, Rotation
from kernels.cuda.crossing import Crossing, Cut, FixedCrossing

if TYPE_CHECKING:
    from kernels.streaming.handles import HandleStream


class GroupKV(NamedTuple):
    """The KV of a group of layers; None where a side has none of them."""

    device: Any | None
    host: Any | None


class SplitDecoder:
    """Runs packed passes; what it is given is in host memory."""

    def __init__(
        self,
        config: ModelConfig,
        weights: SplitWeights,
        placement: Placement,
        ops: Operations,
        host_ops: Operations,
    ) -> None:
        self.config = config
        self.placement = placement
        self.ops, self.host_ops = ops, host_ops
        self._crossing = Crossing(ops.device)
        self._host = Decoder(config, weights.host, host_ops)
        first = placement.layers
        self._device = DevicePart(config, weights.device, ops, first, host_ops, self._crossing)
        self._stream: HandleStream | None = None
        self._streamed: StreamedPart | None = None
        self._visiting: VisitingLayers | None = None
        if (moved := weights.streamed) is not None:
            self._stream = moved.stream
            self._streamed = StreamedPart(config, weights.device, ops, first, moved.stream)
            if first:
                self._visiting = VisitingLayers(config, moved.layers, ops, moved.stream, self._crossing)

    @torch.inference_mode()
    def forward(
        self, ids: Tensor, layouts: Sequence[PassLayout], kv: Sequence[GroupKV], rows: Tensor | None
    ) -> Tensor:
        """As `Decoder.forward`; all tensors but the logits, which are on the device, are the host's."""
        device = self._device
        tables = [_without_drafts(layout) for layout in layouts]
        prepared = _prepare(self.ops, tables, [own.device for own in kv], device.rotations)
        if self.placement.layers:
            residual = self._crossing.to_device(self.before(ids, layouts, kv))
        else:
            residual = device.embed(ids.to(self.ops.device))
        delta, branch = device.through(residual, prepared)
        return self._logits(residual, delta, branch, rows)

    @property
    def streams(self) -> bool:
        """Whether `read` can be asked for."""
        return self._streamed is not None

    @property
    def streamed_bytes(self) -> int:
        """What crosses over in `read`."""
        return 0 if self._stream is None else self._stream.source_bytes

    def open_visits(self, kv: Sequence[GroupKV]) -> None:
        """Take note of the KV that `read` will be given."""
        if self._visiting is not None:
            self._visiting.open_kv([own.host for own in kv])

    def read(
        self, ids: Tensor, layouts: Sequence[PassLayout], kv: Sequence[GroupKV], rows: Tensor
    ) -> Generator[None, None, Tensor]:
        """As `forward` for chunks of prompts, all on the device; rests behind each layer, which is queued.

        What the device has not got memory for raises `MemoryError` before anything is queued.
        """
        assert self._stream is not None and self._streamed is not None
        device, crossing = self._device, self._crossing
        prepared = _prepare(self.ops, layouts, [own.device for own in kv], device.rotations)
        self._stream.begin()
        if self._visiting is None:
            residual = device.embed(ids.to(self.ops.device))
        else:
            residual = crossing.to_device(self._host.embed(ids))
            delta, branch = yield from self._visiting.compute(residual, layouts)
            self.ops.add_norm(residual, delta, None, branch=branch)
        delta, branch = yield from self._streamed.steps(residual, prepared)
        return self._logits(residual, delta, branch, rows)

    def _logits(self, residual: Tensor, delta: Any, branch: Branch, rows: Tensor | None) -> Tensor:
        if rows is not None and not len(rows):
            # Kernels have no grid for none.
            return torch.empty(0, self.config.vocab_size, device=self.ops.device)
        chosen = None if rows is None else rows.to(self.ops.device, torch.int32)
        return self.ops.logits(self._device.head(residual, delta, branch, chosen))

    @torch.inference_mode()
    def try_out(self, tokens: int, kv: Sequence[GroupKV]) -> None:
        """Queue the device's part of a pass of so many tokens over scratch pages; nothing is waited for."""
        device = self._device
        layout = _over_scratch(tokens, self.ops.block_size)
        prepared = _prepare(self.ops, [layout] * len(kv), [own.device for own in kv], device.rotations)
        hidden = self.config.hidden_size
        residual = torch.zeros(tokens, hidden, dtype=torch.float32, device=self.ops.device)
        rows = torch.zeros(1, dtype=torch.int32, device=self.ops.device)
        with device.asking(device.nothing):
            delta, branch = device.through(residual, prepared)
            device.head(residual, delta, branch, rows)

    @torch.inference_mode()
    def try_out_reading(self, tokens: int, kv: Sequence[GroupKV], *, whole: bool = True) -> None:
        """The same of `read`, of which copies are waited for; no weights cross over where it is not whole."""
        assert self._stream is not None
        layouts = [_over_scratch(tokens, self.ops.block_size)] * len(kv)
        with nullcontext() if whole else self._stream.bringing_nothing():
            finish(self.read(torch.zeros(tokens, dtype=torch.int64), layouts, kv, torch.zeros(1)))

    @torch.inference_mode()
    def host_ms(self, tokens: int, kv: Sequence[GroupKV]) -> float:
        """What the processor's part of a pass of so many tokens takes, measured over scratch pages."""
        host, layout = self._host, _over_scratch(tokens, self.ops.block_size)
        x = torch.randn(tokens, self.config.hidden_size)
        prepared = _prepare(self.host_ops, [layout] * len(kv), [own.host for own in kv], host.rotations)
        started = time.perf_counter()
        host.through(x.clone(), prepared)
        for layer in self._device.weights.layers:
            if isinstance(layer.experts, HostExperts):
                self.host_ops.experts(x, layer.experts.handle)
        return (time.perf_counter() - started) * 1e3

    def close(self) -> None:
        """Let go of pinned memory and of visits; nothing may be queued any more."""
        if self._visiting is not None:
            self._visiting.close_kv()
        if self._stream is not None:
            self._stream.close()

    def exchange(self, crossing: FixedCrossing, cut: Cut, tokens: Callable[[], int]) -> HostExchange:
        """How a captured pass has what the processor's experts give."""
        return HostExchange(self.ops, self.host_ops, self._stream, crossing, cut, tokens)

    def queue(
        self, start: Tensor, tables: Sequence[Any], kv: Sequence[GroupKV], exchange: HostExchange
    ) -> Tensor:
        """The part of a device that can capture, over tables that it has: logits [T, vocab] of all tokens.

        start: ids of the tokens, or what `before` gave, on the device; used up. tables: by group.
        """
        device, pages, ops = self._device, [own.device for own in kv], cast(Any, self.ops)
        prepared = _by_group(ops.prepare_tables, tables, pages, device.rotations)
        residual = start if self.placement.layers else device.embed(start)
        with device.asking(exchange.ask):
            delta, branch = device.through(residual, prepared)
        return self.ops.logits(device.head(residual, delta, branch, None))

    def before(self, ids: Tensor, layouts: Sequence[PassLayout], kv: Sequence[GroupKV]) -> Tensor:
        """The stream of residuals behind the processor's layers."""
        host = self._host
        prepared = _prepare(self.host_ops, layouts, [own.host for own in kv], host.rotations)
        residual = host.embed(ids)
        delta, branch = host.through(residual, prepared)
        return self.host_ops.add_norm(residual, delta, None, branch=branch)


def _prepare(
    ops: Operations, layouts: Sequence[PassLayout], kv: Sequence[Any], rotations: Sequence[Rotation]
) -> list[Any]:
    return _by_group(ops.prepare, layouts, kv, rotations)


def _by_group(
    prepare: Callable[..., Any], given: Sequence[Any], kv: Sequence[Any], rotations: Sequence[Rotation]
) -> list[Any]:
    """None for groups of which a side has no layers."""
    own = [(one, pages) for one, pages in zip(given, kv, strict=True) if pages is not None]
    made = iter(prepare([one for one, _ in own], [pages for _, pages in own], rotations))
    return [None if pages is None else next(made) for pages in kv]


def _over_scratch(tokens: int, size: int) -> PassLayout:
    places = torch.arange(tokens)
    pages = [0] * -(-tokens // size)
    return PassLayout([tokens], [tokens], [pages], int(tokens == 1), places, places % size)


def _without_drafts(layout: PassLayout) -> PassLayout:
    """Decode rows with drafts behind them as chunks, since a device's decode rows have one token."""
    rows = layout.num_decode
    return layout if sum(layout.query_lens[:rows]) == rows else replace(layout, num_decode=0)
