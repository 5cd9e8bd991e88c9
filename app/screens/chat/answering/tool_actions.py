"""The chat screen's part of tools: asks about calls in view, and switches servers on and off."""

from app.chat.session import ChatSession
from app.chat.tool_use.use import AskedCall, Choice
from app.screens.chat.tab_actions import TabActions
from app.tools.state import State


class ToolActions(TabActions):
    """Asks whether calls of the chat in front may run."""

    _asking: AskedCall | None = None
    """The call of the dialog that is open."""

    async def show_active(self) -> None:
        """And ask about the call that has waited for that."""
        await super().show_active()
        self.ask_call()

    def ask_call(self) -> None:
        """Ask whether a tool may run, if the chat in front waits for that."""
        session = self.active
        asked = session.tools.asking
        if asked is None or asked is self._asking:
            return
        from app.screens.dialogs.tools.ask_call import AskCallScreen

        def answered(choice: Choice | None) -> None:
            self._asking = None
            # The answer may have been stopped since.
            if session.tools.asking is asked:
                session.tools.decide(choice) if choice is not None else session.stop()

        self._asking = asked
        self.app.push_screen(AskCallScreen(asked), answered)

    async def action_tools(self, rest: str = "") -> bool:
        """Show the servers of tools, or switch the named one on or off; tell whether there is one."""
        session, servers = self.active, self.context.services.tools
        if servers is None or not self.may_write():
            return False
        name = rest.strip()
        if name and name not in servers.named:
            named = ", ".join(servers.named) or "none"
            self.say(f"The settings name no server {name!r} of tools; they name {named}.", "warning")
            return False
        if name:
            self.run_worker(self._switch(session, name), group="switch")
            return True
        from app.screens.dialogs.tools.servers import ToolServersScreen

        self.app.push_screen(
            ToolServersScreen(
                servers.states, lambda: session.conversation.tools, lambda name: self._switch(session, name)
            )
        )
        return True

    async def _switch(self, session: ChatSession, name: str) -> None:
        """Switch a server on or off in a chat, and start it; one that has failed is tried anew."""
        servers = self.context.services.tools
        assert servers is not None
        on = name not in session.conversation.tools
        session.tools.switch(name, on=on)
        self.say(f"Tools of {name} are {'offered' if on else 'not offered any more'} in this chat.")
        if on:
            if servers.state(name).state is State.FAILED:
                await servers.stop(name)
            for problem in (await servers.ready([name])).problems:
                self.say(problem, "warning")
