"""The chat screen's actions on how much is thought, and on a context that is full."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from app.chat.context.room import Room
from app.chat.session import ChatSession
from app.chat.turn import Turn
from app.models.backends.port import ChatModel
from app.models.builtin import model_title
from app.screens.chat.answering.length_actions import LengthActions
from app.screens.dialogs.context_full import ContextFull, RoomChoice
from app.widgets.contents import context_use
from engine import Thinking, ThinkingSupport


class ContextActions(LengthActions):
    """Sets how much is thought, ends thoughts, makes room."""

    def action_answer_now(self) -> None:
        """End the thoughts of the running answer."""
        if not self.may_write() or self.active.answer_now():
            return
        model = self.active.model
        if model is not None and model.local is None:
            self.say("What an endpoint thinks cannot be ended from here; what it writes can be stopped.")
        else:
            self.say("There are no thoughts to end: they can be ended while they are written.")

    async def action_think(self, words: str = "") -> bool:
        """Choose how much is thought before answers; without words say what can be chosen.

        Tells whether what was written behind it can be understood.
        """
        if not self.may_write():
            return False
        try:
            wanted = Thinking.parse(words) if words else None
        except ValueError as error:
            self.say(f"Thinking must be {error}.", "warning")
            return False
        self.run_worker(self._think(self.active, wanted), group="think", exit_on_error=False)
        return True

    async def _think(self, session: ChatSession, wanted: Thinking | None) -> None:
        model = session.model
        if model is None:
            self.say("No model is open yet whose chat template could be asked.", "warning")
            return
        support = await asyncio.to_thread(lambda: model.thinking_support)
        title = model_title(model.path)
        if wanted is None:
            budget = " or a budget in tokens" if support.has_thoughts else ""
            now = session.conversation.thinking
            self.say(f"Thinking is {now}. {title} understands {', '.join(support.choices)}{budget}.")
        elif lacks := support.lacks(wanted):
            who = "chat template" if model.local is not None else "endpoint"
            self.say(f"The {who} of {title} {lacks}.", "warning")
        else:
            session.set_thinking(wanted)
            self.say(f"Thinking is {wanted} from the next answer on.")

    def thinking_commands(self) -> list[tuple[str, str, Callable[[], Awaitable[bool]]]]:
        """What the palette offers of thinking: title, help and what does it."""
        now = self.active.conversation.thinking
        marks = {str(now): ", as it is now"}
        return [
            (
                f"Thinking {level}",
                f"How much is thought before answers: {level}{marks.get(level, '')}",
                partial(self.action_think, level),
            )
            for level in ThinkingSupport.ALL
        ]

    async def show_active(self) -> None:
        """And ask what is done for what waits for room in its context."""
        await super().show_active()
        if self.active.blocked is not None:
            self.action_make_room()

    def action_make_room(self) -> None:
        """Ask what is left out of a context that is full, or nearly so."""
        session = self.active
        if not self.may_write():
            return
        if session.model is None or session.busy or not session.conversation.nodes:
            stop = f"press {session.key('stop')} to stop the answer first"
            self.say(stop.capitalize() + "." if session.busy else "There are no turns to leave out yet.")
            return
        screen = ContextFull(
            session.blocked_why if session.blocked else self._fill(session), self._larger(session)
        )
        self.ask(screen, partial(self._room_chosen, session))

    def _fill(self, session: ChatSession) -> str:
        known = context_use(session)
        if known is None:
            return "How much of its context this chat takes is not known."
        used, most = known
        return f"This chat takes about {used:,} of the {most:,} tokens that are read."

    def _larger(self, session: ChatSession) -> str:
        """What a larger context takes."""
        model = session.model.local if session.model is not None else None
        if model is not None and model.context_length < model.longest_context:
            return (
                f"of the {model.longest_context:,} tokens that the model reads, not {model.context_length:,}"
            )
        if model is None or model.max_tokens >= model.context_length:
            return "choose a model that reads more"
        others = ", ".join(model_title(other.path) for other in self._idle_models(session))
        if others:
            return f"put aside {others}, for up to {model.context_length:,} tokens"
        return f"of {model.context_length:,} tokens memory holds {model.max_tokens:,}: choose a smaller model"

    def _idle_models(self, session: ChatSession) -> list[ChatModel]:
        """Models of other tabs whose memory contexts could have: on a GPU, where memory is shared."""
        stats = self.context.engine.stats()
        if stats is None or not stats.device.startswith("cuda"):
            return []
        own = session.model
        if own is None or own.local is None:
            return []
        busy = {str(other.model.path) for other in self.tabs.sessions if other.model and other.busy}
        opened = [other.model for other in self.tabs.sessions if other.model]
        device = stats.device_of(own.local.path)
        found = {
            str(model.path): model
            for model in opened
            if model.local is not None and stats.device_of(model.local.path) == device
        }
        return [model for path, model in found.items() if path != str(own.path) and path not in busy]

    def _room_chosen(self, session: ChatSession, choice: RoomChoice) -> None:
        if choice is RoomChoice.FORK:
            self.call_later(self._fork_summarised, session)
        elif choice is RoomChoice.LARGER:
            self._enlarge(session)
        else:
            session.make_room(Room(str(choice)))

    async def _fork_summarised(self, session: ChatSession) -> None:
        """Go on in a new tab in which a summary stands for the oldest turns; this chat stays as it is."""
        if session not in self.tabs.sessions:
            return
        turn, session.blocked = session.blocked, None
        fork = session.conversation.fork(turn.parent if turn is not None else None)
        index = self.tabs.sessions.index(session) + 1
        waiting = Turn(fork.leaf, turn.text) if turn is not None else None
        await self.open_in_tab(fork, index)
        self.tabs.sessions[index].summarise_first(waiting)

    def _enlarge(self, session: ChatSession) -> None:
        idle = self._idle_models(session)
        model = session.model.local if session.model is not None else None
        if model is not None and model.context_length < model.longest_context:
            self.ask_context()
            return
        if model is None or not idle or model.max_tokens >= model.context_length:
            self.action_choose_model()
            return
        left = len(idle)

        def done(reason: str | None) -> None:
            nonlocal left
            left -= 1
            if reason is not None:
                self.say(reason, "warning")
            if not left:
                session.ask_blocked()

        for other in idle:
            self.context.engine.put_aside(other, done, unload=False)
