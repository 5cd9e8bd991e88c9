"""Fuzz the block managers: `python -m tests.perf.fuzz_blocks --operations 1000000 --seed 0`."""

import argparse
import time
from random import Random

from tests.support.block_fuzz import BlockFuzzer

FULL_CHECK_EVERY = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    fuzzer = BlockFuzzer(Random(options.seed))
    started = time.process_time()
    for i in range(options.operations):
        fuzzer.step()
        if i % FULL_CHECK_EVERY == 0:
            fuzzer.check()
    fuzzer.check()
    seconds = time.process_time() - started
    print(
        f"{options.operations} operations in {seconds:.1f} s of one core; {fuzzer.hits} blocks hit, "
        f"{fuzzer.refusals} refused, {len(fuzzer.rows)} tables live"
    )


if __name__ == "__main__":
    main()
