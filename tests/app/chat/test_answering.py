"""Answers that are interrupted and go on: thoughts that are ended, loops, and what was stopped."""

import pytest

from app.chat.answers.reading import read_answer
from app.chat.answers.running import RunningAnswer
from app.chat.conversation import AnswerStats, Conversation, Status
from app.chat.events import Notice
from app.chat.reasoning import splitter_for
from app.models.backends.local import LocalModel
from app.models.backends.port import Asked, ChatRequest
from app.models.builtin import builtin_model_path
from engine import Engine, FinishReason, Message, Request, SamplingParams, Thinking, ThinkingSupport
from engine.templates.chat_template import ChatTemplate
from tests.app.chat.test_session_faults import Fakes, Tab, ask, until

THINKING = ThinkingSupport(can_switch=True, has_thoughts=True)
LOOP = [f" word{n}" for n in range(8)]


def tab_of(fakes: Fakes, thinking: str = "auto") -> Tab:
    tab = fakes.tabs[0]
    template = tab.session.model.local.template
    template.thinking_support, template.opened = THINKING, True
    tab.session.conversation.thinking = Thinking.parse(thinking)
    return tab


def answer(tab: Tab):
    return tab.session.conversation.last_answer()


async def grown(tab: Tab, ids: int) -> None:
    await until(lambda: answer(tab) is not None and len(answer(tab).token_ids) >= ids)


async def test_thoughts_that_had_their_budget_are_ended_and_the_answer_goes_on_behind_them():
    fakes = Fakes()
    tab = tab_of(fakes, "3")
    await ask(fakes, tab, "why is that")
    [first] = fakes.engine.generations
    for word in ("a", " b", " c", " too", " many"):
        first.feed(word)
    await until(lambda: len(fakes.engine.generations) == 2)
    second = fakes.engine.generations[1]
    assert first.finished.reason is FinishReason.CANCELLED
    # The question, what was thought up to the budget, and the end of the thoughts.
    assert second.request.prompt_ids == (*first.request.prompt_ids, 0, 1, 2, 900_000)
    assert second.request.answered == 4, "penalties count the thoughts as the answer's"
    second.again()
    second.feed("Because")
    second.finish()
    await until(lambda: not tab.session.busy)
    node = answer(tab)
    assert (node.reasoning, node.text, node.status) == ("a b c", "Because", Status.COMPLETE)
    assert node.token_ids == [0, 1, 2, 900_000, 0] and node.reasoning_tokens == 4
    assert node.stats.tokens == 5 and node.stats.prompt_tokens == len(first.request.prompt_ids)


async def test_thoughts_within_their_budget_are_left_alone_and_a_limit_of_tokens_counts_both_parts():
    fakes = Fakes()
    tab = tab_of(fakes, "3")
    tab.session.conversation.max_tokens = 100
    await ask(fakes, tab, "one")
    fakes.engine.generations[0].feed("a b</think>many words that are no thoughts any more")
    fakes.engine.generations[0].finish()
    await until(lambda: not tab.session.busy)
    assert len(fakes.engine.generations) == 1
    await ask(fakes, tab, "two")
    fakes.engine.generations[1].feed("a b c d")
    await until(lambda: len(fakes.engine.generations) == 3)
    assert fakes.engine.generations[2].request.max_tokens == 100 - 4 - 1


async def test_answer_now_ends_thoughts_by_hand_and_says_where_there_are_none():
    fakes = Fakes()
    tab = tab_of(fakes)
    assert not tab.session.answer_now()
    await ask(fakes, tab, "why")
    fakes.engine.generations[0].feed("hm, let me see")
    await grown(tab, 1)
    assert tab.session.can_answer_now and tab.session.answer_now()
    assert len(fakes.engine.generations) == 2 and not tab.session.can_answer_now
    fakes.engine.generations[1].again()
    fakes.engine.generations[1].feed("So.")
    await until(lambda: answer(tab).text == "So.")
    assert not tab.session.answer_now()
    assert answer(tab).reasoning == "hm, let me see"


async def test_a_choice_that_the_template_has_no_words_for_is_said_once_and_left_out():
    fakes = Fakes()
    tab = tab_of(fakes, "high 9")
    template = tab.session.model.local.template
    for count, text in enumerate(("one", "two")):
        await ask(fakes, tab, text)
        fakes.engine.generations[count].finish()
        await until(lambda: not tab.session.busy)
    said = [event.text for event in tab.events if isinstance(event, Notice)]
    assert said == ["The chat template of m knows thinking auto, on, off: high changes nothing."]
    assert template.thought == [Thinking(budget=9)] * 2


