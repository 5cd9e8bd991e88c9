"""What an empty chat says of the model that will answer, and what it offers to ask."""

from pathlib import Path

from app.models.builtin import builtin_model_path
from app.models.endpoint_keys import endpoint_key
from app.screens.chat.empty.welcome import PROMPTS, welcome_text
from tests.app.driving import chat, ready, wait_until

FOLDER = Path("/models")


def test_it_says_where_what_is_written_goes():
    local = str(welcome_text(FOLDER, Path("/models/some.gguf"), {}))
    assert "stays on this computer" in local and "Your own .gguf" not in local
    remote = str(welcome_text(FOLDER, endpoint_key("work", "big"), {}))
    assert "goes to the endpoint work" in remote and "stays" not in remote
    assert "/models" in str(welcome_text(FOLDER, builtin_model_path(), {}))


async def test_a_click_or_the_up_key_writes_a_prompt_and_replaces_nothing(make_app):
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        screen = chat(app)
        await pilot.click("#welcome", offset=(10, 5))
        await wait_until(pilot, lambda: screen.composer.text == PROMPTS[0])
        await pilot.click("#welcome", offset=(10, 6))
        assert screen.composer.text == PROMPTS[0]
        screen.composer.clear()
        await pilot.press("up")
        await wait_until(pilot, lambda: screen.composer.text == PROMPTS[0])
