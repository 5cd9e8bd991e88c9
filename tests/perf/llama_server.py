"""A client for llama.cpp's llama-server that measures the gaps of running streams, as our bench does."""

import http.client
import json
import random
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from app.bench.statistics import Arrival, gaps_inside, gaps_touching, median, percentile

HOST = "127.0.0.1"


class Server:
    """llama-server on a free port, as a context manager."""

    def __init__(
        self, binary: Path, model: Path, threads: int, slots: int, context: int, port: int = 18080
    ) -> None:
        self.port = port
        command = [binary, "-m", model, "-t", threads, "-tb", threads, "-np", slots, "-c", context * slots]
        command += ["--host", HOST, "--port", port, "--no-warmup"]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen([str(part) for part in command], stdout=quiet, stderr=quiet)

    def __enter__(self) -> "Server":
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"llama-server ended at once with code {self._process.returncode}")
            try:
                connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.2)
        raise RuntimeError("llama-server did not become ready within 120 s")

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()
        self._process.wait()


class Stream:
    """One streamed completion of random token ids and when its pieces arrived."""

    def __init__(self, port: int, prompt: list[int], tokens: int) -> None:
        self.arrivals: list[Arrival] = []
        self.submitted = time.perf_counter()
        self._stop = False
        self._port = port
        self._body = {
            "prompt": prompt, "n_predict": tokens, "stream": True, "temperature": 0.0, "ignore_eos": True,
            "cache_prompt": False, "return_tokens": True,
        }  # fmt: skip
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait_tokens(self, count: int) -> None:
        """Block until that many pieces arrived or the stream ended."""
        while len(self.arrivals) < count and self._thread.is_alive():
            with self._changed:
                self._changed.wait(0.01)

    def stop(self) -> None:
        """Close the stream."""
        self._stop = True
        self._thread.join()

    def _run(self) -> None:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=600)
        connection.request(
            "POST", "/completion", json.dumps(self._body), {"Content-Type": "application/json"}
        )
        for line in connection.getresponse():
            now = time.perf_counter()
            if line.startswith(b"data: ") and not json.loads(line[6:]).get("stop"):
                self.arrivals.append(Arrival(now, 1))
                with self._changed:
                    self._changed.notify_all()
            if self._stop:
                break
        connection.close()


def measure_stall(
    server: Server, rows: int, long: int, vocab: int, context: int, new: int, repeat: int
) -> dict[str, Any]:
    """Gaps of `rows` streams while a prompt of `long` random tokens is read; figures in ms."""
    rng = random.Random(0)
    idle: list[float] = []
    loaded: list[float] = []
    first: list[float] = []
    for _ in range(repeat):
        running = [Stream(server.port, [rng.randrange(300, vocab)], context - 8) for _ in range(rows)]
        prompt = [rng.randrange(300, vocab) for _ in range(long)]
        for stream in running:
            stream.wait_tokens(1)
        quiet_from = max(stream.arrivals[0].time for stream in running)
        wanted = [len(stream.arrivals) + new for stream in running]
        for stream, count in zip(running, wanted, strict=True):
            stream.wait_tokens(count)
        loaded_from = time.perf_counter()
        reader = Stream(server.port, prompt, 1)
        reader.wait_tokens(1)
        loaded_to = reader.arrivals[0].time if reader.arrivals else time.perf_counter()
        for stream in running:
            stream.wait_tokens(len(stream.arrivals) + 1)
        idle += [gap for stream in running for gap in gaps_inside(stream.arrivals, quiet_from, loaded_from)]
        loaded += [
            gap for stream in running for gap in gaps_touching(stream.arrivals, loaded_from, loaded_to)
        ]
        first.append(loaded_to - loaded_from)
        for stream in [*running, reader]:
            stream.stop()
    return {
        "rows": rows,
        "idle_ms": {"p50": percentile(idle, 50) * 1e3, "p99": percentile(idle, 99) * 1e3},
        "loaded_ms": {
            "p50": percentile(loaded, 50) * 1e3,
            "p99": percentile(loaded, 99) * 1e3,
            "max": max(loaded) * 1e3,
        },
        "ttft_ms": median(first) * 1e3,
    }
