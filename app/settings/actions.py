"""Every action of the app, once: bindings, footer hints, help screen and palette are made of this.

An action `id` is carried out by `action_<id>` of the chat screen, and it is also the name under
which the settings file can give it other keys.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Action:
    """One thing the reader can do; `keys` are Textual key names, comma separated.

    `takes` is what may be written behind its slash command: examples, and what they mean.
    """

    id: str
    title: str
    keys: str
    group: str
    help: str = ""
    palette: bool = True
    takes: tuple[tuple[str, str], ...] = ()


FIND_FORMS = (("WORD", "Everything that is written behind it is looked for"),)
CODE_FORMS = (("2", "The second code block of the answer in view"),)
SAVE_FORMS = (("2 FILE", "The second code block; without a name into a file named by its language"),)
OPEN_FORMS = (("2", "The second code block; what is changed in the editor is copied"),)
LINK_FORMS = (("2", "Open the second link of the answer in view"),)

ACTIONS: tuple[Action, ...] = (
    Action("new_tab", "New chat", "ctrl+t", "Chats", "Open an empty chat in a new tab"),
    Action("close_tab", "Close chat", "alt+w,f10", "Chats", "Close this tab; asks while it is answering"),
    Action("chats", "All chats", "ctrl+l", "Chats", "Open, search, tag and delete chats, closed ones too"),
    Action("fork", "Fork chat", "f9", "Chats", "Go on from any message in a new tab; this chat stays"),
    Action("rename_tab", "Rename chat", "f2", "Chats", "Give this chat another title"),
    Action("previous_tab", "Previous chat", "ctrl+pageup,ctrl+shift+tab", "Chats", "Go one tab left"),
    Action("next_tab", "Next chat", "ctrl+pagedown,ctrl+tab", "Chats", "Go one tab right"),
    Action("choose_model", "Choose model", "ctrl+o", "Model", "Switch this chat to another model file"),
    Action(
        "tab_settings",
        "Chat settings",
        "f8",
        "Model",
        "System prompt, sampling settings and priority",
    ),
    Action(
        "engine_view",
        "Engine view",
        "f12,alt+k",
        "View",
        "A map of context memory, the last ticks, what each chat costs",
    ),
    Action("toggle_panel", "Live panel", "f3", "View", "Show or hide what the engine is doing"),
    Action("stop", "Stop", "escape", "Answer", "Stop the answer and keep what is there", palette=False),
    Action("pause", "Pause or go on", "f5", "Answer", "Pause the answer; again to let it go on"),
    Action("regenerate", "Regenerate", "ctrl+r", "Answer", "Write the last answer again, as an alternative"),
    Action("edit_last", "Edit last message", "f4", "Answer", "Change the last message and ask again"),
    Action(
        "open_paste",
        "Open or fold text",
        "ctrl+g",
        "Writing",
        "Show what a chip stands for; fold what is selected",
    ),
    Action("edit", "Write in $EDITOR", "alt+e", "Writing", "Write the message in the editor of $EDITOR"),
    Action(
        "previous_answer", "Previous alternative", "alt+left", "Answer", "Show the alternative before this"
    ),
    Action("next_answer", "Next alternative", "alt+right", "Answer", "Show the alternative after this"),
    Action("copy_answer", "Copy answer", "alt+c", "Answer", "Copy the last answer to the clipboard"),
    Action(
        "copy_selection", "Copy selection", "ctrl+c", "Answer", "Copy what is selected; the mouse does too"
    ),
    Action("copy_code", "Copy code block", "f6", "Answer", "Copy a code block; again for the next one"),
    Action(
        "code", "Code block", "", "Answer", "Copy a code block by its number", palette=False, takes=CODE_FORMS
    ),
    Action(
        "save_code",
        "Save code block",
        "",
        "Answer",
        "Write a code block into a file; one that is there is asked about",
        palette=False,
        takes=SAVE_FORMS,
    ),
    Action(
        "open_code",
        "Open code block",
        "",
        "Answer",
        "Open a code block in the editor of $EDITOR",
        palette=False,
        takes=OPEN_FORMS,
    ),
    Action("links", "Links", "alt+l", "Answer", "List the links of the answer in view", takes=LINK_FORMS),
    Action("copy_chat", "Copy chat", "alt+y", "Answer", "Copy all messages that are shown"),
    Action("select", "Select by keys", "alt+a", "View", "Arrows select; blocks and messages by a letter"),
    Action("find", "Find in chat", "ctrl+f", "View", "Mark and count a word in this chat", takes=FIND_FORMS),
    Action("previous_turn", "Previous question", "alt+up", "View", "Go to the question before"),
    Action("next_turn", "Next question", "alt+down", "View", "Go to the next question, or to the end"),
    Action(
        "thoughts", "Thoughts", "alt+o", "View", "Unfold what was thought for the answer in view; fold it"
    ),
    Action("scroll_up", "Scroll up", "pageup", "View", "One page up in the chat", palette=False),
    Action("scroll_down", "Scroll down", "pagedown", "View", "One page down in the chat", palette=False),
    Action("scroll_end", "Go to the end", "ctrl+end", "View", "Follow the answer again"),
    Action("choose_theme", "Choose theme", "f7", "View", "Colours of the app"),
    Action("help", "Help", "f1", "App", "All keys"),
    Action("palette", "Commands", "ctrl+p", "App", "Search every command", palette=False),
    Action("quit_app", "Quit", "ctrl+q", "App", "Leave; chats are saved"),
    Action("undo_delete", "Undo delete", "alt+u", "Chats", "Bring back the chat that was deleted last"),
    Action("export_chat", "Export chat", "alt+x", "Chats", "Write this chat as Markdown, HTML or JSON"),
    Action("take_over", "Take over", "alt+t", "Chats", "Write here in a chat that another window has open"),
)

_BY_ID = {action.id: action for action in ACTIONS}
GROUPS: tuple[str, ...] = ("Writing", "Chats", "Answer", "Model", "View", "App")
_HINTS: tuple[tuple[str, str], ...] = (
    ("chats", ""),
    ("new_tab", ""),
    ("choose_model", ""),
    ("help", ""),
)
_BUSY_HINTS: tuple[tuple[str, str], ...] = (("help", ""), ("pause", "Pause"), ("stop", ""))
_PAUSED_HINTS: tuple[tuple[str, str], ...] = (("help", ""), ("pause", "Go on"), ("stop", ""))
_NAMES = {
    "ctrl": "Ctrl",
    "alt": "Alt",
    "shift": "Shift",
    "escape": "Esc",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "enter": "Enter",
    "left": "←",
    "right": "→",
    "end": "End",
    "tab": "Tab",
}


def named(name: str) -> Action:
    """Return the action of this id."""
    return _BY_ID[name]


def keys_of(action: Action, overrides: Mapping[str, str]) -> str:
    """Return an action's keys, the reader's own if the settings give any; some have only a command."""
    return overrides.get(action.id) or action.keys


def key_label(keys: str) -> str:
    """Return the first of some keys as people write it: `Ctrl+PgUp`, `F2`."""
    parts = keys.split(",")[0].strip().split("+")
    return "+".join(_NAMES.get(part, part.upper() if len(part) <= 3 else part.capitalize()) for part in parts)


def hints(overrides: Mapping[str, str], *, busy: bool = False, paused: bool = False) -> list[tuple[str, str]]:
    """Return (key, title) of the few actions that the status line names, by what the chat is doing.

    The one that is needed most is the last: a narrow line drops those before it.
    """
    chosen = _PAUSED_HINTS if paused else _BUSY_HINTS if busy else _HINTS
    return [(label_of(name, overrides), title or _BY_ID[name].title) for name, title in chosen]


def writing_keys(*, enter_sends: bool) -> tuple[str, str]:
    """Return what sends a message and what begins a new line in it, as people write it."""
    return ("Enter", "Ctrl+J") if enter_sends else ("Ctrl+J", "Enter")


def label_of(name: str, overrides: Mapping[str, str]) -> str:
    """Return the first key of an action as people write it, or its slash command where it has none."""
    return key_label(keys_of(_BY_ID[name], overrides)) or f"/{name}"


def in_groups(overrides: Mapping[str, str]) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Yield (group, [(key, title, help)]) for the help screen."""
    for group in GROUPS:
        rows = [
            (label_of(action.id, overrides), action.title, action.help)
            for action in ACTIONS
            if action.group == group
        ]
        yield group, rows
