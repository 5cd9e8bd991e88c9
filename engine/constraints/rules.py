"""Rules of a grammar on its way: literals with their control tokens, free text, grammars inside it."""

import json
from typing import Any

from engine.tokenizer.tokenizer import Tokenizer

_MOST_SPACE = 32
"""Characters: a model that is unsure would go on with white space for ever."""
_JSON_SPACE = rf"( |\r?\n[ \t]{{0,{_MOST_SPACE}}})"
"""As people write it: a blank, or a line's end and what the next one is indented by."""


class Rules:
    """Collects what `LLMatcher` is given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._controls = frozenset(tokenizer.control_tokens.values())
        self._rules: dict[str, str] = {}
        self._grammars: list[dict[str, Any]] = []

    def add(self, name: str, rule: str) -> None:
        """Define a rule."""
        self._rules[name] = rule

    def grammar(self, name: str, **content: Any) -> str:
        """Put a grammar of its own inside; returns what rules call it."""
        self._grammars.append({"name": name, **content})
        return f"@{name}"

    def literal(self, text: str) -> str:
        """Exactly this text, its control tokens as such."""
        parts = []
        for part in self._tokenizer.split_special(text):
            if isinstance(part, str):
                parts.append(json.dumps(part, ensure_ascii=False))
            elif part in self._controls:
                parts.append(f"<[{part}]>")
            else:
                parts.append(json.dumps(self._tokenizer.token_text(part), ensure_ascii=False))
        return " ".join(parts) or '""'

    def up_to(self, mark: str) -> str:
        """Any text, and a mark that ends it."""
        first, *_ = self._tokenizer.split_special(mark)
        if isinstance(first, int) and first in self._controls:
            self._rules.setdefault("TEXT", "/(?s:.+)/")
            return f"TEXT? {self.literal(mark)}"
        name = f"up_to_{len(self._rules)}"
        self._rules[f"{name}[lazy]"] = f"/(?s:.*){_pattern(mark)}/"
        return name

    def space(self) -> str:
        """White space, or none."""
        self._rules.setdefault("SPACE", f"/[ \\t\\r\\n]{{1,{_MOST_SPACE}}}/")
        return "SPACE?"

    def text(self) -> str:
        """All of it."""
        lark = "\n".join(f"{name}: {rule}" for name, rule in self._rules.items())
        return json.dumps({"grammars": [{"name": "whole", "lark_grammar": lark}, *self._grammars]})


def bounded(schema: Any, *, lenient: bool = False) -> Any:
    """A schema whose JSON has little white space; lenient: keywords that are not known change nothing."""
    if not isinstance(schema, dict):
        return schema
    options = {"whitespace_pattern": _JSON_SPACE, "lenient": lenient}
    return {**schema, "x-guidance": options}


def _pattern(text: str) -> str:
    """A literal inside a regular expression between slashes."""
    return "".join(char if char.isalnum() or char in "_ " else f"\\x{{{ord(char):x}}}" for char in text)
