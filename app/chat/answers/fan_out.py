"""One message that is answered several times at once.

Answers of one model under one system prompt have the same prompt. One of them reads it; the others are
asked for once it has, and find its blocks in the prefix cache.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from app.chat.answers.running import RunningAnswer
from app.chat.conversation import Conversation, MessageNode
from app.chat.prompt import prompt_messages, submitted
from app.chat.shared import Services
from app.models.backends.port import Asked, ChatModel, ChatRequest
from app.models.loader import EngineService
from app.tools.offered import Offered
from app.writing.fan import Variant
from engine import EngineError, LoadPlan, RequestError, SamplingParams


@dataclass(slots=True)
class FanColumn:
    """One of the answers; it has a message once the engine was asked for it."""

    variant: Variant
    first: str | None = None
    """Its first message."""
    node_id: str | None = None
    """Its newest answer: another than the first one where tools have run."""
    error: str | None = None
    """Why it was not asked for."""
    steps: int = 0
    """How many times tools have run for it."""


Begin = Callable[[FanColumn, ChatModel, Asked], RunningAnswer]


class FanOut:
    """Asks for every answer; whose stream they are is the session's."""

    def __init__(
        self, conversation: Conversation, parent: str | None, text: str | None, variants: Sequence[Variant]
    ) -> None:
        """text: a new message after `parent`; None: `parent` is the message that is answered."""
        self.parent, self.text = parent, text
        self.columns = [FanColumn(variant) for variant in variants]
        self.asked: str | None = parent if text is None else None
        """The message that is answered, once it stands in the conversation."""
        self._conversation = conversation
        self._borrowed: dict[Path, ChatModel] = {}
        self.over = False
        """Whether all of them have ended."""

    def column_of(self, node_id: str) -> FanColumn | None:
        """Return the column whose newest answer this is, until all are over."""
        columns = () if self.over else self.columns
        return next((column for column in columns if column.node_id == node_id), None)

    async def run(self, own: ChatModel, services: Services, tools: Offered, begin: Begin) -> None:
        """Ask for all answers; `own` is the chat's model. What cannot be asked for says so in its column."""
        groups: dict[tuple[str | None, str | None], list[FanColumn]] = {}
        for column in self.columns:
            groups.setdefault((column.variant.model, column.variant.system), []).append(column)
        await asyncio.gather(*(self._ask(group, own, services, tools, begin) for group in groups.values()))

    def give_back(self, engine: EngineService) -> None:
        """It is over: give back the models that were opened for it."""
        self.over = True
        while self._borrowed:
            engine.release(self._borrowed.popitem()[1])

    async def _ask(
        self, columns: Sequence[FanColumn], own: ChatModel, services: Services, tools: Offered, begin: Begin
    ) -> None:
        first, *others = columns
        try:
            model = await self._model(first.variant, own, services.engine)
            asked = await submitted(services.encoders, partial(self._submit, first.variant, model, tools))
            answer = begin(first, model, asked)
            for column in others:
                await answer.begun.wait()
                again = partial(self._submit_again, asked, column.variant, model)
                begin(column, model, await submitted(services.encoders, again))
        except EngineError as error:
            for column in columns:
                column.error = str(error) if column.node_id is None else None

    def go_on(self, column: FanColumn, model: ChatModel, tools: Offered, result: str) -> Asked:
        """Ask for what follows the results of a column's calls."""
        return self._asked(column.variant, model, tools, self._conversation.path(result), None)

    def _submit(self, variant: Variant, model: ChatModel, tools: Offered) -> Asked:
        path = self._conversation.path(self.parent) if self.parent is not None else []
        return self._asked(variant, model, tools, path, self.text)

    def _asked(
        self,
        variant: Variant,
        model: ChatModel,
        tools: Offered,
        path: Sequence[MessageNode],
        text: str | None,
    ) -> Asked:
        conversation = self._conversation
        system = conversation.system_prompt if variant.system is None else variant.system
        messages, kept = prompt_messages(system, path, text, str(model.path))
        request = ChatRequest(
            *(messages, kept, self._sampling(variant, model), conversation.max_tokens),
            chosen=conversation.chosen | variant.sampling.keys(),
            thinking=conversation.thinking,
            priority=conversation.priority,
            label=conversation.title,
            owner=conversation.id,
            tools=tools.definitions,
        )
        return model.chat(request)

    def _submit_again(self, asked: Asked, variant: Variant, model: ChatModel) -> Asked:
        chosen = self._conversation.chosen | variant.sampling.keys()
        return asked.again(self._sampling(variant, model), chosen)

    def _sampling(self, variant: Variant, model: ChatModel) -> SamplingParams:
        """The chat's values, those that the model's makers recommend, and the answer's own."""
        conversation = self._conversation
        own: dict[str, float] = dict(variant.sampling)
        sampling = replace(conversation.sampling, **own)  # type: ignore[arg-type]
        chosen = conversation.chosen | own.keys()
        sampling = model.recommended().applied(sampling, chosen)
        if "seed" in own and not sampling.temperature:
            raise RequestError(
                "At temperature 0 every seed gives the same answer: write /fan temperature 0.5 1, or raise "
                "the temperature in the chat's settings."
            )
        return sampling

    async def _model(self, variant: Variant, own: ChatModel, engine: EngineService) -> ChatModel:
        if variant.model is None or Path(variant.model) == own.path:
            return own
        path = Path(variant.model)
        model = await borrowed(engine, path)
        self._borrowed[path] = model
        return model


async def borrowed(engine: EngineService, path: Path) -> ChatModel:
    """Open a model that is given back later; EngineError where models of tabs would have to make room."""
    opened: asyncio.Future[ChatModel] = asyncio.get_running_loop().create_future()

    def fail(reason: str) -> None:
        opened.set_exception(EngineError(reason))

    def refuse(plan: LoadPlan) -> None:
        job.cancel()
        fail(f"{plan.name} does not fit beside the models of the open tabs; open it in a tab, which asks.")

    job = engine.load(path, opened.set_result, fail, lambda _fraction, _what: None, refuse)
    try:
        return await opened
    except asyncio.CancelledError:
        job.cancel()
        raise
