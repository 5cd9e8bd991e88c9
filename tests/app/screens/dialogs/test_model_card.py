"""The card of a model, and what is done with the models that are there: mark, sort, delete, show."""

import json
from pathlib import Path

import pytest
from textual.widgets import OptionList

from app.models.fit.speeds import Speed
from app.models.found import FoundModel
from app.models.listed import listing
from app.models.listed.listing import ModelFile, find_models
from app.models.listed.notes import ModelNotes
from app.models.listed.order import Known, Order
from app.screens.dialogs.confirm import ConfirmScreen
from app.screens.dialogs.models import model_keeper
from app.screens.dialogs.models.model_card import card
from app.screens.dialogs.models.model_picker import ModelPicker
from app.settings.paths import locations
from app.terminal.clipboard import CopyResult
from app.widgets.live_panel import LivePanel
from engine import ModelSummary
from tests.app.driving import plain, ready, wait_until
from tests.app.models.stores import Stores

SIZES = [(60, 15), (80, 24), (90, 50), (120, 40), (200, 60)]
PATH = Path("/m/tern.gguf")
SUMMARY = ModelSummary(
    PATH, "Tern 4B", "qwen3", 2_500_000_000, "Q4_K_M", 40960, 4_020_000_000, 1, True, None, 2,
    {"Q4_K": 1_700_000_000, "Q6_K": 800_000_000, "F32": 1000}, "apache-2.0", "gpt2 (qwen2)", True,
    {"temperature": 0.6, "top_k": 20}, ("min_p: 7.0 is not between 0.0 and 1.0",),
)  # fmt: skip
TERN = ModelFile(
    PATH, "tern", 2_500_000_000, "Q4_K_M", 40960, summary=SUMMARY,
    found=FoundModel(SUMMARY, "ollama", "Ollama", ("tern:4b",), {"parameters": {"top_p": 0.9}}),
    kernels=(("Q4_K, Q6_K", "some kernel"), ("attention", "torch")), modified=0.0,
)  # fmt: skip


def text_of(model, width=60, known=None, now=5000.0):
    return card(model, known or Known(), width, now=now).plain


def test_a_card_says_all_that_is_known():
    speeds = {PATH: Speed(24.0, 310.0, 5, "cpu", 4900.0)}
    lines = text_of(TERN, 200, Known(speeds=speeds)).split("\n")
    assert lines == [
        "tern",
        "Family     qwen3, 4.0 B parameters",
        "Weights    2.5 GB in 2 files, Q4_K_M: Q4_K 68%, Q6_K 32%",
        "Context    40,960 tokens",
        "Speed      writes 24 tok/s, reads 310; its last 5 answers on cpu, 1 min ago",
        "Sampling   temperature 0.6, top k 20, from the file; top p 0.9, from Ollama",
        "           not used: min_p: 7.0 is not between 0.0 and 1.0",
        "Kernels    Q4_K, Q6_K: some kernel",
        "           attention: torch",
        "Template   in the file",
        "Tokenizer  gpt2 (qwen2)",
        "Licence    apache-2.0",
        "From       Ollama, as tern:4b",
        "File       /m/tern.gguf",
    ]


def test_a_card_says_what_torch_computes_of_a_model_that_is_open():
    known = Known(by_torch={PATH: ("torch computes norms (2 ms a token): why",)})
    lines = text_of(TERN, 200, known).split("\n")
    at = lines.index("           torch computes norms (2 ms a token): why")
    assert lines[at - 1] == "           attention: torch"


def test_a_card_fits_its_width_and_steers_no_terminal():
    nasty = ModelFile(Path("/m/e\x1b[2J.gguf"), "e\x1b[2J[red]", 1, problem="bad \x9b1m " + "word " * 40)
    for model in (TERN, nasty):
        text = text_of(model, 40)
        assert max(map(len, text.split("\n"))) <= 40
        assert all(line.isprintable() for line in text.split("\n"))


def shown(widget):
    return str(widget.content)


async def picker_of(pilot, rows):
    await pilot.press("ctrl+o")
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, ModelPicker))
    picker = pilot.app.screen
    await wait_until(pilot, lambda: picker.query_one("#models").option_count == rows)
    return picker


@pytest.fixture
def stores(home):
    return Stores(home)


