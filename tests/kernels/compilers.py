"""Processes that compile every kernel launch."""

import json
import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor

SHARES = 2


def without_interpreter() -> dict[str, str]:
    """The environment of a process that compiles.

    The interpreter, which the other tests run under, is chosen when a kernel's module is imported.
    """
    return {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}


class Compilers:
    """`tests.perf.check_sass` for all launches, at a low priority: other tests run meanwhile."""

    def __init__(self) -> None:
        self._running: list[tuple[subprocess.Popen[str], Future[tuple[str, str]]]] = []
        self._readers = ThreadPoolExecutor(SHARES, "compilers")
        environment = without_interpreter()
        command = ["nice", "-n", "5", sys.executable, "-m", "tests.perf.check_sass", "--spread", "--json"]
        for share in range(SHARES):
            process = subprocess.Popen(
                [*command, "--shares", str(SHARES), "--share", str(share)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            self._running.append((process, self._readers.submit(process.communicate)))

    def entries(self) -> list[dict]:
        """Wait for the end; one entry for each kernel as `check_sass` describes it."""
        found = []
        for process, read in self._running:
            output, errors = read.result()
            assert process.returncode == 0, errors[-2000:]
            found += [json.loads(line) for line in output.splitlines()]
        return found

    def close(self) -> None:
        """End what still runs."""
        for process, _ in self._running:
            process.kill()
        self._readers.shutdown()
