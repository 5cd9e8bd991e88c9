"""The transcript's stylesheet: one component class for each kind of text in it."""

from __future__ import annotations

_NAMES = (
    *("text", "code", "codeblock", "codelabel", "link", "muted", "quote", "quotetext", "bullet", "rule"),
    *("tablehead", "tableband", "math", "codewrap", "hit", "hithere", "caret"),
    *("reasoning", "reasoningbar", "cursor", "chip"),
    *("name-user", "name-assistant", "name-system", "gutter-user", "gutter-assistant", "gutter-system"),
    *(f"heading{level}" for level in range(1, 7)),
    *("footer", "footererror", "footerstopped", "inserted", "deleted"),
)
COMPONENTS = frozenset(f"transcript--{name}" for name in _NAMES)

CSS = """
Transcript {
    height: 1fr;
    background: $background;
    color: $foreground;
    overflow-x: hidden;
    overflow-y: scroll;
    scrollbar-size-vertical: 1;
    &:focus { background-tint: $foreground 2%; }
    & > .transcript--text { color: $foreground; }
    & > .transcript--code { color: $text-accent; background: $foreground 8%; }
    & > .transcript--codeblock { color: $foreground; background: $foreground 5%; }
    & > .transcript--codelabel { color: $text-muted; background: $foreground 10%; }
    & > .transcript--inserted { color: $success; background: $foreground 5%; }
    & > .transcript--deleted { color: $error; background: $foreground 5%; }
    & > .transcript--link { color: $text-primary; text-style: underline; }
    & > .transcript--muted { color: $text-muted; }
    & > .transcript--quote { color: $secondary; }
    & > .transcript--quotetext { color: $foreground 80%; text-style: italic; }
    & > .transcript--bullet { color: $text-secondary; }
    & > .transcript--rule { color: $foreground 25%; }
    & > .transcript--tablehead { color: $text-primary; text-style: bold; }
    & > .transcript--heading1 { color: $text-primary; text-style: bold underline; }
    & > .transcript--heading2 { color: $text-primary; text-style: bold; }
    & > .transcript--heading3 { color: $text-secondary; text-style: bold italic; }
    & > .transcript--heading4 { color: $text-secondary; text-style: underline; }
    & > .transcript--heading5 { color: $text-accent; text-style: italic; }
    & > .transcript--heading6 { color: $text-muted; text-style: italic; }
    & > .transcript--math { color: $text-accent; }
    & > .transcript--tableband { background: $foreground 5%; }
    & > .transcript--codewrap { color: $foreground 35%; background: $foreground 5%; }
    & > .transcript--hit { background: $warning 35%; text-style: underline; }
    & > .transcript--hithere { background: $warning; color: $background; text-style: bold underline; }
    & > .transcript--caret { background: $foreground; color: $background; text-style: bold; }
    & > .transcript--reasoning { color: $text-muted; text-style: italic; }
    & > .transcript--reasoningbar { color: $foreground 25%; }
    & > .transcript--name-user { color: $text-primary; text-style: bold; }
    & > .transcript--name-assistant { color: $text-success; text-style: bold; }
    & > .transcript--name-system { color: $text-warning; text-style: bold; }
    & > .transcript--gutter-user { color: $primary; }
    & > .transcript--gutter-assistant { color: $foreground 10%; }
    & > .transcript--gutter-system { color: $warning; }
    & > .transcript--footer { color: $text-disabled; }
    & > .transcript--footererror { color: $text-error; text-style: bold; }
    & > .transcript--footerstopped { color: $text-warning; }
    & > .transcript--cursor { color: $accent; }
    & > .transcript--chip { color: $text; background: $primary; text-style: bold; }
}
"""