@pytest.fixture
def app(make_app, stores, monkeypatch):
    # What fits is told elsewhere; asking the device for it takes seconds.
    monkeypatch.setattr(listing, "memory_of", lambda search: None)
    stores.model("data/models/gull.gguf")
    stores.model("data/models/tern.gguf")
    stores.ollama("registry.ollama.ai/library/puffin/1b", model=stores.model("x.gguf").read_bytes())
    return make_app(find_models=find_models)


def titles(picker):
    return [row.title for row in picker._shown]


def card_text(picker):
    return shown(picker.query_one("#card"))


async def go_to(pilot, picker, title):
    options = picker.query_one(OptionList)
    while picker._row.title != title:
        at = options.highlighted
        await pilot.press("down")
        assert options.highlighted != at
    await wait_until(pilot, lambda: card_text(picker).startswith(title))


@pytest.mark.parametrize("size", SIZES)
async def test_the_card_and_every_key_are_there_at_every_size(app, size):
    async with app.run_test(size=size) as pilot:
        await ready(pilot)
        picker = await picker_of(pilot, 4)
        await go_to(pilot, picker, "gull")
        pane, foot = picker.query_one("#card_pane"), picker.query_one("#foot")
        if picker.has_class("-instead"):
            assert "Tab card" in shown(foot) and not pane.display
            await pilot.press("tab")
            await wait_until(pilot, lambda: "Tab list" in shown(foot))
        await wait_until(pilot, lambda: "Family     llama" in card_text(picker))
        assert pane.region.height >= 4 and pane.region.width >= 40
        drawn = picker.query_one("#card")
        await wait_until(pilot, lambda: drawn.size.height == len(card_text(picker).split("\n")))
        screen = picker.region
        for key in ("Ctrl+S", "Ctrl+F", "Ctrl+R", "Del", "Esc", "Enter"):
            assert key in shown(foot)
        assert foot.region.bottom <= screen.bottom and foot.region.height >= 1
        rows = -(-len(shown(foot)) // foot.region.width)
        assert foot.region.height >= rows
        if pane.max_scroll_y:
            await wait_until(pilot, lambda: "Ctrl+↓" in shown(foot))
            await pilot.press("ctrl+down")
            await wait_until(pilot, lambda: pane.scroll_y == 1)


async def test_a_favourite_comes_first_and_is_there_the_next_time(app):
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        picker = await picker_of(pilot, 4)
        before = titles(picker)
        await go_to(pilot, picker, "tern")
        await pilot.press("ctrl+f")
        await wait_until(pilot, lambda: titles(picker)[0] == "tern")
        assert picker._row.title == "tern"
        assert "★" in card_text(picker)
        notes = ModelNotes(locations().notes_file)
        assert [path.stem for path in notes.read().favourites] == ["tern"]
        assert not locations().settings_file.exists()
        await pilot.press("ctrl+f")
        await wait_until(pilot, lambda: titles(picker) == before)


async def test_the_order_is_changed_by_a_key_said_and_kept(app):
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        ModelNotes(locations().notes_file).note_use(app.context.locations.models / "tern.gguf")
        picker = await picker_of(pilot, 4)
        assert titles(picker)[0] == "tern" and "sorted by last used" in shown(picker.query_one("#heading"))
        await pilot.press("ctrl+s")
        await wait_until(pilot, lambda: "sorted by name" in shown(picker.query_one("#heading")))
        assert titles(picker) == ["builtin", "gull", "puffin:1b", "tern"]
        await pilot.press("ctrl+s", "escape")
        picker = await picker_of(pilot, 4)
        assert picker._list.known.order is Order.SIZE


async def test_several_words_in_any_order_find_a_model(app):
    async with app.run_test(size=(120, 40)) as pilot:
        await ready(pilot)
        picker = await picker_of(pilot, 4)
        await pilot.press(*"1b", "space", *"ollama")
        await wait_until(pilot, lambda: titles(picker) == ["puffin:1b"])


async def ask_to_delete(pilot, title, rows=4):
    picker = await picker_of(pilot, rows)
    await go_to(pilot, picker, title)
    await pilot.press("delete")
    return picker


async def test_deleting_asks_names_the_size_and_deletes(app, home):
    path = home / "data" / "models" / "gull.gguf"
    async with app.run_test(size=(100, 40)) as pilot:
        await ready(pilot)
        picker = await ask_to_delete(pilot, "gull")
        await wait_until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        question = shown(app.screen.query_one(".question"))
        assert "MB" in question and "gull" in question
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is picker)
        assert path.exists()
        await pilot.press("delete")
        await wait_until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("left", "enter")
        await wait_until(pilot, lambda: app.screen is picker and "gull" not in titles(picker))
        assert not path.exists()


