"""Small tensors on their way between a GPU and the processor that computes a part of the same pass.

Pinned buffers, kept from pass to pass; copies are queued in the current stream. Where there is no GPU the
tensors themselves cross over.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Cut = Callable[[Callable[[], None]], None]
"""Divides a pass that is being queued; takes what the host does between the parts."""

_ALIGN = 64
_LEAST_BYTES = 1 << 16


class Crossing:
    """Of one runner, whose passes never overlap."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._apart = device.type == "cuda"
        self._down = self._up = torch.empty(0, dtype=torch.uint8)
        if self._apart:
            # Spinning: the wait is a fraction of a millisecond, many times a pass.
            self._arrived, self._sent = torch.cuda.Event(), torch.cuda.Event()

    def to_host(self, *parts: Tensor) -> list[Tensor]:
        """The same values in host memory; waits for them. They stay until the next call."""
        if not self._apart:
            return list(parts)
        self._down = _grown(self._down, parts)
        views = _views(self._down, parts)
        for view, part in zip(views, parts, strict=True):
            view.copy_(part, non_blocking=True)
        self._arrived.record()
        self._arrived.synchronize()
        return views

    def to_device(self, part: Tensor) -> Tensor:
        """The same values on the device, for what is queued from now on."""
        if not self._apart:
            return part
        # The copy of the call before may still read the buffer.
        self._sent.synchronize()
        self._up = _grown(self._up, [part])
        (view,) = _views(self._up, [part])
        view.copy_(part)
        made = torch.empty(part.shape, dtype=part.dtype, device=self._device)
        made.copy_(view, non_blocking=True)
        self._sent.record()
        return made


class FixedCrossing:
    """The same for captured passes: each place of a part has a buffer of its own, at the same address always.

    What is queued before `arrived` is copied down before it returns; what the host then writes is copied up
    by what is queued behind.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._apart = device.type == "cuda"
        self._buffers: dict[tuple[object, ...], Tensor] = {}
        if self._apart:
            self._event = torch.cuda.Event()

    def buffer(self, place: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Host memory, made when it is first asked for: not while a pass is captured."""
        key = place, *shape, dtype
        if key not in self._buffers:
            self._buffers[key] = torch.zeros(tuple(shape), dtype=dtype, pin_memory=self._apart)
        return self._buffers[key]

    def down(self, place: str, part: Tensor) -> Tensor:
        """Queue a copy; it is there after `arrived`."""
        return self.buffer(place, part.shape, part.dtype).copy_(part, non_blocking=True)

    def up(self, buffer: Tensor) -> Tensor:
        """Queue a copy of what the host has written by then."""
        made = torch.empty(buffer.shape, dtype=buffer.dtype, device=self._device)
        return made.copy_(buffer, non_blocking=True)

    def arrived(self) -> None:
        """Wait for what was queued."""
        if self._apart:
            self._event.record()
            self._event.synchronize()


def _grown(buffer: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """The buffer, or a larger one where it does not hold the parts."""
    needed = sum(_room(part) for part in parts)
    if needed <= buffer.nbytes:
        return buffer
    size = 1 << (max(needed, _LEAST_BYTES) - 1).bit_length()
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def _views(buffer: Tensor, parts: Sequence[Tensor]) -> list[Tensor]:
    views, start = [], 0
    for part in parts:
        views.append(buffer[start : start + part.nbytes].view(part.dtype).view(part.shape))
        start += _room(part)
    return views


def _room(part: Tensor) -> int:
    return -(-part.nbytes // _ALIGN) * _ALIGN
