"""Memory of recorded passes: all take turns with it, and in each tensors take turns with its parts.

Kernels of a recording find their tensors by address. A tensor's memory is free for the next one as soon as
Python holds neither it nor a view of it, as it would be without a recording; so a pass stays as small as the
caches like it, and as many recordings as there are need no more than the largest.
"""

import math
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.cpu.compiler import CACHE_LINE

_NEW = (torch.ops.aten.empty, torch.ops.aten.empty_like)


class Scratch:
    """One piece of memory, whose pages the system gives as they are written."""

    def __init__(self, size: int) -> None:
        """size: bytes."""
        self._memory = torch.empty(size, dtype=torch.uint8)
        self._typed: dict[torch.dtype, Tensor] = {}
        self._held: list[tuple[int, int]] = []
        """(first, end) of what is taken, in order."""

    def clear(self) -> None:
        """All is free."""
        self._held.clear()

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """In the first place that is large enough; None where there is none."""
        size = math.prod(shape) * dtype.itemsize
        room, first, index = -(-max(size, 1) // CACHE_LINE) * CACHE_LINE, 0, 0
        for begin, end in self._held:
            if begin - first >= room:
                break
            first, index = end, index + 1
        if first + room > len(self._memory):
            return None
        self._held.insert(index, (first, first + room))
        if dtype not in self._typed:
            self._typed[dtype] = self._memory.view(dtype)
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        return self._typed[dtype].as_strided(shape, strides, first // dtype.itemsize)

    def place(self, tensor: Tensor) -> int | None:
        """Where the piece begins that a tensor lies in; None for one that lies elsewhere."""
        at = tensor.data_ptr() - self._memory.data_ptr()
        return next((first for first, end in self._held if first <= at < end), None)

    def give_back(self, first: int) -> None:
        """The piece that begins there."""
        self._held = [piece for piece in self._held if piece[0] != first]


class _Aside(threading.local):
    now = False
    """Whether this thread makes what outlasts the pass."""


_aside = _Aside()


@contextmanager
def aside() -> Iterator[None]:
    """Around what is made once for a pass, and not by its launches: a recording keeps it."""
    before, _aside.now = _aside.now, True
    try:
        yield
    finally:
        _aside.now = before


class Watch(TorchDispatchMode):
    """Has new tensors made in scratch memory, and notes whether torch computes, but for what is aside."""

    def __init__(self, scratch: Scratch) -> None:
        super().__init__()
        self._scratch = scratch
        self._users: dict[int, int] = {}
        """How many tensors there are, by where their piece begins."""
        self._followed: list[weakref.ref[Tensor]] = []
        self.computes = False
        self.fits = True
        self.asked = 0
        """Bytes of all tensors that were made."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else torch imports its compiler at the first pass: seconds, or a failure beside another import.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _aside.now:
            return func(*args, **(kwargs or {}))
        made = self._new(func.overloadpacket, args, kwargs or {})
        if made is None:
            made = func(*args, **(kwargs or {}))
            self.computes = self.computes or not (func.is_view or func.overloadpacket in _NEW)
        if isinstance(made, Tensor):
            self._follow(made)
        return made

    def _new(self, packet: Any, args: Any, options: dict[str, Any]) -> Tensor | None:
        """What `empty` or `empty_like` asks for; None for all else, and where there is no room."""
        if packet not in _NEW:
            return None
        like = args[0] if packet is torch.ops.aten.empty_like else None
        dtype = options.get("dtype") or (torch.get_default_dtype() if like is None else like.dtype)
        made = self._scratch.take(args[0] if like is None else like.shape, dtype)
        self.fits = self.fits and made is not None
        self.asked += 0 if made is None else made.nbytes
        return made

    def _follow(self, made: Tensor) -> None:
        first = self._scratch.place(made)
        if first is not None:
            self._users[first] = self._users.get(first, 0) + 1
            self._followed.append(weakref.ref(made, partial(self._forget, first)))

    def _forget(self, first: int, _tensor: object) -> None:
        self._users[first] -= 1
        if not self._users[first]:
            self._scratch.give_back(first)

    def finish(self) -> None:
        """What is still held stays where it is, until another recording."""
        self._followed.clear()
