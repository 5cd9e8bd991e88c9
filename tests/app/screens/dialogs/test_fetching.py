"""Fetching models in the picker, and what the first chat offers: without a server, over fetches by hand."""

import shutil

import pytest

from app.fetch import catalogue, fetch, sources
from app.fetch.catalogue import Entry
from app.fetch.fetch import Progress, State
from app.models.builtin import builtin_model_path
from app.models.fit.device import Memory
from app.models.fit.pace import Pace
from app.models.listed.listing import find_models
from app.models.listed.order import Known
from app.screens.chat.empty import offer
from app.screens.dialogs.models import model_picker
from app.screens.dialogs.models.model_picker import ModelPicker
from app.screens.dialogs.models.model_rows import RowPainter
from app.screens.fetching import Fetchable, Stock
from app.settings.paths import locations
from app.transfer.errors import FetchError
from app.transfer.parts import Notes, Part
from app.transfer.plan import Licence, Plan, RemoteFile
from engine import Room
from tests.app.computer import CPU, GPU
from tests.app.driving import plain, ready, wait_until

GB = 10**9


def entry(name, memory_8k=GB, *, licence="Apache-2.0", consent=False):
    title = name.replace("-", " ").title()
    source = f"hf:owner/{name}-GGUF:Q8_0"
    return Entry(name, title, "tests", licence, "", consent, "llama", memory_8k, memory_8k, (source,))


ENTRIES = [entry("small-one", GB // 4), entry("good-one", 3 * GB, consent=True), entry("vast-one", 90 * GB)]


class HandFetch:
    """A fetch that goes on when the test says so."""

    def __init__(self, plan, models):
        self.plan, self._models = plan, models
        self.progress = Progress(State.RUNNING, 0, plan.size)
        self._listeners = []

    def listen(self, listener):
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def become(self, state, done=0, **more):
        self.progress = Progress(state, done, self.plan.size, **more)
        for listener in self._listeners:
            listener(self.progress)

    def pause(self):
        if not self.progress.ended:
            self.become(State.PAUSED, self.progress.done)

    def cancel(self):
        self.become(State.CANCELLED)

    def arrive(self):
        self._models.mkdir(parents=True, exist_ok=True)
        path = self._models / f"{self.plan.what}-q8_0.gguf"
        shutil.copy(builtin_model_path(), path)
        self.become(State.DONE, self.plan.size, paths=(path,))
        return path


class HandFetches:
    def __init__(self, models):
        self.models, self.started = models, []

    def start(self, plan):
        self.started.append(HandFetch(plan, self.models))
        return self.started[-1]

    def close(self, timeout=None):
        for started in self.started:
            started.pause()


class Shop:
    """What the app gets instead of servers."""

    def __init__(self):
        self.asked, self.fetches, self.error = [], None, None

    def plan(self, what, entries, *, free_memory=None, fits=None, stop=None):
        self.asked.append(what)
        if self.error:
            raise FetchError(self.error)
        known = next((entry for entry in entries if entry.name == what), None)
        licence = Licence(known.licence, "", known.consent) if known else Licence()
        file = RemoteFile("https://acme.example/x", "x.gguf", 100_000_000)
        return Plan(what, known.title if known else what, "Acme", licence, (file,))

    def open(self, models):
        self.fetches = HandFetches(models)
        return self.fetches


@pytest.fixture
def shop(monkeypatch, make_app):
    """After `make_app`, which has nothing to fetch."""
    shop = Shop()
    monkeypatch.setattr(catalogue, "read_catalogue", lambda own=None: (ENTRIES, []))
    monkeypatch.setattr(sources, "make_plan", shop.plan)
    monkeypatch.setattr(fetch, "Fetches", shop.open)
    monkeypatch.setattr(model_picker, "_BEAT", 0.02)
    return shop


@pytest.fixture
def app(make_app, shop, home):
    (home / "state").mkdir()
    (home / "state" / "models-offered").touch()
    return make_app(find_models=find_models)


async def open_picker(pilot, rows=5):
    await pilot.press("ctrl+o")
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, ModelPicker))
    picker = pilot.app.screen
    await wait_until(pilot, lambda: picker.query_one("#models").option_count == rows)
    return picker


def foot(picker):
    return str(picker.query_one("#foot").content)


def row(picker, index):
    return str(picker.query_one("#models").get_option_at_index(index).prompt)


