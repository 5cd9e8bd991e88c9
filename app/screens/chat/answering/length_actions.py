"""The chat screen's actions on how long the chats of a model may become."""

import asyncio

from app.chat.message_cost import kv_bytes
from app.chat.session import ChatSession
from app.models.builtin import model_title
from app.models.listed.notes import ModelNotes
from app.models.port import ModelPort
from app.screens.chat.model_actions import ModelActions
from app.screens.dialogs.models.context_length import LEAST, ContextFacts, ContextLength
from app.widgets.contents import context_use
from engine import EngineError

_ALL = "all"


class LengthActions(ModelActions):
    """Asks for a length, has the engine keep to it, and remembers it for the model."""

    async def action_context(self, rest: str = "") -> bool:
        """Choose how long chats with this model may become; tell whether what was written is understood."""
        model, session = self._model_here(), self.active
        if model is None:
            return False
        if not rest:
            self.ask_context()
            return True
        figures = rest.replace(",", "").replace("_", "")
        if rest.strip().casefold() != _ALL and not figures.isdecimal():
            self.say(
                f"/context: {rest!r} is no number of tokens; write /context 8192 or /context all.", "warning"
            )
            return False
        tokens = model.longest_context if rest.strip().casefold() == _ALL else int(figures)
        least = min(LEAST, model.longest_context)
        if not least <= tokens <= model.longest_context:
            self.say(
                f"/context: {tokens:,} is not between {least:,} and {model.longest_context:,}.", "warning"
            )
            return False
        await self._set_context(session, model, tokens)
        return True

    def ask_context(self) -> None:
        """Show what each length costs."""
        model, session = self._model_here(), self.active
        stats = self.context.engine.stats()
        loaded = (
            [one for one in stats.models if model is not None and one.model_id == model.id] if stats else []
        )
        if model is None or stats is None or not loaded:
            return
        facts = ContextFacts(
            model_title(model.path),
            model.context_length,
            model.longest_context,
            stats.kv_bytes_total,
            lambda tokens: kv_bytes(loaded[0], tokens),
            self._longest_chat(model),
        )

        def chosen(tokens: int) -> None:
            self.run_worker(self._set_context(session, model, tokens), group="context", exit_on_error=False)

        self.ask(ContextLength(facts), chosen)

    def _model_here(self) -> ModelPort | None:
        """The model of the chat in front; says why there is none whose context could be chosen."""
        session = self.active
        if session.model is None:
            self.say(session.models.error or session.missing)
        elif session.model.local is None:
            self.say(f"{model_title(session.model.path)} runs at an endpoint, which decides what is read.")
        return session.model.local if session.model is not None else None

    def _longest_chat(self, model: ModelPort) -> int:
        """Tokens of the longest chat that is open with a model."""
        sessions = [s for s in self.tabs.sessions if s.model is not None and s.model.local is model]
        return max(((context_use(session) or (0, 0))[0] for session in sessions), default=0)

    async def _set_context(self, session: ChatSession, model: ModelPort, tokens: int) -> None:
        notes, title = ModelNotes(self.context.locations.notes_file), model_title(model.path)
        try:
            await asyncio.to_thread(model.limit_context, tokens)
            kept = None if tokens == model.longest_context else tokens
            await asyncio.to_thread(notes.keep_context, model.path, kept)
        except EngineError as error:
            self.say(f"The context of {title} stays as it is: {error}.", "warning")
            return
        except OSError as error:
            self.say(f"This is not remembered: {error.filename}: {error.strerror}.", "warning")
        short = f"; memory holds {model.max_tokens:,} now" if model.max_tokens < tokens else ""
        self.say(f"Chats with {title} may have {tokens:,} tokens{short}.")
        session.ask_blocked()
        self.beat.draw()
