"""One stream of work on a device: what is queued there, captured, and waited for.

A runner's code is the same where there is no GPU: `ImmediateStream` runs everything at once, which is
how kernels are tested under Triton's interpreter.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from kernels.cuda.crossing import Cut
from kernels.cuda.cublas import free_workspaces
from kernels.cuda.streams import CAPTURE_LOCK, OwnStream


class Mark(Protocol):
    """A point in the stream."""

    def synchronize(self) -> None:
        """Wait until everything queued before it is done."""
        ...

    def query(self) -> bool:
        """Whether everything queued before it is done."""
        ...


class DeviceStream(Protocol):
    """Work in order."""

    def current(self) -> AbstractContextManager[object]:
        """Tensor operations inside are queued here."""
        ...

    def beside(self, after: Mark) -> AbstractContextManager[object]:
        """Operations inside are queued behind `after` alone, beside what else is queued here until the end.

        What is queued here later waits for them.
        """
        ...

    def host_tensor(self, *shape: int) -> Tensor:
        """int32 zeros that copies to and from the device need not wait for."""
        ...

    def mark(self) -> Mark:
        """The present end of the stream."""
        ...

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """What queues `work` again; `work` must have run once, so that it is compiled."""
        ...

    def capture_parts(self, work: Callable[[Cut], None]) -> Callable[[], None]:
        """The same of work that the host does a part of: what it hands over is called where it belongs.

        Then all that is before it is queued, and nothing that is behind it.
        """
        ...

    def synchronize(self) -> None:
        """Wait for everything."""
        ...


def open_stream(device: torch.device) -> DeviceStream:
    """A stream of its own on a device."""
    return CudaStream(device) if device.type == "cuda" else ImmediateStream()


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """What the calling thread launches and takes inside is this GPU's.

    Each thread has a current GPU and begins with the first, whatever the thread that started it had.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def _no_collection() -> Iterator[None]:
    """What garbage collection frees in the midst of a capture can make it fail."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class CudaStream:
    """A CUDA stream; graphs share one memory pool, since they never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._own = OwnStream(device)
        self._stream = self._own.stream
        self._pool = torch.cuda.graph_pool_handle()

    def current(self) -> AbstractContextManager[object]:
        """This stream."""
        return torch.cuda.stream(self._stream)

    @contextmanager
    def beside(self, after: Mark) -> Iterator[None]:
        """Another stream, or this one where all are taken."""
        assert isinstance(after, torch.cuda.Event)
        other = next(iter(self._own.sides(1)), self._stream)
        other.wait_event(after)
        try:
            with torch.cuda.stream(other):
                yield
        finally:
            self._stream.wait_stream(other)

    def host_tensor(self, *shape: int) -> Tensor:
        """Pinned."""
        return torch.zeros(shape, dtype=torch.int32, pin_memory=True)

    def mark(self) -> torch.cuda.Event:
        """Waiting sleeps and lets other threads have the interpreter."""
        event = torch.cuda.Event(blocking=True)
        event.record(self._stream)
        return event

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """A CUDA graph; other threads may use the device meanwhile."""
        graph = torch.cuda.CUDAGraph()
        self._stream.synchronize()
        with CAPTURE_LOCK, self.current(), _no_collection():
            free_workspaces()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
                free_workspaces()
        return graph.replay

    def capture_parts(self, work: Callable[[Cut], None]) -> Callable[[], None]:
        """A CUDA graph for each part; none runs beside another, so they share memory."""
        parts: list[Callable[[], None]] = []
        graph = torch.cuda.CUDAGraph()

        def begin() -> None:
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

        def cut(between: Callable[[], None]) -> None:
            nonlocal graph
            graph.capture_end()
            parts.extend([graph.replay, between])
            graph = torch.cuda.CUDAGraph()
            begin()

        self._stream.synchronize()
        with CAPTURE_LOCK, self.current(), _no_collection():
            free_workspaces()
            begin()
            try:
                work(cut)
            finally:
                graph.capture_end()
                free_workspaces()
        queued = [*parts, graph.replay]
        # What the host does may refer to `cut`: nothing would go by itself.
        parts.clear()

        def replay() -> None:
            for part in queued:
                part()

        return replay

    def synchronize(self) -> None:
        """Wait for the stream."""
        self._stream.synchronize()


class _Done:
    def synchronize(self) -> None:
        """Nothing is ever outstanding."""

    def query(self) -> bool:
        """Nothing is ever outstanding."""
        return True


DONE: Mark = _Done()
"""Behind work that is done at once."""


class ImmediateStream:
    """Runs work when it is queued."""

    def current(self) -> AbstractContextManager[object]:
        """Nothing to choose."""
        return nullcontext()

    def beside(self, after: Mark) -> AbstractContextManager[object]:
        """All that was queued is done, and so is what is done inside."""
        after.synchronize()
        return nullcontext()

    def host_tensor(self, *shape: int) -> Tensor:
        """Plain memory."""
        return torch.zeros(shape, dtype=torch.int32)

    def mark(self) -> Mark:
        """Already passed."""
        return DONE

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """The work itself."""
        return work

    def capture_parts(self, work: Callable[[Cut], None]) -> Callable[[], None]:
        """The work itself, and the host's parts where they belong."""
        return lambda: work(lambda between: between())

    def synchronize(self) -> None:
        """Nothing is ever outstanding."""
