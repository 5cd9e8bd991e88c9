"""Every action of the app, once: bindings, footer hints, help screen and palette are made of this.

An action `id` is carried out by `action_<id>` of the chat screen, and it is also the name under
which the settings file can give it other keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase, digits


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


FAN_FORMS = (
    ("4", "So many answers, each with a seed of its own"),
    ("seeds 1 2 3", "One answer for each seed"),
    ("temperature 0.2 0.7 1.2", "One answer at each temperature"),
    ("models NAME NAME:", "One answer of each model; the message may stand behind the colon"),
    ('system "…" "…"', "One answer under each system prompt"),
)
COMPARE_FORMS = (
    ("2", "With the tab of this number"),
    ("model NAME", "With a fork of this chat that another model goes on with"),
)

THINK_FORMS = (
    ("auto", "As the model's template has it"),
    ("on", "Think before answers"),
    ("off", "Answer at once"),
    ("low", "An effort: low, medium or high"),
    ("2048", "Most tokens of the thoughts"),
)
CONTEXT_FORMS = (
    ("8192", "So many tokens"),
    ("all", "All that the model reads"),
)
FIND_FORMS = (("WORD", "Everything that is written behind it is looked for"),)
CODE_FORMS = (("2", "The second code block of the answer in view"),)
SAVE_FORMS = (("2 FILE", "The second code block; without a name into a file named by its language"),)
OPEN_FORMS = (("2", "The second code block; what is changed in the editor is copied"),)
TOOL_FORMS = (("NAME", "Switch the server of this name on or off in this chat"),)
LINK_FORMS = (("2", "Open the second link of the answer in view"),)

ACTIONS: tuple[Action, ...] = (
    Action("new_tab", "New chat", "ctrl+t", "Chats", "Open an empty chat in a new tab"),
    Action("close_tab", "Close chat", "alt+w,f10", "Chats", "Close this tab; asks while it is answering"),
    Action("chats", "All chats", "ctrl+l", "Chats", "Open, search, tag and delete chats, closed ones too"),
    Action("fork", "Fork chat", "f9", "Chats", "Go on from any message in a new tab; this chat stays"),
    Action(
        "make_room", "Make room", "alt+r", "Chats", "Leave out or summarise the oldest turns of this chat"
    ),
    Action("rename_tab", "Rename chat", "f2", "Chats", "Give this chat another title"),
    Action("previous_tab", "Previous chat", "ctrl+pageup,ctrl+shift+tab", "Chats", "Go one tab left"),
    Action("next_tab", "Next chat", "ctrl+pagedown,ctrl+tab", "Chats", "Go one tab right"),
    Action("choose_model", "Choose model", "ctrl+o", "Model", "Switch this chat to another model file"),
    Action(
        "tab_settings",
        "Chat settings",
        "f8",
        "Model",
        "System prompt, sampling, thinking and priority",
    ),
    Action(
        "think",
        "Thinking",
        "alt+h",
        "Model",
        "How much is thought before answers",
        takes=THINK_FORMS,
    ),
    Action(
        "tools",
        "Tools",
        "",
        "Model",
        "Which servers' tools the model may call in this chat",
        takes=TOOL_FORMS,
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
    Action("answer_now", "Answer now", "alt+n", "Answer", "End the thoughts; the answer begins"),
    Action("edit_last", "Edit last message", "f4", "Answer", "Change the last message and ask again"),
    Action(
        "edit_message",
        "Edit any message",
        "alt+m",
        "Answer",
        "Ask differently from any message on, or have an answer go on from other words",
    ),
    Action("resume", "Go on", "alt+g", "Answer", "Let an answer that was stopped or cut off go on there"),
    Action(
        "fan",
        "Answer several times",
        "alt+a",
        "Answer",
        "Several answers side by side, to what is written or to the last message",
        takes=FAN_FORMS,
    ),
    Action("columns", "Side by side", "alt+s", "Answer", "Show the last answer's alternatives in columns"),
    Action("branches", "Branches", "alt+i", "Answer", "Every branch of this chat as a tree, to go to"),
    Action(
        "pause_all", "Pause all or go on", "alt+p", "Answer", "Pause the answers of all chats; again to go on"
    ),
    Action("queue", "Waiting messages", "alt+q", "Writing", "Edit, drop or send now what waits its turn"),
    Action(
        "compare",
        "Compare chats",
        "alt+v",
        "Chats",
        "Two chats turn by turn, with figures, differences and votes",
        takes=COMPARE_FORMS,
    ),
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
    Action("links", "Links", "", "Answer", "List the links of the answer in view", takes=LINK_FORMS),
    Action("copy_chat", "Copy chat", "alt+y", "Answer", "Copy all messages that are shown"),
    Action("select", "Select by keys", "alt+j", "View", "Arrows select; blocks and messages by a letter"),
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
    Action("settings", "Settings", "alt+l", "App", "Look through all settings and change them"),
    Action("leader", "Keys by letter", "ctrl+x", "App", "Every action by two letters", palette=False),
    Action(
        "bench",
        "Measure speed",
        "",
        "Model",
        "How fast this chat's model reads and writes; other chats go on",
    ),
    Action(
        "context",
        "Context length",
        "",
        "Model",
        "How long chats with this model may become, and what that costs",
        takes=CONTEXT_FORMS,
    ),
    Action("suspend", "Suspend", "ctrl+z", "App", "Back to the shell; fg brings the app back", palette=False),
)

_BY_ID = {action.id: action for action in ACTIONS}
GROUPS: tuple[str, ...] = ("Writing", "Chats", "Answer", "Model", "View", "App")
LEADER = "leader"
_HINTS: tuple[tuple[str, str], ...] = (
    (LEADER, "Keys"),
    ("chats", ""),
    ("new_tab", ""),
    ("choose_model", ""),
    ("help", ""),
)
_BUSY_HINTS: tuple[tuple[str, str], ...] = (("help", ""), ("pause", "Pause"), ("stop", ""))
_PAUSED_HINTS: tuple[tuple[str, str], ...] = (("help", ""), ("pause", "Go on"), ("stop", ""))
_ALPHABET = ascii_lowercase + digits
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


def label_of(name: str, overrides: Mapping[str, str]) -> str:
    """Return the first key of an action as people write it, or its slash command where it has none."""
    return key_label(keys_of(_BY_ID[name], overrides)) or f"/{name}"


def ways(action: Action, overrides: Mapping[str, str]) -> str:
    """Return how else an action is reached than by its first key: other keys, letters, its command."""
    others = [key_label(key) for key in keys_of(action, overrides).split(",")[1:]]
    if action.id != LEADER:
        others.append(f"{label_of(LEADER, overrides)} {' '.join(letters_of(action))}")
    return ", ".join([*others, f"/{action.id}"])


def group_letters() -> dict[str, str]:
    """Return the letter of each group, as the leader key takes it."""
    return dict(zip(letters(GROUPS), GROUPS, strict=True))


def action_letters(group: str) -> dict[str, Action]:
    """Return the actions of a group by the letter that each has behind the group's."""
    found = [action for action in ACTIONS if action.group == group and action.id != LEADER]
    return dict(zip(letters([action.title for action in found]), found, strict=True))


def letters_of(action: Action) -> tuple[str, str]:
    """Return the two letters of an action: its group's and its own."""
    group = next(letter for letter, name in group_letters().items() if name == action.group)
    return group, next(letter for letter, other in action_letters(action.group).items() if other is action)


def letters(titles: Sequence[str]) -> list[str]:
    """Return a letter for each title, no two the same: of its words' first letters, else of any of it.

    One that comes before keeps its letter whatever is added behind it.
    """
    taken: list[str] = []
    for title in titles:
        folded = title.casefold()
        wanted = [word[0] for word in folded.split()] + [char for char in folded if char.isalpha()]
        taken.append(next(char for char in [*wanted, *_ALPHABET] if char not in taken))
    return taken