def said(app, text):
    return any(text in notice.message for notice in app._notifications)


async def fetch_small(pilot, shop):
    """Fetch the first model of the catalogue; return picker and fetch."""
    picker = await open_picker(pilot)
    await pilot.press("down", "enter")
    await wait_until(pilot, lambda: "100 MB" in foot(picker))
    assert "Apache-2.0" in foot(picker) and shop.fetches is None
    await pilot.press("enter")
    await wait_until(pilot, lambda: shop.fetches and "p pauses" in foot(picker))
    return picker, shop.fetches.started[0]


async def test_a_model_is_fetched_beside_the_chat_and_opened(app, shop):
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        picker, job = await fetch_small(pilot, shop)
        job.become(State.RUNNING, 42_000_000, speed=2e6, seconds_left=29.0)
        await wait_until(pilot, lambda: "42 %, 42 MB of 100 MB, 2 MB/s, 29 s left" in row(picker, 2))
        assert "fetching Small One 42 %" in plain(screen.query_one("#status"))
        path = job.arrive()
        await wait_until(pilot, lambda: picker._shown[1:2] and getattr(picker._shown[1], "path", 0) == path)
        assert said(app, "Small One is here: Ctrl+O opens it")
        assert "fetching" not in plain(screen.query_one("#status"))
        await wait_until(pilot, lambda: picker.query_one("#models").highlighted == 1)
        assert "small-one" not in [getattr(shown, "what", "") for shown in picker._shown]
        await pilot.press("enter")
        await wait_until(pilot, lambda: screen.active.model.path == path)


async def test_leaving_the_picker_leaves_the_fetch(app, shop):
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await ready(pilot)
        _, job = await fetch_small(pilot, shop)
        await pilot.press("escape")
        assert app.screen is screen and job.progress.state is State.RUNNING
        job.become(State.FAILED, error="acme.example does not answer")
        await wait_until(pilot, lambda: said(app, "Small One: acme.example does not answer"))
        picker = await open_picker(pilot)
        await wait_until(pilot, lambda: "does not answer" in row(picker, 2))
        await pilot.press("down", "enter")
        await wait_until(pilot, lambda: len(shop.fetches.started) == 2)


async def test_p_pauses_and_goes_on_and_delete_cancels(app, shop):
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        picker, job = await fetch_small(pilot, shop)
        await pilot.press("p")
        await wait_until(pilot, lambda: "paused at 0 %" in row(picker, 2))
        assert job.progress.state is State.PAUSED and picker.query_one("Input").value == ""
        await pilot.press("p")
        await wait_until(pilot, lambda: len(shop.fetches.started) == 2)
        await pilot.press("delete")
        assert shop.fetches.started[1].progress.state is State.CANCELLED
        await wait_until(pilot, lambda: "250 MB of memory" in row(picker, 2))
        await pilot.press("p")
        await wait_until(pilot, lambda: picker.query_one("Input").value == "p")


async def test_what_cannot_be_planned_says_why(app, shop):
    shop.error = "acme.example holds no such model"
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        picker = await open_picker(pilot)
        await pilot.press("down", "enter")
        await wait_until(pilot, lambda: "holds no such model" in foot(picker))
        await pilot.press("up")
        await wait_until(pilot, lambda: "Enter opens" in foot(picker))
        assert shop.fetches is None


async def test_a_typed_address_is_fetched(app, shop):
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        picker = await open_picker(pilot)
        picker.query_one("Input").value = "hf:acme/tern.gguf"
        await wait_until(pilot, lambda: picker.query_one("#models").option_count == 1)
        assert "Fetch hf:acme/tern.gguf" in row(picker, 0)
        await pilot.press("enter")
        await wait_until(pilot, lambda: "Enter fetches it" in foot(picker) and "Acme" in foot(picker))
        await pilot.press("enter")
        await wait_until(pilot, lambda: picker.query_one("#models").option_count == 6)
        assert shop.asked == ["hf:acme/tern.gguf"] and "p pauses" in foot(picker)
        assert picker._row.what == "hf:acme/tern.gguf"


async def test_consent_and_want_of_memory_are_said(app, shop):
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        picker = await open_picker(pilot)
        await pilot.press("down", "down", "enter")
        await wait_until(pilot, lambda: "Enter agrees to the licence and fetches it" in foot(picker))
        assert "needs 90 GB of memory; 8.0 GB of memory are free" in row(picker, 4)


