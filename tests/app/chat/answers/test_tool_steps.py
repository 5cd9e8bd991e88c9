"""Tools in a turn: what is called is asked about, run while it is looked at, and gone on from."""

import pytest

from app.chat.conversation import Role, Status
from app.chat.events import CallAsked, Notice, TabState
from app.chat.tool_use.use import MOST_STEPS, Choice
from app.tools.results import ToolResult
from app.writing.fan import read_wish
from engine import FinishReason, ToolCall
from tests.app.chat.test_session_faults import Fakes, Tab, ask, until
from tests.app.tools.scripted import HERMES, ScriptedServers, call_text


class Stage:
    """A tab whose model may call tools."""

    def __init__(self, *, seen=True, **settings):
        self.fakes = Fakes()
        self.servers = ScriptedServers(**settings)
        self.tab: Tab = self.fakes.tabs[0]
        self.session = self.tab.session
        self.session.tools._servers = self.servers
        self.session.conversation.tools = ("files",)
        self.template = self.session.model.local.template
        self.template.tool_format = HERMES
        self.session.tools.look(seen)

    @property
    def generations(self):
        return self.fakes.engine.generations

    @property
    def path(self):
        return self.session.conversation.path()

    @property
    def results(self):
        return [node for node in self.path if node.role is Role.TOOL]

    async def answered(self, text):
        """The model answers the newest prompt."""
        self.generations[-1].feed(text)
        self.generations[-1].finish()

    async def called(self, text=None):
        """Ask, and have the model call."""
        await ask(self.fakes, self.tab, "what is in a.txt")
        await self.answered(text or "I look. " + call_text())

    async def asked(self):
        await until(lambda: self.session.tools.asking is not None)

    async def next_prompt(self, count):
        await until(lambda: len(self.generations) == count and self.session.sequence_id is not None)

    async def idle(self):
        await until(lambda: not self.session.busy)

    def said(self):
        return [event.text for event in self.tab.events if isinstance(event, Notice)]


async def test_a_call_is_asked_about_run_and_gone_on_from():
    stage = Stage()
    await stage.called()
    await stage.asked()
    asking = stage.session.tools.asking
    assert (asking.call.name, asking.call.arguments, asking.tool.server) == (
        "read",
        {"path": "a.txt"},
        "files",
    )
    assert stage.session.state is TabState.ASKING and stage.servers.calls == []
    assert any(isinstance(event, CallAsked) for event in stage.tab.events)
    stage.servers.held = True
    stage.session.tools.decide(Choice.ONCE)
    await until(lambda: stage.servers.calls)
    assert stage.session.state is TabState.CALLING
    stage.servers.going.set()
    await stage.next_prompt(2)
    [definition, _] = stage.template.offered[-1]
    assert definition["function"]["name"] == "read"
    _, answer, result = stage.template.messages
    assert (answer.content, answer.tool_calls) == ("I look.", (answer.tool_calls[0],))
    assert answer.tool_calls[0] == ToolCall(result.tool_call_id, "read", {"path": "a.txt"})
    assert (result.role, result.content, result.tool_name) == ("tool", "hello", "read")
    # The answer is read by the ids that the model wrote.
    assert 1 in stage.template.calls[-1][1]
    await stage.answered("It says hello.")
    await stage.idle()
    assert [node.text for node in stage.path] == ["what is in a.txt", "I look.", "hello", "It says hello."]
    assert [node.status for node in stage.path] == [Status.COMPLETE] * 4
    assert stage.session.state is TabState.IDLE


async def test_several_calls_run_in_order_and_one_word_may_stand_for_all():
    stage = Stage()
    await stage.called(call_text() + call_text(path='"b.txt"') + call_text("list", "1"))
    await stage.asked()
    assert [node.status for node in stage.results] == [Status.STREAMING] * 3
    stage.session.tools.decide(Choice.ALWAYS)
    await until(lambda: len(stage.servers.calls) == 2)
    await until(lambda: stage.session.tools.asking is not None)
    assert stage.session.tools.asking.call.name == "list"
    stage.session.tools.decide(Choice.NO)
    await stage.next_prompt(2)
    assert stage.servers.calls == [("read", {"path": "a.txt"}), ("read", {"path": "b.txt"})]
    refused = stage.results[-1]
    assert (refused.status, refused.error) == (Status.STOPPED, "refused")
    assert stage.template.messages[-1].content == "The user refused this call."
    # What runs always runs in this chat alone.
    other = stage.fakes.tabs[1].session.tools
    assert other._always == set()


