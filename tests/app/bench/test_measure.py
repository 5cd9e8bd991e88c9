"""`tui-chat bench` on a pretended engine whose speed is known."""

import json
import threading
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from app.bench import measure
from app.bench.machine import commit
from app.bench.measure import Bench
from app.bench.report import render
from app.bench.workload import Prompts, RandomPrompts, Rows, Workload, default_workload, row_counts
from app.cli import bench as command
from app.cli.common import CommandError
from engine import EngineError, Finished, FinishReason, Generation, Request, TextDelta, TickRecord


@dataclass
class PretendedRow:
    generation: Generation
    left_to_read: int
    made: int = 0
    cancelled: bool = False


@dataclass
class PretendedModel:
    """Ticks of `idle_ms`; while prompts are read, `chunk` tokens a tick at `token_ms` each more."""

    idle_ms: float = 2.0
    token_ms: float = 0.05
    chunk: int = 200
    context_length: int = 5000
    fail: bool = False
    name: str = "pretended"
    device: str = "cpu"
    requests: list[Request] = field(default_factory=list)
    rows: list[PretendedRow] = field(default_factory=list)
    ticks: list[TickRecord] = field(default_factory=list)
    tokenizer: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(vocab_size=1000, is_control=lambda token_id: token_id < 3)
    )
    info: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(weight_bytes=44_000_000, quantization="Q4_K_M")
    )

    def __post_init__(self):
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.start()

    def start(self):
        self._thread.start()

    def submit(self, request: Request) -> Generation:
        row = PretendedRow(None, len(request.prompt_ids))  # type: ignore[arg-type]
        row.generation = Generation(
            len(self.requests), request, lambda _id, _what: setattr(row, "cancelled", True)
        )
        self.requests.append(request)
        self.rows.append(row)
        return row.generation

    def close(self):
        self._closed.set()
        self._thread.join()

    def _run(self):
        while not self._closed.is_set():
            self.tick()

    def tick(self):
        rows = list(self.rows)
        read, chunk = 0, self.chunk
        for row in rows:
            took = min(chunk, row.left_to_read)
            row.left_to_read -= took
            chunk -= took
            read += took
        ended_at = self.spend((self.idle_ms + self.token_ms * read) / 1e3)
        self.ticks.append(TickRecord(ended_at, len(rows), read, (), 1.0, 1.0, ()))
        for row in rows:
            if not row.left_to_read:
                self._step(row)

    def spend(self, seconds: float) -> float:
        time.sleep(seconds)
        return time.perf_counter()

    def _step(self, row: PretendedRow):
        row.made += 1
        row.generation.stream.push(TextDelta("x", (5,)))
        reason = FinishReason.CANCELLED if row.cancelled else None
        if row.made == row.generation.request.max_tokens:
            reason = FinishReason.LENGTH
        if self.fail:
            reason = FinishReason.ERROR
        if reason is not None:
            self.rows.remove(row)
            cause = "NaN in the logits" if self.fail else None
            row.generation.stream.push(Finished(reason, cause, 1, 0, row.made, 0.0, 1.0, 1.0))


@dataclass
class ClockedModel(PretendedModel):
    """Has a clock of its own, which goes on while someone waits: no thread, and every time is exact."""

    now: float = 0.0
    slower_ms: float = 0.0
    """How much longer each tick takes than the one before."""

    def start(self):
        pass

    def close(self):
        pass

    def spend(self, seconds: float) -> float:
        self.now += seconds + len(self.ticks) * self.slower_ms / 1e3
        return self.now

    def condition(self) -> "ClockedCondition":
        return ClockedCondition(self)


@dataclass
class ClockedCondition:
    """A `threading.Condition` whose waiting is the model's ticking."""

    model: ClockedModel

    def __enter__(self):
        pass

    def __exit__(self, *_error):
        pass

    def wait_for(self, reached: Callable[[], bool]):
        while not reached():
            assert self.model.rows, "it waits for what no running row brings"
            self.model.tick()

    def notify_all(self):
        pass


def bench_of(model: PretendedModel) -> Bench:
    prompts = RandomPrompts(1000, lambda token_id: token_id < 3)
    return Bench(model, prompts, lambda line: None, model.ticks.copy)


@pytest.fixture
def pretended():
    models = []

    def make(**options) -> tuple[Bench, PretendedModel]:
        models.append(PretendedModel(**options))
        return bench_of(models[-1]), models[-1]

    yield make
    for model in models:
        model.close()


