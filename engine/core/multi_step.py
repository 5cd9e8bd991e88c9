"""Several ticks of the same decode rows in flight, so that the device never waits for the host.

A tick of a few rows takes a GPU 2 ms; what the host does between two ticks, beside a UI that draws,
can take 20. So the rows of one plan are launched again and again before their ids are read: each
tick's sampled ids are the next one's input on the device. A row that ends does so when its id is
read; what later ticks computed for it is dropped, and its blocks are freed once nothing in flight
writes to them. Whatever needs another plan (a new request, a cancellation, a row's end) waits for
the ticks that are launched, and no more are.
"""

import time
from collections.abc import Callable

from engine.runner.eager_runner import Runner
from engine.runner.sampler import Sampled
from engine.scheduler.scheduler import ModelBatch, Scheduler, TickPlan

Settle = Callable[[TickPlan, Sampled, float, bool], None]
"""(plan, what one tick gave, its seconds, whether more follow): commit and deliver."""

StopsQueue = Callable[[int], bool]
"""(ticks launched and not collected): whether no more should be launched."""

Recover = Callable[[ModelBatch, Exception], Sampled]
"""Runs one tick of a batch again, whose ticks in flight have failed."""


def rows_alone(plan: TickPlan) -> ModelBatch | None:
    """The plan's batch if it is decode rows of one model and nothing else."""
    if len(plan.batches) != 1 or plan.moves:
        return None
    batch = plan.batches[0]
    return None if batch.prefill or batch.copies or batch.drafts else batch


def run_ahead(
    plan: TickPlan,
    runner: Runner,
    scheduler: Scheduler,
    settle: Settle,
    interrupted: Callable[[], bool],
    recover: Recover,
    stops_queue: StopsQueue = lambda _ahead: False,
) -> None:
    """Run a plan of decode rows until a row ends or `interrupted` says that other work waits.

    After each tick `stops_queue` is asked whether another plan is wanted for what the rows say now.
    When a tick fails, those in flight are dropped and `recover` runs the oldest of them again.
    """
    batch = plan.batches[0]
    launched, extending = 0, True
    read_at = time.perf_counter()
    while launched or extending:
        try:
            while extending and launched <= runner.max_ahead:
                if not launched:
                    runner.begin(batch)
                runner.launch(batch)
                launched += 1
                extending = not interrupted() and scheduler.extend(plan, launched)
            sampled = runner.collect()
        except Exception as error:
            settle(plan, recover(batch, error), 0.0, False)
            return
        launched -= 1
        now = time.perf_counter()
        settle(plan, sampled, now - read_at, launched > 0)
        read_at = now
        extending = extending and not interrupted() and not stops_queue(launched)
        extending = extending and scheduler.extend(plan, launched)