async def test_what_was_begun_before_is_shown_and_can_be_dropped(app, shop, home):
    models = locations().models
    models.mkdir(parents=True)
    part = Part(models, "good.gguf")
    part.path.write_bytes(b"GGUF" * 1000)
    part.keep(Notes("good-one", 8000))
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        picker = await open_picker(pilot)
        assert "Good One" in row(picker, 2) and "begun: 4 kB of 8 kB" in row(picker, 2)
        await pilot.press("down", "delete")
        await wait_until(pilot, lambda: "begun" not in row(picker, 2))
        assert not list(models.iterdir())


async def test_leaving_the_app_pauses_fetches(app, shop):
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        _, job = await fetch_small(pilot, shop)
    assert job.progress.state is State.PAUSED
    assert app.end_services()


def welcome(screen):
    return str(screen.query_one("#welcome").content)


async def test_the_first_chat_offers_models_once(make_app, shop):
    app = make_app()
    async with app.run_test(size=(100, 40)) as pilot:
        screen = await ready(pilot)
        await wait_until(
            pilot, lambda: "Good One (3.0 GB of memory, Apache-2.0) or Small One" in welcome(screen)
        )
        picker = await open_picker(pilot)
        await wait_until(pilot, lambda: picker._row is not None and picker._row.title == "Good One")
        await pilot.press("escape")
        await wait_until(pilot, lambda: "Good One" not in welcome(screen))
        await wait_until(pilot, lambda: not screen.workers)
    assert offer.offer(app.context) == ()


async def test_who_has_a_model_is_offered_none(app, home):
    (home / "state" / "models-offered").unlink()
    async with app.run_test(size=(100, 40)) as pilot:
        await ready(pilot)
        assert offer.offer(app.context)
        models = locations().models
        models.mkdir(parents=True, exist_ok=True)
        shutil.copy(builtin_model_path(), models / "tern-q8_0.gguf")
        assert offer.offer(app.context) == ()


def known(names):
    return [entry for entry in catalogue.read_catalogue()[0] if entry.name in names]


@pytest.mark.parametrize(
    ("rules", "free", "bandwidth", "offered"),
    [
        (GPU, 24 * GB, 1e12, ["qwen3-30b-a3b", "qwen3-4b"]),
        (GPU, 6 * GB, 1e12, ["qwen3-4b", "gemma3-270m"]),
        (CPU, 64 * GB, 30e9, ["qwen3-30b-a3b", "qwen3-4b"]),
        (CPU, 64 * GB, 1e9, ["smollm2-135m"]),
        (CPU, GB, 1e9, ["smollm2-135m"]),
        (CPU, GB // 10, 1e9, []),
    ],
)
def test_what_is_offered_fits_and_writes_as_fast_as_people_read(rules, free, bandwidth, offered):
    names = ("smollm2-135m", "gemma3-270m", "qwen3-4b", "gpt-oss-20b", "qwen3-30b-a3b", "llama3.3-70b")
    stock = Stock(known(names), Memory(rules, Room(free)), Pace(bandwidth=bandwidth))
    assert [row.what for row in offer.best_of(stock)] == offered


def test_nothing_is_offered_for_a_device_that_is_not_there():
    assert offer.best_of(Stock(ENTRIES)) == []
    (row,) = Stock(known(["qwen3-4b"])).fetchable(())
    assert row.terms == "2.5 GB, Apache-2.0" and not row.shortage


@pytest.mark.parametrize(
    ("stem", "there"),
    [("good-one-Q8_0", True), ("Good-One-q8_0-00001-of-00002", True), ("good-one-Q4_K_M", False)],
)
def test_a_model_that_is_there_is_not_offered(stem, there):
    names = [row.what for row in Stock(ENTRIES).fetchable([stem])]
    assert ("good-one" not in names) is there


def test_rows_of_strangers_steer_no_terminal():
    nasty = "e\x1b[2J\x9b1m\u202e[red]"
    painter = RowPainter(80, None, {}, Known(), 0.0)
    text = str(painter.row(Fetchable(nasty, nasty, nasty, nasty, begun="")).plain)
    text += str(painter.row(Fetchable(nasty, nasty, begun=nasty)).plain)
    assert "[red]" in text and text.replace("\n", "").isprintable()
