"""What the screens share: settings, places, history and the engine, without any widget."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from app.chat.conversation import Conversation
from app.chat.shared import Services
from app.endpoints.service import Endpoints
from app.history.pending import OpenTabs
from app.history.store import HistoryStore
from app.models.builtin import BUILTIN_NAME, builtin_model_path
from app.models.choice import ModelChoiceError, resolve_model
from app.models.endpoint_keys import endpoint_model
from app.models.found import ModelSearch, search_of
from app.models.listed.listing import ModelFile, find_models
from app.models.loader import EngineService
from app.screens.fetching import Fetching
from app.settings.file import Settings
from app.settings.paths import Locations
from app.terminal.clipboard import CopyResult, copy_text

if TYPE_CHECKING:
    from app.screens.preferences import Preferences, ThemeChoice

Finder = Callable[[ModelSearch], list[ModelFile]]
Copy = Callable[[str, Callable[[str], None]], CopyResult]


class Looks(Protocol):
    """The themes that are there, as dialogs use them."""

    def choices(self) -> "list[ThemeChoice]":
        """Return the themes in the order they are offered."""

    def show(self, name: str) -> None:
        """Draw the app in a theme."""


@dataclass
class AppContext:
    """Made once by the app; `settings` is replaced as a whole when it changes."""

    settings: Settings
    locations: Locations
    history: HistoryStore
    engine: EngineService
    services: Services
    fetching: Fetching
    endpoints: Endpoints
    folders: Sequence[Path] = ()
    """Folders named on the command line."""
    chosen: Path | None = None
    """The model named on the command line."""
    named_chat: str | None = None
    """Id of the chat named on the command line."""
    warnings: Sequence[str] = ()
    """What was wrong at the start, with the settings or a theme."""
    preferences: "Preferences" = field(init=False)
    """Who takes changed settings."""
    looks: Looks = field(init=False)
    tell: Callable[[str], None] = field(default=lambda sequence: None)  # noqa: ARG005
    """Sends the terminal what no widget draws."""
    copy: Copy = field(default=copy_text)
    find_models: Finder = field(default=find_models)
    _named: tuple[str, Path] | None = None
    """The settings' default model and where it was found: folders are not read for every new chat."""

    def model_search(self) -> ModelSearch:
        """Return where model files are looked for."""
        return search_of(self.settings, self.locations, self.folders)

    def default_model(self) -> Path:
        """Return the model of a new chat: the command line's, the settings', or the built-in one."""
        if self.chosen is not None:
            return self.chosen
        name = self.settings.models.default
        if name == BUILTIN_NAME:
            return builtin_model_path()
        path = Path(name).expanduser()
        if path.is_file():
            return path
        if self._named is None or self._named[0] != name:
            self._named = name, self._search(name)
        return self._named[1]

    def find_again(self) -> None:
        """Forget where the default model was found: files may have come and gone."""
        self._named = None

    def _search(self, name: str) -> Path:
        try:
            return resolve_model(name, self.model_search())
        except ModelChoiceError:
            return Path(name).expanduser()

    def model_path(self, conversation: Conversation) -> Path:
        """Return a conversation's model; one that is not there any more falls back to the default."""
        path = conversation.model_path
        return Path(path) if path and self._is_there(Path(path)) else self.default_model()

    def _is_there(self, path: Path) -> bool:
        elsewhere = endpoint_model(path)
        return path.is_file() if elsewhere is None else elsewhere[0] in self.settings.endpoints

    def new_conversation(self) -> Conversation:
        """Make an empty conversation with the settings' sampling."""
        sampling = self.settings.sampling
        return Conversation(
            model_path=str(self.default_model()),
            system_prompt=sampling.system_prompt,
            sampling=sampling.params(),
            max_tokens=sampling.token_limit,
            chosen=sampling.chosen,
            thinking=sampling.think,
            tools=[name for name, server in self.settings.tools.items() if server.on],
        )

    def restored(self) -> tuple[list[Conversation], int]:
        """Return the chats of the last time and which was active.

        A chat named on the command line is in front, else a new one for a model named there.
        """
        restore = self.settings.general.restore_tabs
        tabs = self.history.list_open_tabs() if restore else OpenTabs()
        wanted = self.named_chat
        ids = [*tabs.ids, *([wanted] if wanted is not None and wanted not in tabs.ids else [])]
        loaded = [self.history.load(conversation_id) for conversation_id in ids]
        conversations = [conversation for conversation in loaded if conversation is not None]
        front = wanted or tabs.active
        active = next((i for i, c in enumerate(conversations) if c.id == front), 0)
        if restore and self.chosen is not None and wanted is None:
            conversations = [c for c in conversations if c.nodes or c.draft]
            conversations.append(self.new_conversation())
            active = len(conversations) - 1
        return conversations, active
