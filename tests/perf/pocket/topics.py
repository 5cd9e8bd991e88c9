"""What the built-in model says on each topic of `wordings`, and what tells a right answer."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Topic:
    """`key`: a regular expression that is found in right answers alone."""

    key: str
    answers: Sequence[str]


CORE = [
    "new_tab",
    "stop",
    "model",
    "quit",
    "chats",
    "find",
    "copy",
    "close_tab",
    "settings",
    "again",
    "who",
    "program",
    "private",
]
NEAR = "near"
"""Messages that only sound like the topics."""
TOPICS: Mapping[str, Topic] = {
    "new_tab": Topic(r"Ctrl\+T\b", (
        "Press Ctrl+T to open a new tab.",
        "Ctrl+T opens a new tab: an empty chat beside this one.",
        "Ctrl+T does that: it opens another tab, and this chat stays.",
    )),
    "stop": Topic(r"\bEsc\b", (
        "Press Esc to stop the answer.",
        "Esc stops the answer and keeps what is there.",
        "Esc: it stops the answer at once, and what is written stays.",
    )),
    "model": Topic(r"Ctrl\+O\b", (
        "Press Ctrl+O to choose another model.",
        "Ctrl+O chooses this tab's model, or fetches a new one.",
        "Ctrl+O lists the models: Enter takes one for this tab.",
    )),
    "quit": Topic(r"Ctrl\+Q\b", (
        "Press Ctrl+Q to leave the program.",
        "Ctrl+Q leaves the program, and all chats are back next time.",
        "Ctrl+Q: it ends tui-chat, and your chats are kept.",
    )),
    "chats": Topic(r"Ctrl\+L\b", (
        "Press Ctrl+L: it lists all chats, those of closed tabs too.",
        "Ctrl+L shows all chats. Type a word to find one, and press Enter to open it.",
        "Ctrl+L lists every chat that you had, and opens the one you choose.",
    )),
    "find": Topic(r"Ctrl\+F\b", (
        "Press Ctrl+F and type the word to find it in this chat.",
        "Ctrl+F finds a word in this chat: Enter goes to the next place, and Esc closes it.",
        "Ctrl+F searches this chat for a word.",
    )),
    "copy": Topic(r"Alt\+C\b", (
        "Press Alt+C to copy the last answer.",
        "Alt+C copies the last answer.",
        "Alt+C puts the last answer on the clipboard.",
    )),
    "close_tab": Topic(r"Alt\+W\b|\bF10\b", (
        "Press Alt+W or F10 to close the tab.",
        "Alt+W, or F10: the tab closes, and Ctrl+L still finds the chat.",
        "Alt+W closes this tab; the others stay.",
    )),
    "settings": Topic(r"Alt\+L\b", (
        "Press Alt+L to see and change the settings.",
        "Alt+L opens all settings.",
        "Alt+L: all settings are there, each with its help.",
    )),
    "again": Topic(r"Ctrl\+R\b", (
        "Press Ctrl+R to have it answered again.",
        "Ctrl+R answers again; the old answer stays.",
        "Ctrl+R writes the answer anew, and Alt+Left goes back to the old one.",
    )),
    "who": Topic(r"\bPocket\b", (
        "I'm Pocket, a tiny language model that comes with tui-chat and runs on your own computer.",
        "My name is Pocket. I'm a program, not a person: the little model that comes with tui-chat.",
        "I'm Pocket, the small model built into tui-chat. I run on your own computer alone.",
    )),
    "program": Topic(r"(?i)chat (program|app)|for the terminal", (
        "tui-chat is a chat program for the terminal: language models run on your own computer, and every "
        "tab is a chat of its own.",
        "This is tui-chat, a chat program for the terminal: models run on your own computer, and all tabs "
        "can answer at the same time.",
    )),
    "private": Topic(r"(?i)own computer|nothing (that )?you type|without the internet|offline", (
        "Everything stays on your own computer: nothing that you type is sent anywhere.",
        "All of it stays on your own computer. No internet is needed, and nothing is sent anywhere.",
    )),
    "switch_tab": Topic(r"Ctrl\+Pg", (
        "Press Ctrl+PgDn for the next tab and Ctrl+PgUp for the one before, or Alt+1 to Alt+9 for a tab by "
        "its number.",
    )),
    "rename": Topic(r"\bF2\b", ("F2 renames the tab.", "Press F2 to give the tab another title.")),
    "edit": Topic(r"\bF4\b", ("Press F4 to edit your last message and ask again.",)),
    "keys": Topic(r"\bF1\b", ("F1 shows all keys; Ctrl+P lists every command.",)),
    "commands": Topic(r"Ctrl\+P\b", ("Press Ctrl+P for all commands.", "Ctrl+P lists every command.")),
    "theme": Topic(r"\bF7\b", ("Press F7 and choose a theme.", "F7 changes the colours: choose a theme.")),
    "panel": Topic(r"\bF3\b", ("Press F3 for the live panel.", "F3 shows the live panel: speed and memory.")),
    "chat_opts": Topic(r"\bF8\b", (
        "Press F8: system prompt, sampling, thinking and priority of this tab are there.",
    )),
    "fork": Topic(r"\bF9\b", (
        "Press F9: the chat goes on from any message in a new tab, and this one stays.",
    )),
    "pause": Topic(r"\bF5\b", ("Press F5 to pause the answer, and F5 again to let it go on.",)),
    "delete_chat": Topic(r"Ctrl\+L\b", (
        "Press Ctrl+L, highlight the chat and press Delete. For a minute Alt+U brings it back.",
    )),
    "newline": Topic(r"Ctrl\+J|Shift\+Enter", (
        "Press Ctrl+J or Shift+Enter for a new line. Enter sends.",
    )),
    "add_model": Topic(r"Ctrl\+O\b|tui-chat (where|pull)", (
        "Ctrl+O lists models that can be fetched. A `.gguf` file of yours goes into the model folder, which "
        "`tui-chat where` prints.",
    )),
    "copy_code": Topic(r"\bF6\b", ("Press F6: it copies the code without the text around it.",)),
    "send": Topic(r"\bEnter\b", ("Press Enter to send the message.",)),
    "scroll": Topic(r"\bPgUp\b", (
        "Press PgUp to scroll up, PgDn to scroll down, and Ctrl+End for the end.",
    )),
    "change_keys": Topic(r"Alt\+L\b", (
        'Press Alt+L and change it under `[keys]`, for example `close_tab = "ctrl+w"`.',
    )),
    "export": Topic(r"Alt\+X\b", ("Alt+X writes the chat into a file.",)),
    "bench": Topic(r"/bench", ("`/bench` measures how fast this chat's model reads and writes.",)),
    "where": Topic(r"tui-chat where", (
        "Run `tui-chat where` in the shell: it prints where chats, settings and models are.",
    )),
    "gpu": Topic(r"GPU", (
        "No GPU is needed, but an NVIDIA one is used if it is there. F3 shows what the engine does.",
    )),
    "parallel": Topic(r"(?i)every tab|all tabs|at once", ("Yes: every tab answers at once, side by side.",)),
    "better": Topic(r"Ctrl\+O\b", (
        "I'm sorry. I'm a very small model and often wrong. A bigger one (Ctrl+O) knows more.",
    )),
    "compare": Topic(r"Alt\+V\b", ("Press Alt+V to compare two chats, turn by turn.",)),
    "alternatives": Topic(r"Alt\+S\b|Alt\+Left\b|Alt\+←", (
        "Alt+Left goes back to the answer before, Alt+Right to the next one; Alt+S shows them side by side.",
    )),
    "several": Topic(r"Alt\+A\b", ("Alt+A writes several answers at once, side by side.",)),
    "go_on": Topic(r"Alt\+G\b", ("Press Alt+G: the answer goes on where it stopped.",)),
    "think": Topic(r"Alt\+H\b", ("Alt+H chooses how much the model thinks in this chat.",)),
    "answer_now": Topic(r"Alt\+N\b", ("Press Alt+N: the thoughts end, and the answer comes now.",)),
    "room": Topic(r"Alt\+R\b", (
        "Alt+R makes room: it leaves out the oldest turns or has them summarised.",
    )),
    "edit_any": Topic(r"Alt\+M\b", ("Alt+M edits any message, also one further up or an answer.",)),
    "branches": Topic(r"Alt\+I\b", ("Alt+I shows the branches of the chat as a tree.",)),
    "queue": Topic(r"Alt\+Q\b", ("Alt+Q lists the messages that wait: edit, drop or send them now.",)),
    "attach": Topic(r"@", ("Type @ and choose a file, a folder or another chat.",)),
    "editor": Topic(r"Alt\+E\b", ("Alt+E opens the message in your own editor.",)),
    "undo": Topic(r"Ctrl\+_|Alt\+Z\b", ("Ctrl+_ undoes the last change, and Alt+Z does it again.",)),
    "deleted_back": Topic(r"Alt\+U\b", ("Press Alt+U: it brings back the chat that was deleted last.",)),
    "select": Topic(r"Alt\+J\b", ("Alt+J selects by keys: the arrows move, with Shift they select.",)),
    "copy_chat": Topic(r"Alt\+Y\b", ("Alt+Y copies the whole chat.",)),
    "links": Topic(r"/links", ("Type `/links`: it lists the links of an answer, to open one.",)),
    "engine_view": Topic(r"\bF12\b|Alt\+K\b", ("F12 or Alt+K opens the engine view.",)),
    "shell": Topic(r"Ctrl\+Z\b", ("Press Ctrl+Z for the shell; `fg` comes back.",)),
    "pause_all": Topic(r"Alt\+P\b", (
        "Alt+P pauses the answers of all chats; Alt+P again lets them go on.",
    )),
    "serve": Topic(r"tui-chat serve", (
        "Run `tui-chat serve` in the shell: other programs then use the models over HTTP.",
    )),
    "ask_cli": Topic(r"tui-chat ask", ('Run `tui-chat ask "your question"` in the shell.',)),
    "context_len": Topic(r"/context", ("Type `/context` and choose how long chats may become.",)),
    "earlier_msgs": Topic(r"(?i)↑|arrow up|up arrow", (
        "Press the up arrow in the first line: it brings back what you sent before.",
    )),
}  # fmt: skip
OF_PROGRAM = re.compile(
    r"Ctrl\+|Alt\+|\bF\d\d?\b|\bEsc\b|/(bench|links|context)|tui-chat (where|pull|bench|ask|serve)|PgUp|PgDn"
)
"""Found in what says how the program is used."""
DECLINES: Sequence[str] = (
    "I can't say: I only know how tui-chat works, and I'm a very small model.",
    "That is beyond me, I'm afraid: I'm a very small model and never learned about it.",
    "I don't know that. I'm a very small model, and I'd rather say so than guess.",
    "I'm only a small chat model and can't help with that, I'm afraid.",
)
"""In place of an answer on the program to what has nothing to do with it."""


def is_right(topic: str, answer: str) -> bool:
    """Whether an answer is that of its topic; to what is near a topic, any that is not on the program."""
    if topic == NEAR:
        return OF_PROGRAM.search(answer) is None
    return re.search(TOPICS[topic].key, answer) is not None