async def test_a_model_that_a_chat_has_open_and_one_of_another_program_are_not_deleted(app, home):
    path = home / "data" / "models" / "gull.gguf"
    async with app.run_test(size=(100, 40)) as pilot:
        screen = await ready(pilot)
        screen.active.open_model(path)
        await wait_until(pilot, lambda: screen.active.model.path == path)
        picker = await ask_to_delete(pilot, "gull")
        await wait_until(pilot, lambda: any("has it open" in n.message for n in app._notifications))
        await go_to(pilot, picker, "puffin:1b")
        await pilot.press("delete")
        await wait_until(pilot, lambda: any("ollama rm puffin:1b" in n.message for n in app._notifications))
        assert path.exists() and app.screen is picker


async def test_delete_within_a_word_is_the_filters(app):
    async with app.run_test(size=(100, 40)) as pilot:
        await ready(pilot)
        picker = await picker_of(pilot, 4)
        await pilot.press(*"gull", "home", "delete")
        await wait_until(pilot, lambda: picker.query_one("Input").value == "ull")
        assert app.screen is picker


async def test_without_a_desktop_the_path_is_copied_and_that_is_said(app, stores, monkeypatch):
    path = locations().models / "gull.gguf"
    copied = []

    def copy(text, write):
        copied.append(text)
        return CopyResult(True, "Copied 9 characters.")

    app._copy = copy
    desktop = []
    monkeypatch.setattr(model_keeper, "reveal", lambda path, environ: bool(desktop))
    async with app.run_test(size=(100, 40)) as pilot:
        await ready(pilot)
        picker = await picker_of(pilot, 4)
        await go_to(pilot, picker, "gull")
        await pilot.press("ctrl+r")
        await wait_until(pilot, lambda: any("Copied 9 characters" in n.message for n in app._notifications))
        assert copied == [str(path)]
        desktop.append(True)
        await pilot.press("ctrl+r")
        await wait_until(pilot, lambda: any("is open in the file" in n.message for n in app._notifications))
        assert copied == [str(path)]


async def test_what_cannot_be_kept_is_said_and_models_are_sorted_all_the_same(app, home):
    (home / "state").mkdir(exist_ok=True)
    (home / "state" / "models.json").mkdir()
    async with app.run_test(size=(100, 40)) as pilot:
        await ready(pilot)
        picker = await picker_of(pilot, 4)
        await pilot.press("ctrl+f")
        await wait_until(pilot, lambda: any("not remembered" in n.message for n in app._notifications))
        await pilot.press("ctrl+s")
        await wait_until(pilot, lambda: "sorted by name" in shown(picker.query_one("#heading")))


async def test_the_readers_own_file_of_notes_stays_readable(app):
    async with app.run_test(size=(100, 40)) as pilot:
        await ready(pilot)
        await picker_of(pilot, 4)
        await pilot.press("ctrl+s")
        await wait_until(pilot, lambda: locations().notes_file.exists())
        assert json.loads(locations().notes_file.read_text()) == {"order": "name"}


async def test_torch_in_place_of_a_kernel_is_shown_by_the_panel_and_the_card(app, engine):
    sentence = "torch computes norms (2 ms a token): its kernel cannot be compiled"
    engine.by_torch = (sentence,)
    async with app.run_test(size=(160, 50)) as pilot:
        screen = await ready(pilot)
        name = engine.models[0].name
        panel = screen.query_one(LivePanel)
        await wait_until(pilot, lambda: f"{name}: {sentence}" in " ".join(plain(panel).split()))
        picker = await picker_of(pilot, 4)
        await wait_until(pilot, lambda: sentence in " ".join(card_text(picker).split()))
        await go_to(pilot, picker, "gull")
        assert sentence not in " ".join(card_text(picker).split())