async def test_a_paused_answer_stays_paused_behind_its_thoughts():
    fakes = Fakes()
    tab = tab_of(fakes)
    await ask(fakes, tab, "why")
    fakes.engine.generations[0].feed("hm")
    await grown(tab, 1)
    tab.session.pause()
    assert tab.session.answer_now()
    assert fakes.engine.generations[1].held


async def test_an_answer_that_repeats_itself_ends_with_a_notice_and_goes_on_at_a_key():
    fakes = Fakes()
    tab = fakes.tabs[0]
    await ask(fakes, tab, "tell")
    generation = fakes.engine.generations[0]
    for _ in range(4):
        for number, word in enumerate(LOOP):
            generation.tokens = number
            generation.feed(word)
    await until(lambda: not tab.session.busy)
    node = answer(tab)
    assert node.status is Status.COMPLETE and node.error == "it repeated itself, Alt+G goes on all the same"
    assert node.text == "".join(LOOP * 4)
    tab.session.resume()
    await until(lambda: tab.session.sequence_id == 2)
    again = fakes.engine.generations[1]
    # What stood there comes again first.
    for _ in range(10):
        for number, word in enumerate(LOOP):
            again.tokens = number
            again.feed(word)
    again.tokens = 100
    again.feed(" the end.")
    again.finish()
    await until(lambda: not tab.session.busy)
    assert node.error is None and node.text == "".join(LOOP * 10) + " the end."


async def test_repetition_is_let_be_where_the_settings_say_so():
    fakes = Fakes(stop_repeats=False)
    tab = fakes.tabs[0]
    await ask(fakes, tab, "tell")
    generation = fakes.engine.generations[0]
    for _ in range(8):
        for number, word in enumerate(LOOP):
            generation.tokens = number
            generation.feed(word)
    generation.finish()
    await until(lambda: not tab.session.busy)
    assert answer(tab).error is None and answer(tab).text == "".join(LOOP * 8)


def test_what_parts_of_an_answer_cost_is_added_up():
    first = AnswerStats(30, 10.0, ttft_ms=5.0, cached_tokens=3, prompt_tokens=7, saved_ms=1.0)
    both = first.followed_by(AnswerStats(10, 10.0, ttft_ms=1.0, cached_tokens=40, prompt_tokens=37))
    assert both == AnswerStats(40, 10.0, ttft_ms=5.0, cached_tokens=3, prompt_tokens=7, saved_ms=1.0)


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n<think>\n"
)
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def thinker():
    """The built-in model behind a template that has it think."""
    with Engine("cpu", kv_budget_bytes=64 << 20, debug=True) as engine:
        model = engine.load(builtin_model_path())
        model.template = ChatTemplate(CHATML, model.tokenizer)
        yield model


def asked(model, thinking: str = "auto") -> Asked:
    messages = [Message("user", "Give me some tips for sleeping better at night.")]
    thought = Thinking.parse(thinking)
    chosen = {"temperature", "repetition_penalty"}
    return LocalModel(model).chat(ChatRequest(messages, {}, GREEDY, 60, chosen, thought))


def read(model, one: Asked) -> tuple[RunningAnswer, Conversation, list]:
    chat = Conversation()
    splitter = splitter_for(one.prompt.answer_format, one.prompt.starts_in_reasoning)
    running = RunningAnswer(
        chat, chat.begin_answer(str(model.path), splitter).id, one, LocalModel(model), watched=False
    )
    return running, chat, list(read_answer(running))


def sampled(model, ids, tokens: int) -> list[int]:
    request = Request(tuple(ids), GREEDY, max_tokens=tokens)
    events = list(model.submit(request).events())
    return [token_id for event in events[:-1] for token_id in event.token_ids]


def test_a_real_engine_goes_on_behind_a_forced_end_token_for_token(thinker):
    one = asked(thinker, "12")
    running, chat, _ = read(thinker, one)
    node = chat.nodes[running.node_id]
    ending = [token_id for delta in one.prompt.ending for token_id in delta.token_ids]
    free = sampled(thinker, one.prompt.ids, 12)
    assert node.token_ids[:12] == free
    assert node.token_ids[12 : 12 + len(ending)] == ending
    rest = node.token_ids[12 + len(ending) :]
    assert rest and rest == sampled(thinker, [*one.prompt.ids, *free, *ending], 60 - 12 - len(ending))
    assert node.reasoning == thinker.tokenizer.decode(free).strip()
    # The blocks of the question and of the thoughts are found again.
    finished = running.generation.finished
    assert finished.cached_tokens >= 32
    assert running.cost(finished).tokens == len(node.token_ids)
