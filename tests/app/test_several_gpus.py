"""What the app says where there are several GPUs; where there is one, it names none."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from app.models.listed.listing import ModelFile
from app.models.listed.order import Known
from app.screens.chat.answering.context_actions import ContextActions
from app.screens.dialogs.models.model_card import card
from app.screens.engine_view.figures import figure_rows, pool_title
from app.serve.metrics import Metrics
from app.widgets import contents
from app.widgets.live_panel import total_rows
from engine import DeviceUse, EngineStats, KVPool, ModelStats

GB = 1_000_000_000


def stats(device: str, **more) -> EngineStats:
    figures = {"kv_bytes_total": 60 * GB, "kv_bytes_used": 5 * GB, "kv_bytes_cached": 0} | more
    zeros = dict.fromkeys(("blocks_used", "blocks_cached", "rows", "prefill_tokens", "tick_ms", "ticks"), 0)
    rest = dict.fromkeys(("queue_length", "decode_tok_s", "prefill_tok_s", "process_bytes", "preemptions"), 0)
    return EngineStats(
        **zeros | rest | figures, device=device, kernels="triton", kv_dtype="float16", block_size=64
    )


MODEL = ModelStats("m", "/models/m.gguf", 1, 1, 8192, device="cuda:1")
FIRST = stats("cuda:0", decode_tok_s=100, rows=2)
SECOND = replace(stats("cuda:1", kv_bytes_used=50 * GB), models=(MODEL,))
BOTH = replace(stats("cuda:0, cuda:1", kv_bytes_total=120 * GB), models=(MODEL,), parts=(FIRST, SECOND))


def text(rows) -> str:
    return "\n".join("".join(span[0] for span in row) for row in rows)


def test_the_panel_has_a_line_for_each():
    drawn = text(total_rows(BOTH, 44))
    assert " GPU 0               100 tok/s · 55 GB free \n" in drawn
    assert " GPU 1                           10 GB free" in drawn
    assert "GPU 0" not in text(total_rows(FIRST, 44))


def test_the_engine_view_lists_memory_and_power_beside_each_other():
    parts = DeviceUse(12 * GB, 80 * GB, 312.0, "cuda:0"), DeviceUse(60 * GB, 80 * GB, None, "cuda:1")
    use = DeviceUse(72 * GB, 160 * GB, 312.0, parts=parts)
    first, second = text(figure_rows(BOTH, use, 120, 2)).split("\n")
    assert "GPU 0 12 GB of 80 GB, 312 W · GPU 1 60 GB of 80 GB" in first
    assert "GPU 0 context 5.0 GB of 60 GB, 100/s, tick 0 ms · GPU 1 context 50 GB of 60 GB" in second
    alone = text(figure_rows(FIRST, DeviceUse(12 * GB, 80 * GB, 312.0), 400, 2))
    assert "GPU 12 GB of 80 GB · 312 W" in alone and "GPU 0" not in alone


def test_a_pool_says_whose_memory_it_is():
    pool = KVPool("m", 0, 16, 1, b"", (), 0, 0)
    assert pool_title(pool, 1, 2) == "m (1 of 2)"
    assert pool_title(replace(pool, device="cuda:1"), 1, 2) == "m on GPU 1 (1 of 2)"


def test_the_models_own_device_is_known_by_its_file():
    assert BOTH.device_of(Path("/models/m.gguf")) == "cuda:1"
    assert BOTH.device_of(Path("/models/other.gguf")) == "cuda:0, cuda:1"
    assert BOTH.of_device("cuda:1") is SECOND and FIRST.of_device("cuda:0") is FIRST


def test_a_models_card_says_on_which_it_is():
    model = ModelFile(Path("/models/m.gguf"), "m", GB, "Q8_0", 8192)
    assert "Open on    GPU 1" in card(model, Known(devices={model.path: "cuda:1"}), 60, now=1.0).plain
    assert "Open on" not in card(model, Known(), 60, now=1.0).plain


def test_a_chats_memory_is_that_of_its_models_gpu():
    local = SimpleNamespace(path=Path("/models/m.gguf"))
    session = SimpleNamespace(model=SimpleNamespace(local=local))
    assert contents._context_memory(session, BOTH) == 50 / 60
    assert contents._context_memory(SimpleNamespace(model=None), BOTH) == 5 / 120


def test_only_models_of_the_same_gpu_can_give_a_chat_their_memory():
    def tab(name: str, busy: bool = False):
        path = Path(f"/models/{name}.gguf")
        return SimpleNamespace(busy=busy, model=SimpleNamespace(path=path, local=SimpleNamespace(path=path)))

    own, beside, elsewhere, writing = tab("m"), tab("beside"), tab("elsewhere"), tab("writing", busy=True)
    models = tuple(
        replace(MODEL, path=str(one.model.path), device=device)
        for one, device in ((own, "cuda:1"), (beside, "cuda:1"), (elsewhere, "cuda:0"), (writing, "cuda:1"))
    )
    screen = SimpleNamespace(
        context=SimpleNamespace(engine=SimpleNamespace(stats=lambda: replace(BOTH, models=models))),
        tabs=SimpleNamespace(sessions=[own, beside, elsewhere, writing]),
    )
    assert ContextActions._idle_models(screen, own) == [beside.model]


def test_programs_that_ask_for_figures_get_each_ones():
    lines = Metrics(lambda: BOTH).text().decode().splitlines()
    assert 'tui_chat:decode_tokens_per_second{device="cuda:0"} 100.0' in lines
    assert 'tui_chat:kv_bytes{device="cuda:1",kind="used"} 5e+10' in lines
    assert 'vllm:num_preemptions_total{device="cuda:1"} 0.0' in lines
    assert 'tui_chat:kv_bytes{device="",kind="disk"} 0.0' in lines
    alone = Metrics(lambda: FIRST).text().decode().splitlines()
    assert "tui_chat:decode_tokens_per_second 100.0" in alone
    assert 'tui_chat:kv_bytes{kind="used"} 5e+09' in alone