async def test_what_the_settings_allow_is_not_asked_about():
    stage = Stage(allow=("read",))
    await stage.called()
    await stage.next_prompt(2)
    assert stage.servers.calls and not any(isinstance(event, CallAsked) for event in stage.tab.events)


async def test_nothing_runs_while_the_chat_is_not_looked_at():
    stage = Stage(seen=False, allow=("*",))
    await stage.called()
    await until(lambda: stage.session.state is TabState.ASKING)
    assert stage.servers.calls == [] and stage.session.tools.asking is None
    stage.session.tools.look(True)
    await stage.next_prompt(2)
    assert len(stage.servers.calls) == 1


async def test_a_call_that_is_asked_about_waits_until_the_chat_is_looked_at():
    stage = Stage(seen=False, hidden=True)
    await stage.called()
    await until(lambda: stage.session.state is TabState.ASKING)
    assert stage.session.tools.asking is None
    stage.session.tools.look(True)
    await stage.asked()


async def test_what_may_run_hidden_runs_where_it_is_allowed():
    stage = Stage(seen=False, hidden=True, allow=("read",))
    await stage.called()
    await stage.next_prompt(2)
    assert len(stage.servers.calls) == 1


@pytest.mark.parametrize("when", ["asking", "running", "hidden"])
async def test_escape_stops_the_turn_wherever_it_stands(when):
    stage = Stage(seen=when != "hidden")
    await stage.called(call_text() + call_text())
    if when == "hidden":
        await until(lambda: stage.session.state is TabState.ASKING)
    else:
        await stage.asked()
    if when == "running":
        stage.servers.held = True
        stage.session.tools.decide(Choice.ONCE)
        await until(lambda: stage.servers.calls)
    assert stage.session.stop()
    await stage.idle()
    assert [(node.status, node.error) for node in stage.results] == [(Status.STOPPED, "stopped")] * 2
    assert len(stage.generations) == 1 and stage.session.state is TabState.IDLE
    stage.session.resume()
    await stage.next_prompt(2)
    assert stage.template.messages[-1].content == "The user stopped this call; there is no result."
    await stage.answered("Then not.")
    await stage.idle()
    assert stage.path[-1].text == "Then not."


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (call_text("write"), "there is no tool write; there are read, list"),
        (call_text(path="3"), "arguments['path']: 3 is not of type 'string'"),
        ('<tool_call>{"name": "read", "arguments": "a"}</tool_call>', "the arguments are no JSON object"),
    ],
)
async def test_a_call_that_cannot_run_is_not_asked_about_and_the_model_hears_why(text, problem):
    stage = Stage()
    await stage.called(text)
    await stage.next_prompt(2)
    [result] = stage.results
    assert (result.status, result.error) == (Status.ERROR, problem)
    assert stage.template.messages[-1].content == f"Not run: {problem}."
    assert stage.servers.calls == []


async def test_a_tool_that_fails_is_gone_on_from():
    stage = Stage(allow=("*",))
    stage.servers.result = ToolResult("the disk is full", failed=True)
    await stage.called()
    await stage.next_prompt(2)
    assert stage.results[0].status is Status.ERROR
    assert stage.template.messages[-1].content == "the disk is full"


async def test_a_turn_ends_after_so_many_steps_and_can_be_gone_on_with():
    stage = Stage(allow=("*",))
    await stage.called()
    for step in range(2, MOST_STEPS + 2):
        await stage.next_prompt(step)
        await stage.answered(call_text())
    await stage.idle()
    assert len(stage.servers.calls) == MOST_STEPS
    assert stage.results[-1].status is Status.STOPPED
    assert f"Tools have run {MOST_STEPS} times in this turn; Alt+G lets it go on." in stage.said()
    stage.session.resume()
    await stage.next_prompt(MOST_STEPS + 2)
    await stage.answered(call_text())
    await stage.next_prompt(MOST_STEPS + 3)
    assert len(stage.servers.calls) == MOST_STEPS + 1


