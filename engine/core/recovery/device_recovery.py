"""Going on after the device has failed: models are loaded again, answers continue from their token ids.

What a device held is lost with it, weights and KV alike. Files, token ids, seeds and positions are the
host's, and the text that follows depends on nothing else. So the engine loads every model again under
its old key, queues every sequence with prompt and answer as its tokens, and no handle changes.

A CUDA error that poisons the context (an illegal access, an assertion in a kernel, a launch failure)
cannot be undone inside a process: every later call fails, and only a new process gets a new context.
Then the device fails the trial here, every answer ends with a cause that says to restart the program,
or which other devices can go on with its models, and the engine refuses requests with the same words.
Conversations are the app's and stay. What can be
brought back in the process is a device that answers the trial: one that was reset or replaced behind
the driver's back, or a failure of which the process was told but that left its context whole.
"""

import time
from collections import deque
from collections.abc import Callable, Container

import torch

from engine.api.errors import EngineError, RequestError
from engine.api.request import FinishReason
from engine.api.stats import SequenceState
from engine.core.output_processor import OutputProcessor
from engine.device.faults import check_device, describe
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.sequence import Sequence, WaitCause

_MOST = 3
_WITHIN_S = 600.0
_AGAIN = "restart the program, and if it happens again choose another model or device"


class DeviceTrial:
    """Whether it is worth loading models again."""

    def __init__(self, device: torch.device, elsewhere: Callable[[], str] = str) -> None:
        """elsewhere: names devices that could take over the models, "" for none."""
        self._device, self._elsewhere = device, elsewhere
        self._failed_at: deque[float] = deque(maxlen=_MOST)

    def check(self) -> None:
        """Raise `EngineError` for a device that computes nothing, or that fails again and again."""
        now = time.monotonic()
        if len(self._failed_at) == _MOST and now - self._failed_at[0] < _WITHIN_S:
            raise EngineError(
                f"it has failed {_MOST + 1} times within {_WITHIN_S / 60:.0f} minutes"
                + ("" if self._elsewhere() else f"; {_AGAIN}")
            )
        self._failed_at.append(now)
        try:
            check_device(self._device)
        except Exception as error:
            raise EngineError(
                f"it computes nothing more for this process ({describe(error)})"
                + ("" if self._elsewhere() else "; restart the program: conversations are kept")
            ) from None

    def given_up(self, cause: str, error: Exception) -> str:
        """What everybody is told: the device failed with `cause`, and `error` kept it from coming back."""
        others = self._elsewhere()
        which = str(self._device) if others else "the device"
        goes_on = f"; its models can go on on {others}" if others else ""
        return f"{which} failed ({cause}) and the engine could not go on: {error}{goes_on}"


def rewind(output: OutputProcessor) -> None:
    """Make the answer's sequence one that waits and knows what its consumer has got, nothing else."""
    sequence = output.sequence
    del sequence.token_ids[sequence.prompt_len + output.delivered :]
    sequence.follow()
    sequence.block_table, sequence.windows = [], []
    sequence.reloads = []
    sequence.num_computed = 0
    sequence.preemptions += 1
    _wait(sequence)


def queue_again(
    outputs: dict[int, OutputProcessor], scheduler: Scheduler, aside: Container[int] = ()
) -> None:
    """Submit rewound sequences in their old order; ends those that had ended, or whose model is gone.

    Those whose models are aside go on waiting for them.
    """
    for output in sorted(outputs.values(), key=lambda item: item.sequence.rank):
        sequence, error = output.sequence, output.sequence.error
        if sequence.model in aside:
            continue
        if not sequence.finished:
            try:
                scheduler.submit(sequence)
                _wait(sequence)
                continue
            except RequestError as refusal:
                error = str(refusal)
        del outputs[sequence.sequence_id]
        output.finish(sequence.finish_reason or FinishReason.ERROR, time.monotonic(), error)


def _wait(sequence: Sequence) -> None:
    sequence.state = SequenceState.PAUSED
    sequence.wait_cause = WaitCause.REQUEST if sequence.user_paused else WaitCause.DEVICE
