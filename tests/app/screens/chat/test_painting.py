"""What is painted while text streams: little, and never less than what has changed."""

from textual.geometry import Region

from app.screens.compositor import DirtyCompositor
from tests.app.driving import ready, say, shown_answer, wait_until


def drawn(strips) -> list[str]:
    return [strip.text for strip in strips]


class Screenful:
    """The cells of a terminal that takes partial updates."""

    def __init__(self, screen) -> None:
        self.screen, self.compositor = screen, screen._compositor
        self.rows = [list(text) for text in drawn(self.compositor.render_strips())]

    def update(self, *regions: Region) -> None:
        self.compositor._dirty_regions.update(regions)
        update = self.compositor.render_partial_update()
        for y, x1, x2 in update.spans:
            for x, strip in update.chops[y].items():
                for at, cell in enumerate(strip.text if strip is not None else "", start=x):
                    if x1 <= at < x2:
                        self.rows[y][at] = cell

    @property
    def text(self) -> list[str]:
        return ["".join(row) for row in self.rows]


async def test_a_partial_update_paints_what_a_whole_one_would(make_app, engine):
    app = make_app()
    async with app.run_test(size=(124, 30)) as pilot:
        screen = await ready(pilot)
        assert isinstance(screen._compositor, DirtyCompositor)
        await say(pilot, "question")
        await wait_until(pilot, lambda: engine.generations)
        screen.beat.stop()
        terminal = Screenful(screen)
        engine.generations[0].feed("# An answer\n\nof some lines.")
        await wait_until(pilot, lambda: "of some lines" in str(drawn(screen._compositor.render_strips())))
        screen.query_one("#status").set_rows([(("a status", "text"),)])
        for place in ((0, 28, 124, 2), (3, 1, 40, 12), (70, 5, 54, 3), (0, 0, 124, 1)):
            terminal.update(Region(*place))
        terminal.update(Region(0, 1, 60, 27), Region(50, 1, 74, 27))
        assert terminal.text == drawn(screen._compositor.render_strips())


async def test_new_text_at_the_end_renders_its_rows_and_no_other_widget(make_app, engine, monkeypatch):
    app = make_app()
    async with app.run_test(size=(124, 30)) as pilot:
        screen = await ready(pilot)
        await say(pilot, "question")
        await wait_until(pilot, lambda: engine.generations)
        engine.generations[0].feed("one\n\ntwo\n\nthree")
        transcript = screen.deck.transcript
        await wait_until(pilot, lambda: shown_answer(transcript).endswith("three"))
        screen.beat.stop()
        screen.beat._linger = 0
        screen.composer.cursor_blink = False
        await pilot.pause()
        rendered: list[tuple[str, int]] = []
        for widget in screen.query("*"):

            def render_lines(crop, widget=widget, original=widget.render_lines):
                rendered.append((type(widget).__name__, crop.height))
                return original(crop)

            monkeypatch.setattr(widget, "render_lines", render_lines)
        engine.generations[0].feed(" more")
        await wait_until(pilot, lambda: shown_answer(transcript).endswith("more"))
        await wait_until(pilot, lambda: rendered)
        assert set(rendered) == {("Transcript", 1)}