@pytest.fixture
def clocked(monkeypatch):
    def make(**options) -> tuple[Bench, ClockedModel]:
        model = ClockedModel(**options)
        monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: model.now))
        monkeypatch.setattr(measure, "threading", SimpleNamespace(Condition=model.condition))
        return bench_of(model), model

    return make


def test_decode_counts_the_tokens_of_all_rows(clocked):
    bench, model = clocked(idle_ms=4.0)
    figures = bench.decode(Rows(4, 100), new=20, repeat=1)
    assert figures["rows"] == 4 and figures["depth"] == 100
    # 4 rows at 250 ticks a second.
    assert figures["tok_s"] == 1000
    contexts = [request for request in model.requests if request.max_tokens == 1]
    assert [len(request.prompt_ids) for request in contexts] == [100] * 4
    measured = [request for request in model.requests if request.max_tokens != 1]
    assert {request.prompt_ids for request in measured} == {request.prompt_ids for request in contexts}
    assert all(request.ignore_eog for request in model.requests)


def test_prefill_times_the_prompt_and_cuts_it_to_the_context(clocked):
    bench, _ = clocked(context_length=401)
    figures = bench.prefill(2048, repeat=1)
    assert figures["tokens"] == 400
    # Two chunks of 200 tokens: 2 × (2 + 10) ms.
    assert figures["ttft_ms"] == 24
    assert figures["tok_s"] == pytest.approx(400 / figures["ttft_ms"] * 1e3, rel=0.01)


def test_packed_prompts_beat_one_by_one(clocked):
    bench, model = clocked(idle_ms=20.0, token_ms=0.0, chunk=512)
    figures = bench.packed(Prompts(8, 64), repeat=1)
    assert len({request.prompt_ids[:16] for request in model.requests}) == 16
    # One tick of 20 ms for all 512 tokens against eight of 64 tokens.
    assert figures["tok_s"] == 25_600 and figures["one_by_one_tok_s"] == 3200
    assert figures["ratio"] == 8


def test_stall_sees_the_long_ticks(clocked):
    bench, _ = clocked(idle_ms=4.0, token_ms=0.1, chunk=200, slower_ms=0.001)
    figures = bench.stall(Prompts(2, 1000), Workload((Rows(3),), new=30, repeat=2))
    # Ten ticks of 24 ms for each of three rows in each of two repeats, after 30 ticks of 4 ms.
    assert figures["gaps"] == {"idle": 180, "loaded": 60}
    assert 4 <= figures["idle_ms"]["p50"] < figures["idle_ms"]["p99"] < 4.1
    assert 24 <= figures["loaded_ms"]["p50"] < figures["loaded_ms"]["p99"] < 24.1
    assert figures["loaded_ms"]["p99"] == figures["loaded_ms"]["max"]
    assert 240 <= figures["ttft_ms"] < 241
    worst = figures["worst"]
    assert len(worst) == 8
    assert worst[0]["gap_ms"] == figures["loaded_ms"]["max"]
    assert sorted((wait["gap_ms"] for wait in worst), reverse=True) == [wait["gap_ms"] for wait in worst]
    assert all([tick["chunk_tokens"] for tick in wait["ticks"]] == [200] for wait in worst)


def test_rows_that_end_early_are_said(pretended):
    said: list[str] = []
    bench, model = pretended(context_length=40)
    bench = Bench(model, bench.prompts, said.append)
    bench.stall(Prompts(1, 8000), Workload((Rows(2),), new=8, repeat=1))
    assert any("2 of 2 rows reached the context's end" in line for line in said)


def test_rows_that_end_before_the_prompts_come_are_refused(pretended):
    bench, _ = pretended(context_length=20)
    with pytest.raises(EngineError, match="give a smaller --new"):
        bench.stall(Prompts(1, 2000), Workload((Rows(2),), new=30, repeat=1))


def test_a_failing_generation_ends_the_run(pretended):
    bench, _ = pretended(fail=True)
    with pytest.raises(EngineError, match="NaN in the logits"):
        bench.decode(Rows(2), new=4, repeat=1)


