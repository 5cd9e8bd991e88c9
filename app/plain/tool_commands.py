"""The commands of plain mode about tools: which are switched on, and whether a call may run."""

from app.chat.tool_use.use import Choice
from app.plain.talk import Talk
from app.screens.context import AppContext
from app.screens.dialogs.tools.state_words import NONE_NAMED, state_text


class ToolCommands:
    """Carries them out in the chat in front."""

    _talk: Talk
    _context: AppContext

    async def do_tools(self, rest: str) -> None:
        """[NAME]: switch a server of tools on or off in this chat; without a name list them"""
        servers, session = self._context.services.tools, self._talk.active
        named = servers.named if servers is not None else {}
        if servers is None or not named:
            self._talk.say(NONE_NAMED)
            return
        if rest and rest not in named:
            self._talk.say(f"There is no server {rest}; there are {', '.join(named)}.")
        elif rest and not session.read_only:
            session.tools.switch(rest, on=rest not in session.conversation.tools)
            for problem in (await servers.ready(session.conversation.tools)).problems:
                self._talk.say(problem)
        for state in servers.states():
            switched = "on" if state.name in session.conversation.tools else "off"
            tools = ", ".join(tool.name for tool in state.tools)
            self._talk.say(f"{state.name} is {switched} ({state_text(state)}){': ' if tools else ''}{tools}")

    async def do_yes(self, _: str) -> None:
        """Let a tool run once, or other models make room, where that was asked"""
        session = self._talk.active
        if session.tools.asking is None and session.models.asked is None:
            self._talk.say("Nothing was asked.")
        session.tools.decide(Choice.ONCE)
        session.models.agree()

    async def do_always(self, _: str) -> None:
        """Let the tool that was asked for run in this chat from now on"""
        self._decide(Choice.ALWAYS)

    async def do_no(self, _: str) -> None:
        """Do not let the tool run that was asked for; the model hears of it"""
        self._decide(Choice.NO)

    def _decide(self, choice: Choice) -> None:
        if self._talk.active.tools.asking is None:
            self._talk.say("No tool was asked for.")
        self._talk.active.tools.decide(choice)
