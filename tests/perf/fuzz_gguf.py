"""Read many damaged GGUF files under a memory limit: `python -m tests.perf.fuzz_gguf --count N`."""

import argparse
import resource
import signal
import tempfile
import time
from pathlib import Path

from tests.support.gguf_fuzz import fuzz

EXTRA_BYTES = 256 << 20
SECONDS_PER_THOUSAND = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # Everything that is imported lazily is there before memory is limited.
        fuzz(Path(folder), 200, options.seed + 1)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + EXTRA_BYTES, resource.RLIM_INFINITY))
        signal.alarm(60 + options.count * SECONDS_PER_THOUSAND // 1000)
        started = time.perf_counter()
        accepted = fuzz(Path(folder), options.count, options.seed)
    seconds = time.perf_counter() - started
    print(
        f"{options.count} damaged files in {seconds:.1f} s: {accepted} accepted, the others refused; "
        f"at most {EXTRA_BYTES >> 20} MiB of extra memory"
    )


if __name__ == "__main__":
    main()
