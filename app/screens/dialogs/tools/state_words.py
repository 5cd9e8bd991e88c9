"""What is said of servers of tools, in dialogs and in plain mode."""

from app.tools.state import ServerState, State

NONE_NAMED = (
    "The settings name no servers of tools. A section such as [tools.files] with command and args adds one; "
    "README tells more."
)


def state_text(state: ServerState) -> str:
    """Say how a server is doing, in a few words."""
    if state.state is State.READY:
        count = len(state.tools)
        return f"ready, {count} tool{'' if count == 1 else 's'}"
    if state.state is State.OFF:
        return "not started"
    return " ".join(state.why.split()) if state.why else str(state.state)