def test_json_has_the_promised_keys_and_the_table_shows_them(pretended):
    bench, _ = pretended(idle_ms=1.0, token_ms=0.01)
    stats = SimpleNamespace(
        device="cpu",
        kernels="torch float32",
        kv_dtype="float16",
        slower=("op x",),
        process_bytes=5 * 10**8,
        kv_bytes_total=10**9,
    )
    engine = SimpleNamespace(stats=lambda: SimpleNamespace(of_device={"cpu": stats}.get))
    workload = Workload((Rows(1, 8), Rows(2, 8)), (64,), Prompts(4, 16), 8, Prompts(1, 400), 8, repeat=1)
    figures = command.measure(engine, bench.model, bench, workload) | {
        "start": {"load_s": 1.5, "first_token_s": 2.5}
    }
    figures = json.loads(json.dumps(figures))
    assert figures["model"] == "pretended" and figures["device"] == "cpu" and figures["fallbacks"] == ["op x"]
    assert {"python", "torch"} <= figures["versions"].keys()
    assert figures["machine"]["name"] and len(figures["date"]) == 10 and figures["kv_dtype"] == "float16"
    assert figures["prefill"][0].keys() >= {"tokens", "tok_s"}
    assert [entry["rows"] for entry in figures["decode"]] == [1, 2]
    assert all(entry.keys() == {"rows", "depth", "tok_s"} for entry in figures["decode"])
    stall = figures["stall"]
    assert stall["rows"] == 2 and stall["idle_ms"].keys() == {"p50", "p99"}
    assert stall["loaded_ms"].keys() == {"p50", "p99", "max"} and stall["ttft_ms"] > 0
    text = render(figures)
    assert "slower than it could be: op x" in text and "KV float16" in text
    assert "loaded in 1.5 s, first token after 2.5 s" in text
    assert f"{stall['loaded_ms']['max']:.1f}" in text and "process 500 MB" in text


@pytest.mark.parametrize(
    ("workload", "option"),
    [
        (Workload(stall=Prompts(1, 100)), "--stall: 101"),
        (Workload(packed=Prompts(8, 100)), "--packed: 101"),
        (Workload((Rows(1), Rows(2, 99))), "--depth: 101"),
        (Workload(stall_depth=99), "--depth: 101"),
    ],
)
def test_what_the_context_cannot_hold_is_refused(workload: Workload, option: str):
    with pytest.raises(CommandError, match=f"{option} tokens are needed at once.*holds 100"):
        command.check_fits(workload, 100)


def test_a_gpu_is_measured_with_more_rows_and_longer_prompts():
    assert default_workload("cpu", 1 << 16) == Workload()
    usual = default_workload("cuda", 1 << 16)
    assert usual.rows[0] == Rows(1, 0) and Rows(32, 512) in usual.rows and usual.rows[-1] == Rows(1, 16_384)
    assert usual.prefill == (512, 2048, 8192)
    small = default_workload("cuda:1", 2048)
    assert small.rows[-1] == Rows(32, 512) and small.prefill == (512,)
    command.check_fits(small, 2048)


def test_rows_may_be_written_with_their_depth():
    assert row_counts("1,8@512, 2@0") == ((1, None), (8, 512), (2, 0))
    assert row_counts("none") == ()
    with pytest.raises(ArgumentTypeError, match="'x' is not a whole number"):
        row_counts("1@x")
    parser = ArgumentParser()
    command.add_arguments(parser)

    def rows(*options: str) -> tuple[Rows, ...]:
        return command._workload(parser.parse_args(["-m", "x", *options]), "cpu", 9999).rows

    assert rows() == Workload().rows
    assert rows("--depth", "7") == tuple(Rows(count, 7) for count in (1, 2, 4, 8))
    assert rows("--depth", "7", "--rows", "1,2@3") == (Rows(1, 7), Rows(2, 3))
    assert rows("--rows", "none") == ()


def test_rows_that_never_run_together_are_an_error_in_words(pretended):
    bench, _ = pretended(context_length=3)
    with pytest.raises(EngineError, match="2 rows at depth 2: the rows never ran at the same time"):
        bench.decode(Rows(2, 2), new=4, repeat=1)


def test_parts_left_out_are_null_or_empty(pretended):
    bench, _ = pretended()
    stats = SimpleNamespace(
        device="cpu", kernels="", kv_dtype="", slower=(), process_bytes=1, kv_bytes_total=1
    )
    engine = SimpleNamespace(stats=lambda: SimpleNamespace(of_device={"cpu": stats}.get))
    figures = command.measure(engine, bench.model, bench, Workload((), (), None, 8, repeat=1))
    assert figures["prefill"] == [] and figures["decode"] == []
    assert figures["packed"] is None and figures["stall"] is None
    assert "pretended on" in render(figures)


def test_the_commit_may_be_named_from_outside(monkeypatch):
    monkeypatch.setenv("TUI_CHAT_COMMIT", "abc123")
    assert commit() == "abc123"
