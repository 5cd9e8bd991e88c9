"""The chat screen's actions on the code blocks of the answer in view, by their numbers."""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from app.screens.chat.answer_actions import AnswerActions
from app.terminal.editor import EditorError, edited, editor_command

if TYPE_CHECKING:
    from app.markdown.document import CodeBlock


class CodeActions(AnswerActions):
    """Copies, saves and opens one code block."""

    async def action_code(self, rest: str = "") -> bool:
        """Copy the code block of a number."""
        found = self._block(rest, "code")
        if found is None:
            return False
        number, block, behind = found
        if behind:
            self.say(f"/code {rest}: write only the number of a code block.", "warning")
            return False
        self.copy(block.text, f"Code block {number}. ")
        return True

    async def action_save_code(self, rest: str = "") -> bool:
        """Write a code block into a file; one that is there is asked about."""
        found = self._block(rest, "save-code")
        if found is None:
            return False
        number, block, name = found
        path = Path(name).expanduser() if name else Path()
        if path.is_dir():
            path = path / file_name(number, block)
        path = path.absolute()
        text = block.text if block.text.endswith("\n") else f"{block.text}\n"
        if not await self._write(path, text, overwrite=False):
            from app.screens.dialogs.confirm import ConfirmScreen

            screen = ConfirmScreen(f"{path} is there already. Overwrite it?", "Overwrite", "Keep it")
            self.ask(screen, lambda yes: self._overwrite(path, text) if yes else None)
        return True

    def _overwrite(self, path: Path, text: str) -> None:
        self.run_worker(self._write(path, text, overwrite=True), group="save code", exit_on_error=False)

    async def _write(self, path: Path, text: str, *, overwrite: bool) -> bool:
        """Write a file and say so, or why not; false where there is one that is not to be overwritten."""

        def write() -> None:
            with path.open("w" if overwrite else "x", encoding="utf-8", newline="") as file:
                file.write(text)

        try:
            await asyncio.to_thread(write)
        except FileExistsError:
            return False
        except (OSError, ValueError) as error:
            self.say(f"{path} was not written ({getattr(error, 'strerror', None) or error}).", "warning")
        else:
            self.say(f"Written to {path}")
        return True

    async def action_open_code(self, rest: str = "") -> bool:
        """Open a code block in the reader's own editor; what is changed there is copied."""
        found = self._block(rest, "open-code")
        if found is None:
            return False
        number, block, _ = found
        try:
            command = editor_command(os.environ)
            with self.app.batch_update(), self.app.suspend():
                name = file_name(number, block)
                text = await asyncio.to_thread(edited, block.text, command, name, "code block")
        except (EditorError, SuspendNotSupported) as error:
            self.say(str(error), "warning")
        else:
            if text != block.text:
                self.copy(text, "The chat keeps its code block; yours is taken along. ")
        self.refresh(repaint=True, layout=True)
        return True

    def _block(self, rest: str, command: str) -> "tuple[int, CodeBlock, str] | None":
        """Return the number, the code block that it means and what stands behind it; say what is wrong."""
        transcript = self.deck.transcript
        answers = transcript.answers_in_view() if transcript is not None else []
        blocks = next((found for item in answers if (found := item.code_blocks())), [])
        word, _, behind = rest.strip().partition(" ")
        if not word.isdecimal():
            word, behind = ("1" if len(blocks) == 1 else ""), rest.strip()
        if not blocks:
            self.say("No answer in view has a code block.", "warning")
        elif not word or not 1 <= int(word) <= len(blocks):
            numbers = f"from 1 to {len(blocks)}" if len(blocks) > 1 else "1"
            self.say(f"Write the number of a code block behind /{command}: {numbers}.", "warning")
        else:
            return int(word), blocks[int(word) - 1], behind.strip()
        return None


def file_name(number: int, block: "CodeBlock") -> str:
    """Return a name for the file of a code block, by its language."""
    from app.markdown.code import file_suffix

    return f"code-{number}{file_suffix(block.language)}"
