"""Malformed bodies at every path, many of them, on the engine itself: it goes on, and nothing stays.

python -m tests.perf.fuzz_serve [COUNT]
"""

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.serve.program import ServeOptions, make_application
from app.serve.requests.served import Served, ServedModels
from engine import Engine, SamplingParams
from tests.app.serve.scripted import said
from tests.app.serve.test_limits import BODIES, POSTS
from tests.support.small_model import make_small

START = said(max_tokens=3, input="a", prompt="a", content="a", tokens=[97])


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    statuses: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as folder, Engine("cpu", debug=True) as engine:
        model = engine.load(make_small(Path(folder) / "small.gguf"))
        served = Served(model, "scripted", frozenset(), SamplingParams(), max_tokens=8)
        application = make_application(
            ServedModels(lambda: [served]), engine.stats, ServeOptions(), lambda _row: None
        )

        async def post(path: str, content: bytes) -> int:
            transport = httpx.ASGITransport(application)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return (await client.post(path, content=content)).status_code

        @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(path=st.sampled_from(POSTS), wild=BODIES, cut=st.integers(0, 3000))
        def check(path: str, wild: dict[str, object], cut: int) -> None:
            content = json.dumps({**START, **wild}).encode()[: cut or None]
            status = asyncio.run(post(path, content))
            statuses[status] = statuses.get(status, 0) + 1
            assert status in (200, 400, 404), (status, path, content)

        check()
        assert asyncio.run(post("/v1/chat/completions", json.dumps(START).encode())) == 200
        while (stats := engine.stats()).sequences or stats.blocks_used:
            time.sleep(0.01)
    print(f"{sum(statuses.values())} bodies: {statuses}; no sequence and no block stays")


if __name__ == "__main__":
    main()
