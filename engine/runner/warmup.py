"""Threads that make kernels ready: the sampler while weights are read, other shapes behind a runner.

Compiling one shape takes up to seconds and cannot be interrupted. A runner that is closed meanwhile
must not wait for it, nor free what the thread's passes read: whoever is last frees, once.
"""

import logging
import threading
from collections.abc import Callable, Generator

import torch

from engine.device.stream import on_device, open_stream
from kernels.cuda.compile import compile_together
from kernels.sampling.sampler import sample
from kernels.state.decode_state import LENGTH, DecodeState
from kernels.state.sampler_state import SamplerState

log = logging.getLogger(__name__)


class CompileThread:
    """Works through steps until they end or `close` is called; then `free` runs once."""

    def __init__(self, free: Callable[[], None], device: torch.device) -> None:
        """free: gives back what steps and runner use; called by `close`, or by the thread at its end.

        device: what steps run on.
        """
        self._device = device
        self._free: Callable[[], None] | None = free
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        """Of the next two."""
        self._stepping = False
        self._paused = False
        self._running = False
        self._closed = False
        self.freed = threading.Event()
        """Set when `free` has run and nothing here refers to the runner any more."""

    @property
    def running(self) -> bool:
        """Whether steps are left."""
        return self._running

    def start(self, steps: Generator[None, None, None]) -> None:
        """Begin; a step ends where the generator yields. At most once, before `close`."""
        self._running = True
        threading.Thread(target=self._run, args=([steps],), name="compiler", daemon=True).start()

    def pause(self) -> None:
        """Begin no further step until `resume`; waits for the one that runs."""
        with self._changed:
            self._paused = True
            self._changed.wait_for(lambda: not self._stepping)

    def resume(self) -> None:
        """Undo `pause`."""
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    def close(self) -> None:
        """End after the step that runs; returns at once. Harmless when it was called before."""
        with self._lock:
            last = not self._running and not self._closed
            self._closed = True
        self.resume()
        if last:
            self._end()

    def _run(self, holder: list[Generator[None, None, None]]) -> None:
        with on_device(self._device):
            self._work(holder.pop)

    def _work(self, taken: Callable[[], Generator[None, None, None]]) -> None:
        steps = taken()
        try:
            while self._step(steps):
                pass
            steps.close()
        except Exception:
            log.exception("compiling kernels ahead of their use failed")
        del steps
        with self._lock:
            self._running = False
            last = self._closed
        if last:
            try:
                self._end()
            except Exception:
                log.exception("freeing a model's memory failed")

    def _step(self, steps: Generator[None, None, None]) -> bool:
        """Run one; False where none is left to run."""
        with self._changed:
            self._changed.wait_for(lambda: not self._paused)
            if self._closed:
                return False
            self._stepping = True
        try:
            return next(steps, self) is not self
        finally:
            with self._changed:
                self._stepping = False
                self._changed.notify_all()

    def _end(self) -> None:
        free, self._free = self._free, None
        try:
            if free is not None:
                free()
        finally:
            del free
            self.freed.set()


def compile_sampler_early(vocab_size: int, device: torch.device) -> None:
    """Start a thread for what needs no weights and takes compilers longest.

    What it compiles is not compiled again by a pass that asks for it meanwhile.
    """
    threading.Thread(target=_compile, args=(vocab_size, device), name="early compiler", daemon=True).start()


def _compile(vocab_size: int, device: torch.device) -> None:
    try:
        with on_device(device):
            compile_together(lambda: launch_sampler(vocab_size, device))
    except Exception:
        # Whoever needs it compiles it again, and tells.
        log.warning("compiling the sampler early failed", exc_info=True)


@torch.inference_mode()
def launch_sampler(vocab_size: int, device: torch.device) -> None:
    """Launch what first passes do of logits in one part, as an output matrix of many rows gives them.

    And what brings masks to rows that are held to something.
    """
    stream = open_stream(device)
    with stream.current():
        state = DecodeState.create(1, 1, 1, [], 1, device)
        sampler = SamplerState.create(1, vocab_size, device)
        slots = torch.full((1,), -1, dtype=torch.int32, device=device)
        logits = torch.zeros((1, 1, vocab_size), device=device)
        sample(logits, sampler, slots, state.rows[:, LENGTH.value])
        sampler.set_masks(slots, torch.zeros((1, -(-vocab_size // 32)), dtype=torch.int32, device=device))
    stream.synchronize()