async def test_a_new_message_begins_to_count_anew_and_waits_for_the_turn_to_end():
    stage = Stage(allow=("*",))
    stage.servers.held = True
    await stage.called()
    await until(lambda: stage.servers.calls)
    stage.session.send("and b.txt")
    assert stage.session.queued == ["and b.txt"]
    stage.servers.going.set()
    await stage.next_prompt(2)
    await stage.answered("hello")
    await stage.next_prompt(3)
    assert stage.template.messages[-1].content == "and b.txt" and stage.session._step == 0


async def test_an_answer_that_is_stopped_or_cut_off_calls_nothing():
    stage = Stage(allow=("*",))
    await ask(stage.fakes, stage.tab, "a")
    stage.generations[-1].feed(call_text())
    stage.generations[-1].finish(FinishReason.CANCELLED)
    await stage.idle()
    assert stage.servers.calls == [] and stage.results == []
    await ask(stage.fakes, stage.tab, "b")
    stage.generations[-1].feed(call_text())
    stage.generations[-1].finish(FinishReason.LENGTH)
    await stage.idle()
    assert stage.servers.calls == []
    # A call that has no result is not told of: templates want one for each.
    await ask(stage.fakes, stage.tab, "c")
    assert all(message.tool_calls == () for message in stage.template.messages)


async def test_a_model_without_tools_says_so_once_and_reads_results_as_texts():
    stage = Stage(allow=("*",))
    await stage.called()
    await stage.next_prompt(2)
    await stage.answered("It says hello.")
    await stage.idle()
    stage.template.tool_format = None
    await ask(stage.fakes, stage.tab, "again")
    assert stage.template.offered[-1] == ()
    assert [message.role for message in stage.template.messages] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert stage.template.messages[2].content == "[Result of read]\nhello"
    await stage.answered(call_text())
    await stage.idle()
    assert stage.path[-1].text == call_text() and stage.path[-1].calls == ()
    await ask(stage.fakes, stage.tab, "and again")
    told = [text for text in stage.said() if "takes no tools" in text]
    assert told == ["The chat template of m takes no tools: it answers without them."]


async def test_servers_that_are_not_there_are_told_of_once():
    stage = Stage()
    stage.servers.problems = ("Tools: files ended with code 3.",)
    stage.servers.tools = []
    await ask(stage.fakes, stage.tab, "a")
    await stage.answered("fine")
    await stage.idle()
    await ask(stage.fakes, stage.tab, "b")
    assert stage.said() == ["Tools: files ended with code 3."]
    assert stage.template.offered == [(), ()]


async def test_a_chat_in_which_no_server_is_switched_on_offers_nothing():
    stage = Stage()
    stage.session.tools.switch("files", on=False)
    await ask(stage.fakes, stage.tab, "a")
    assert stage.template.offered == [()] and stage.session.conversation.tools == ()
    stage.session.tools.switch("files", on=True)
    assert stage.session.conversation.tools == ("files",)


async def test_leaving_in_the_middle_keeps_what_was_called_as_stopped():
    stage = Stage()
    await stage.called()
    await stage.asked()
    stage.session.shut_down()
    assert [(node.status, node.error) for node in stage.results] == [(Status.STOPPED, "stopped")]


async def test_a_closed_chat_calls_nothing_any_more():
    stage = Stage()
    await stage.called()
    await stage.asked()
    released = []
    stage.session.models.release = lambda: released.append(1)
    stage.session.close()
    await until(lambda: stage.session._task is None)
    assert released == [1] and stage.servers.calls == [] and len(stage.generations) == 1


async def test_a_fault_in_the_middle_ends_this_turn_alone(monkeypatch):
    stage = Stage(allow=("*",))

    async def fail(*_args):
        raise ValueError("wet")

    monkeypatch.setattr(stage.servers, "call", fail)
    await stage.called()
    await stage.idle()
    assert stage.results[0].status is Status.STOPPED
    assert any("The app failed here (ValueError: wet)" in text for text in stage.said())
    await ask(stage.fakes, stage.tab, "again")


async def test_calls_between_marks_that_are_tokens_are_found_behind_thoughts():
    stage = Stage(allow=("*",))
    await ask(stage.fakes, stage.tab, "a")
    generation = stage.generations[-1]
    generation.feed("<think>I should look</think>I look.")
    generation.feed("", "<tool_call>")
    generation.feed('{"name": "read", "arguments": {"path": "a.txt"}}')
    generation.feed("", "</tool_call>")
    generation.finish()
    await stage.next_prompt(2)
    answer = stage.path[1]
    assert (answer.reasoning, answer.text) == ("I should look", "I look.")
    assert stage.servers.calls == [("read", {"path": "a.txt"})]


