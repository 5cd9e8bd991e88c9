"""A jinja2 environment with what chat templates expect, in which they cannot reach Python.

It limits neither time nor memory: what jinja2 and Python's types do in C cannot be stopped from inside. It
runs in the worker alone, whose process is limited.
"""

import json
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Absent(jinja2.Undefined):
    """An option that nobody gave: it is not defined, and it is none.

    Some templates ask the one, some the other: Hugging Face gives None for it, llama.cpp nothing.
    """

    __hash__ = jinja2.Undefined.__hash__

    def __eq__(self, other: object) -> bool:
        return other is None or super().__eq__(other)


class GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` around what a model wrote: its body, in a scope of its own."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the block as its body."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def make_environment() -> jinja2.Environment:
    """The environment that Hugging Face's `apply_chat_template` gives to templates."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[loopcontrols, GenerationBlock],
        cache_size=0,
        auto_reload=False,
    )
    environment.filters["tojson"] = _to_json
    environment.tests["none"] = _is_none
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    for option in ("tools", "documents"):
        environment.globals[option] = Absent(name=option)
    return environment


def _is_none(value: Any) -> bool:
    return value is None or isinstance(value, Absent)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
