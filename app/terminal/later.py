"""Calls that come once, a while from now.

Not by `set_timer`: Textual's timers leave out what they are late for, and one that is to call once never
calls where the thread is kept from running for longer than its delay just as it starts.
"""

import asyncio
from collections.abc import Callable

from textual.message_pump import MessagePump


def later(pump: MessagePump, seconds: float, callback: Callable[[], object]) -> None:
    """Call from the pump's queue after so many seconds, however late; from the UI's thread.

    Nothing is called once the pump has ended.
    """
    asyncio.get_running_loop().call_later(seconds, pump.call_next, callback)
