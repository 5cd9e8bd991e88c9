"""One chat in two windows, in plain mode: given away when another asks for it, taken when it is free."""

import asyncio

from app.plain.talk import Talk

_LOOK_SECONDS = 0.5


class Windows:
    """Looks from time to time what other windows want, and which chats they leave."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Give away what another window asks for; write in what no other one does."""
        history, tabs = self._talk.context.history, self._talk.tabs
        for chat_id in await asyncio.to_thread(history.takeovers_asked):
            index = tabs.index_of(chat_id)
            session = tabs.sessions[index] if index >= 0 else None
            if session is not None and not session.read_only and not session.stop():
                session.read_only = True
                tabs.save()
                await asyncio.to_thread(history.flush)
                self._talk.say(f"{session.conversation.title} goes on in another window.")
        for session in [session for session in tabs.sessions if session.read_only]:
            chat_id = session.conversation.id
            if await asyncio.to_thread(history.claim_writing, chat_id):
                conversation = await asyncio.to_thread(history.load, chat_id) or session.conversation
                fresh = tabs.replace(session, conversation, read_only=False)
                tabs.save()
                tabs.open_model(fresh)
                self._talk.say(f"{conversation.title} is written here now.")
