"""Choosing the tokens of a pass after it, where rows of the device do not know all that decides.

A pass whose rows are held to something, or ask for log-probabilities, is captured up to its logits. While
the device computes them, the host learns the last tokens and what may follow, and sends it beside the pass;
then it launches the sampler by itself. So a device waits for a mask only where that takes longer than the
pass.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.device.stream import DeviceStream, Mark
from engine.runner.cuda_graph import CUDAGraphPass, PassSize
from engine.runner.in_flight import ChosenApart, sampled_rows
from engine.runner.logits.logprobs import logprobs_of
from engine.runner.sampler import wait_for_masks
from engine.scheduler.plan import ModelBatch
from engine.scheduler.sequence import Sequence
from kernels.sampling.sampler import sample
from kernels.state.decode_state import LENGTH, DecodeState, PassBuffers, advance
from kernels.state.sampler_state import SamplerState

_WORD = 32
_ALIGNED = 4


def choose(logits: Tensor, state: DecodeState, sampler: SamplerState, slots: Tensor) -> Tensor:
    """The end of every pass: sample, and take the rows one token further; returns the ids."""
    ids, finite = sample(logits, sampler, slots, state.rows[:, LENGTH.value])
    advance(state, slots, ids, finite, sampler)
    return ids


def asks(sequence: Sequence) -> bool:
    """Whether it asks for log-probabilities."""
    return sequence.request.top_logprobs is not None


class ApartPass(CUDAGraphPass):
    """A pass up to its logits, and the choice of its tokens, which is captured by itself.

    What a choice reads is written anew for the next one, so its report must have been read by then.
    """

    def __init__(
        self, state: DecodeState, size: PassSize, stream: DeviceStream, sampler: SamplerState
    ) -> None:
        super().__init__(state, size, stream)
        self._state, self._sampler = state, sampler
        words = -(-sampler.bias.shape[1] // _WORD)
        # Each part begins where kernels' tensors do.
        rows = -(-size.num_sampled // _ALIGNED) * _ALIGNED
        host = stream.host_tensor((2 + words) * rows)
        self._inputs = host, torch.empty_like(host, device=sampler.bias.device)
        (self._to_sample, self._held, self._words), mirrors = (
            [*flat[: 2 * rows].view(2, rows)[:, : size.num_sampled], flat[2 * rows :].view(rows, words)]
            for flat in reversed(self._inputs)
        )
        self._host_slots, self._host_held, self._host_words = (mirror.numpy() for mirror in mirrors)
        self._chosen: Tensor | None = None
        """Ids of the last choice."""
        self._choose_again: Callable[[], None] | None = None

    def compute(self, batch: ModelBatch, compute: Callable[[PassBuffers], Tensor]) -> "Computed":
        """Queue the pass up to its logits, as `launch`."""
        begun = self._stream.mark()
        self.launch(compute)
        return Computed(self, batch, begun, self._stream.mark())

    def choose(self, rows: list[tuple[int, Sequence]], left_out: list[int], begun: Mark) -> Tensor | None:
        """Choose the tokens of all rows but those left out; returns what `logprobs_of` tells of who asks.

        rows: with their sequences, without those of draft tokens. begun: behind all that was queued before
        the pass. What is returned is on its way to the host.
        """
        self._send(rows, left_out, begun)
        ids = self._choose()
        places = [row for row, one in rows if asks(one)]
        return self._logprobs(ids, places) if places else None

    def _send(self, rows: list[tuple[int, Sequence]], left_out: list[int], begun: Mark) -> None:
        """Tell the device which rows are chosen, and what may come next in those that are held to something.

        Beside the pass: rows' parameters were sent before it, and it reads nothing of what is sent here.
        """
        slots, held, words = self._host_slots, self._host_held, self._host_words
        slots[:] = self.sampled_slots
        slots[left_out] = held[:] = -1
        biases = {}
        for row, one in rows:
            if one.matcher is not None:
                held[row] = slot = int(slots[row])
                words[row] = one.matcher.words
                biases[slot] = one.request.sampling.logit_bias
        source, target = self._inputs
        with self._stream.beside(begun):
            target.copy_(source, non_blocking=True)
            self._sampler.set_masks(self._held, self._words[: len(held)])
            for slot, bias in biases.items():
                if bias:
                    self._sampler.add_bias(slot, bias)

    def _choose(self) -> Tensor:
        if self._choose_again is None and self.captured and self._chosen is not None:
            self._choose_again = self._stream.capture(self._compute_choice)
        (self._choose_again or self._compute_choice)()
        assert self._chosen is not None
        return self._chosen

    def _compute_choice(self) -> None:
        assert self.logits is not None
        self._chosen = choose(self.logits, self._state, self._sampler, self._to_sample)

    def _logprobs(self, ids: Tensor, places: list[int]) -> Tensor:
        """What `logprobs_of` tells, on its way to the host."""
        assert self.logits is not None
        index = torch.tensor(places).to(ids.device, non_blocking=True)
        told = logprobs_of(self.logits[:, index].sum(dim=0), ids[index])
        return self._stream.host_tensor(*told.shape).copy_(told, non_blocking=True)


@dataclass(frozen=True, slots=True)
class Computed:
    """A pass that was launched up to its logits."""

    one: ApartPass
    batch: ModelBatch
    begun: Mark
    """Behind all that was queued before the pass."""
    done: Mark
    """Behind the pass."""

    def choose(self) -> ChosenApart:
        """Choose its tokens; rows without a mask in time are computed again in a later pass."""
        placed = sampled_rows(self.batch, self.one.size)
        held = wait_for_masks([one for _, one, _ in placed], lambda: not self.done.query())
        chosen = [(row, one) for row, one, _ in placed if one.sequence_id not in held]
        left_out = [row for row, one, _ in placed if one.sequence_id in held]
        logprobs = self.one.choose(chosen, left_out, self.begun)
        return ChosenApart(placed, held, [one for _, one in chosen if asks(one)], logprobs)
