"""The chat that `tui-chat ask` asks in: a kept one that goes on, or one that nobody keeps."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from app.chat.conversation import Conversation, MessageNode, Role, Status
from app.chat.reasoning import Pieces
from app.cli.common import CommandError, chosen_chat_model
from app.models.endpoint_keys import endpoint_model
from app.settings.actions import label_of
from app.settings.file import Settings
from app.tools.offered import Offered
from engine import Finished

if TYPE_CHECKING:
    from app.chat.answers.running import RunningAnswer
    from app.history.store import HistoryStore
    from app.models.backends.port import Asked, ChatModel


REPEATED = "it repeated itself"


class Talk:
    """A conversation in which one question is asked; saved while the answer comes, if it is kept."""

    def __init__(self, chat: Conversation, settings_key: str, history: "HistoryStore | None" = None) -> None:
        self.chat = chat
        self._settings_key = settings_key
        self._history = history
        self._answer = ""

    @property
    def kept(self) -> bool:
        """Whether the chat is one of the history's."""
        return self._history is not None

    @property
    def answer(self) -> MessageNode:
        """The answer, as far as it has come."""
        return self.chat.nodes[self._answer]

    @property
    def steps(self) -> list[MessageNode]:
        """The answers and results of tools since the question."""
        path = self.chat.path(self._answer)
        last = max(at for at, node in enumerate(path) if node.role is Role.USER)
        return path[last + 1 :]

    def model_path(self, args: argparse.Namespace, settings: Settings) -> Path:
        """Return the model that is named, or else the chat's own if it is there."""
        own = self.chat.model_path
        if self.kept and args.model is None and own and is_there(Path(own), settings):
            return Path(own)
        return chosen_chat_model(args, settings)

    def ask(
        self, prompt: str | None, model: "ChatModel", asked: "Asked", tools: Offered, *, watched: bool
    ) -> "RunningAnswer":
        """Add the question, where there is a new one, and begin the answer.

        watched: whether it is ended when it repeats itself.
        """
        from app.chat.answers.running import RunningAnswer
        from app.chat.tool_use.splitter import splitter_of

        if prompt is not None:
            self.chat.add_user(prompt)
        self._answer = self.chat.begin_answer(str(model.path), splitter_of(asked, tools.schemas)).id
        self.save()
        return RunningAnswer(self.chat, self._answer, asked, model, watched=watched)

    def grown(self) -> None:
        """Save the answer, which has grown."""
        if self._history is not None:
            self._history.append(self.chat, self._answer)

    def end(self, running: "RunningAnswer", finished: Finished) -> Pieces:
        """End the answer; return the pieces that were held back."""
        from app.chat.answers.running import Said

        _, pieces = running.finish(finished, Said(self._settings_key, REPEATED))
        self.save()
        return pieces

    def break_off(self) -> None:
        """Keep what has come of an answer that is stopped."""
        if self.answer.status is Status.STREAMING:
            self.chat.finish(self._answer, Status.STOPPED)
            self.save()

    def save(self) -> None:
        """Save the chat, if it is kept."""
        if self._history is not None:
            self._history.save(self.chat)


def is_there(path: Path, settings: Settings) -> bool:
    """Whether a model's file, or its endpoint, is there."""
    elsewhere = endpoint_model(path)
    return path.is_file() if elsewhere is None else elsewhere[0] in settings.endpoints


@contextmanager
def asked_in(args: argparse.Namespace, settings: Settings) -> Iterator[Talk]:
    """Give the chat to ask in. A kept one is held as long as that takes: no window opens it to write."""
    key = label_of("tab_settings", settings.keys)
    if not args.goes_on and args.chat is None:
        sampling = settings.sampling
        chat = Conversation(
            system_prompt=sampling.system_prompt,
            sampling=sampling.params(),
            max_tokens=sampling.token_limit,
            chosen=sampling.chosen,
            thinking=sampling.think,
        )
        yield Talk(chat, key)
        return
    from app.cli.chats.kept_chats import last_chat, named_chat, opened_history

    with opened_history() as history:
        found = last_chat(history) if args.chat is None else named_chat(history, args.chat)
        history.save_tabs([found.id], found.id)
        kept = history.load(found.id)
        if kept is None:
            raise CommandError(f"“{found.title}” is not there any more")
        try:
            if history.written_elsewhere([found.id]):
                raise CommandError(
                    f"“{found.title}” is open in a window of tui-chat: go on there, or close its tab"
                )
            yield Talk(kept, key, history)
        finally:
            history.save_tabs([], None)
