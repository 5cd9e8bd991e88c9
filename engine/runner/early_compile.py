"""Compiles what needs no weights while a model's are read: the sampler, which takes compilers longest."""

import logging
import threading

import torch

from engine.device.stream import open_stream
from kernels.cuda.compile import compile_together
from kernels.sampling.sampler import sample
from kernels.state.decode_state import LENGTH, DecodeState
from kernels.state.sampler_state import SamplerState

log = logging.getLogger(__name__)


def begin(vocab_size: int, device: torch.device) -> None:
    """Start a thread; what it compiles is not compiled again by a pass that asks for it meanwhile."""
    threading.Thread(target=_compile, args=(vocab_size, device), name="early compiler", daemon=True).start()


def _compile(vocab_size: int, device: torch.device) -> None:
    try:
        with torch.cuda.device(device):
            compile_together(lambda: launch_sampler(vocab_size, device))
    except Exception:
        # Whoever needs it compiles it again, and tells.
        log.warning("compiling the sampler early failed", exc_info=True)


@torch.inference_mode()
def launch_sampler(vocab_size: int, device: torch.device) -> None:
    """Launch what first passes do of logits in one part, as an output matrix of many rows gives them."""
    queue = open_stream(device)
    with queue.current():
        state = DecodeState.create(1, 1, 1, [], 1, device)
        sampler = SamplerState.create(1, vocab_size, device)
        slots = torch.full((1,), -1, dtype=torch.int32, device=device)
        logits = torch.zeros((1, 1, vocab_size), device=device)
        sample(logits, sampler, slots, state.rows[:, LENGTH.value])
    queue.synchronize()