async def test_what_looks_like_a_call_and_is_none_stays_text():
    stage = Stage(allow=("*",))
    await ask(stage.fakes, stage.tab, "a")
    await stage.answered('So: <tool_call>{"name": broken')
    await stage.idle()
    assert stage.path[-1].text == 'So:<tool_call>{"name": broken' and stage.results == []


async def fanned(stage, wish="seeds 1 2"):
    """Two answers to one message, both asked for."""
    assert stage.session.fan_out("what is in a.txt", read_wish(wish).variants)
    await until(lambda: stage.generations)
    stage.generations[0].feed("I look. ")
    await until(lambda: len(stage.session.running) == 2 and stage.session._task is None)
    return stage.generations[:2]


async def test_answers_side_by_side_have_their_tools_run_one_after_the_other():
    stage = Stage()
    first, second = await fanned(stage)
    session, fan = stage.session, stage.session.fan
    for stream in (first, second):
        stream.feed(call_text())
        stream.finish()
    await stage.asked()
    assert session.tools.asking.who == "Answer 1, seed 1,"
    second_id = fan.columns[1].node_id
    await until(lambda: session.waits_to_call(second_id))
    session.tools.decide(Choice.ONCE)
    await until(lambda: session.tools.asking is not None and session.tools.asking.who.startswith("Answer 2"))
    session.tools.decide(Choice.NO)
    await until(lambda: len(stage.generations) == 4 and len(session.running) == 2)
    assert [call[-2:] for call in stage.servers.calls] == [("read", {"path": "a.txt"})]
    assert {stream.request.sampling.seed for stream in stage.generations[2:]} == {1, 2}
    for stream in stage.generations[2:]:
        stream.feed("It says hello.")
        stream.finish()
    await stage.idle()
    roles = [[node.role for node in session.conversation.branch_from(column.first)] for column in fan.columns]
    assert roles == [[Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]] * 2
    results = [session.conversation.branch_from(column.first)[1] for column in fan.columns]
    assert [(one.status, one.text) for one in results] == [
        (Status.COMPLETE, "hello"),
        (Status.STOPPED, "The user refused this call."),
    ]
    # The branch that is shown is the first one, to its end.
    assert session.conversation.leaf == fan.columns[0].node_id and fan.over


async def test_an_answer_that_is_chosen_goes_on_and_the_calls_of_others_are_stopped():
    stage = Stage()
    first, second = await fanned(stage)
    session, fan = stage.session, stage.session.fan
    second.feed(call_text())
    second.finish()
    await stage.asked()
    first.feed(call_text())
    first.finish()
    # Chosen in the same moment in which the other one's calls begin.
    await until(lambda: session.waits_to_call(fan.columns[0].node_id))
    session.promote(fan.columns[1].node_id)
    session.tools.decide(Choice.ONCE)
    await until(lambda: len(session.running) == 1)
    stage.generations[-1].feed("It says hello.")
    stage.generations[-1].finish()
    await stage.idle()
    assert [node.text for node in stage.path] == ["what is in a.txt", "", "hello", "It says hello."]
    assert len(stage.servers.calls) == 1


async def test_stopping_answers_side_by_side_stops_their_calls():
    stage = Stage()
    first, second = await fanned(stage)
    for stream in (first, second):
        stream.feed(call_text())
        stream.finish()
    await stage.asked()
    assert stage.session.stop()
    await stage.idle()
    assert stage.servers.calls == [] and stage.session.fan.over
    [result] = stage.results
    assert (result.status, result.error) == (Status.STOPPED, "stopped")


async def test_rounds_of_calls_of_one_of_several_answers_end():
    stage = Stage(allow=("read",))
    first, second = await fanned(stage)
    second.finish()
    for count in range(1, MOST_STEPS + 2):
        stream = first if count == 1 else stage.generations[-1]
        stream.feed(call_text())
        stream.finish()
        if count <= MOST_STEPS:
            await until(lambda count=count: len(stage.generations) == 2 + count and stage.session.running)
    await stage.idle()
    assert len(stage.servers.calls) == MOST_STEPS and stage.session.fan.over
    assert stage.path[-1].error == "not run, there were too many"
