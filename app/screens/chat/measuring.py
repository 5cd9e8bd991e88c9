"""The chat screen's action that measures the model of the chat in front."""

from app.chat.session import ChatSession
from app.models.builtin import model_title
from app.models.port import Vocabulary
from app.screens.chat.answer_actions import AnswerActions


class MeasureActions(AnswerActions):
    """Measures a model beside what all chats do."""

    def action_bench(self) -> None:
        """Measure how fast the model of this chat runs."""
        session = self.active
        if session.models.loading:
            self.say("The model is still being opened.")
        elif session.model is None:
            self.say(session.models.error or session.missing)
        elif session.model.local is None:
            title = model_title(session.model.path)
            self.say(f"{title} runs at an endpoint; how fast that is stands under each of its answers.")
        else:
            self.run_worker(self._measure(session), group="bench", exit_on_error=False)

    async def _measure(self, session: ChatSession) -> None:
        """Once the model is awake; who makes room for it is asked about as for a message."""
        from app.bench.short import ShortBench
        from app.screens.dialogs.models.bench import BenchScreen

        model = await session.models.awake()
        local = model.local if model is not None else None
        if local is None or model is None or session is not self.active:
            return
        title, vocabulary = model_title(model.path), local.tokenizer
        if not isinstance(vocabulary, Vocabulary):
            self.say(f"{title} cannot be measured: its tokenizer does not tell its ids.")
            return

        def make() -> ShortBench:
            return ShortBench(title, local, vocabulary, self.context.engine)

        self.app.push_screen(BenchScreen(title, make, self.copy))
