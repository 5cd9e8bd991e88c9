"""Simulate random workloads: `python -m tests.perf.fuzz_scheduler --workloads 10000 --seed 0`."""

import argparse
import time
from random import Random

from tests.support.scheduler_fuzz import SchedulerFuzzer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    started = time.perf_counter()
    ticks = preemptions = ended = refused = pauses = offloads = reloads = drafted = accepted = outgrown = (
        asides
    ) = 0
    for i in range(options.workloads):
        seed = options.seed + i
        fuzzer = SchedulerFuzzer(Random(seed), faults=seed % 2 == 0)
        try:
            fuzzer.run()
        except Exception as error:
            raise SystemExit(f"workload with seed {seed} failed: {error!r}") from error
        ticks += fuzzer.ticks
        preemptions += fuzzer.scheduler.preemptions
        ended += len(fuzzer.ended)
        refused += fuzzer.refused
        pauses += fuzzer.pauses
        offloads += fuzzer.offloads
        reloads += fuzzer.reloads
        drafted += fuzzer.drafted
        accepted += fuzzer.accepted
        outgrown += fuzzer.outgrown
        asides += fuzzer.asides
    print(
        f"{options.workloads} workloads in {time.perf_counter() - started:.1f} s: {ticks} ticks, "
        f"{ended} sequences ended once each, {refused} refused, {outgrown} outgrew the KV budget, "
        f"{preemptions} preemptions, {pauses} pauses, {offloads} blocks to host memory, {reloads} back, "
        f"{accepted} of {drafted} drafts accepted, {asides} times a model was put aside"
    )


if __name__ == "__main__":
    main()
