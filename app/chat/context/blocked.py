"""The part of a tab that finds its context full: what waits for room, and making some."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable

from app.chat.answers.fanning import Fanning
from app.chat.context.room import Room, RoomMade, make_room
from app.chat.conversation import Conversation
from app.chat.events import Changed, ContextFilled, Notice, PathChanged, SessionEvent
from app.chat.shared import Services
from app.chat.turn import Turn, own_fault
from app.models.backends.port import ChatModel
from engine import EngineError


class RoomMaker(Fanning):
    """Holds a turn that is too long until its reader has chosen what is left out."""

    def __init__(
        self, conversation: Conversation, services: Services, tell: Callable[[SessionEvent], None]
    ) -> None:
        super().__init__(conversation, services, tell)
        self.blocked: Turn | None = None
        """What waits until there is room for it in the context."""
        self.blocked_why = ""
        self.warned = False
        """Whether the reader has seen that the context is nearly full."""
        self._summarises = False
        """Whether a summary is written as soon as the model is open."""
        self._freed = ("", 0)
        """The leaf after which about so many tokens are not read that the last answer has counted."""

    @property
    @abstractmethod
    def model(self) -> ChatModel | None:
        """The model that answers."""

    @property
    def freed_tokens(self) -> int:
        """About how many tokens of those that the last answer counted are not read any more."""
        leaf, tokens = self._freed
        return tokens if leaf == self.conversation.leaf else 0

    @abstractmethod
    def _launch(self, turn: Turn) -> None:
        """Ask."""

    def _block(self, turn: Turn, reason: str) -> None:
        """Have a turn wait for room, where older turns could make some."""
        if turn.parent is None or self._closed:
            self._turn_failed(turn.question, turn, reason)
            return
        self._task, self.paused = None, False
        self.blocked, self.blocked_why = turn, reason
        self._tell(Changed())
        self._tell(ContextFilled())

    def give_back_blocked(self) -> None:
        """Give back what waits for room, unsent."""
        turn, self.blocked = self.blocked, None
        if turn is not None:
            self._turn_failed(turn.question, turn, self.blocked_why)

    def ask_blocked(self) -> None:
        """Ask once more for what waits for room."""
        turn, self.blocked = self.blocked, None
        if turn is not None:
            self._launch(turn)

    def summarise_first(self, turn: Turn | None) -> None:
        """Have a summary stand for the oldest turns, once the model is open, and then ask."""
        self.blocked, self._summarises = turn, True
        self._go_on_blocked()

    def _go_on_blocked(self) -> None:
        """Go on with what waits, now that a model is open."""
        if self.model is None or self.busy:
            return
        if self._summarises:
            self._summarises = False
            self.make_room(Room.SUMMARISE)
        elif self.blocked is not None:
            self.ask_blocked()

    def make_room(self, how: Room) -> None:
        """Have the oldest turns not read any more, and then ask what waits for that."""
        if self.busy or self.model is None:
            return
        turn, self.blocked = self.blocked, None
        self._asking = turn.question if turn is not None else None
        self._task = asyncio.get_running_loop().create_task(self._make_room(how, turn, self.model))
        self._tell(Changed())

    async def _make_room(self, how: Room, turn: Turn | None, model: ChatModel) -> None:
        reason: str | None = None
        try:
            made = await make_room(how, self.conversation, turn, model, self._services)
        except asyncio.CancelledError:
            pass
        except EngineError as error:
            reason = str(error)
        except Exception as error:
            reason = own_fault(error)
        else:
            self._room_made(made)
            return
        if turn is not None:
            self._turn_failed(turn.question, turn, reason)
            return
        self._task = None
        if reason is not None:
            self._tell(Notice(reason, "error"))
        self._tell(Changed())

    def _room_made(self, made: RoomMade) -> None:
        self._task = None
        self._freed = (self.conversation.leaf or "", made.tokens)
        self.warned = False
        self._save()
        self._tell(PathChanged())
        if made.only_part:
            self._tell(
                Notice("The oldest messages were too long together; the summary is of the newer ones.")
            )
        if made.turn is not None:
            self._launch(made.turn)
