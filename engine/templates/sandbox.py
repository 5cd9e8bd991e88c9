"""A jinja2 environment for templates that came with a file: what chat templates expect, within limits.

A template may neither reach Python, nor run long, nor build large values: arithmetic, joins and
repetitions are measured before they are carried out, and every line run looks at the clock.
"""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.api.errors import TemplateError

MAX_SOURCE = 1 << 20
MAX_SECONDS = 1.0
"""Processor time of the rendering thread, so that a busy machine fails no template."""
LEAST_LINES = 20_000
"""Lines that a template runs before that time counts: where a virtual machine is held up by its host,
processor time goes on. A template that has run fewer may take `PATIENCE` times as long."""
PATIENCE = 10
MAX_ITEMS = 1 << 20
MAX_CHARACTERS = 1 << 26
_MAX_WIDTH = 10_000
_ITEM_WEIGHT = 256
_FILENAME = "<chat template>"
_WIDTH_METHODS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})
_REMOVED_FILTERS = ("batch", "center", "format", "pprint", "slice", "urlize", "wordwrap", "xmlattr")


class TemplateLimitError(TemplateError):
    """A template needs more time or memory than it may have."""


class _Generator(CodeGenerator):
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """`a ~ b` through the measured join, which jinja2 does not offer as an operator."""
        self.write("environment.concat([environment.finalize(part) for part in (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")])")


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Sandbox with size limits on everything that makes values grow."""

    code_generator_class = _Generator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols],
            finalize=_text_of,
            cache_size=0,
            auto_reload=False,
        )
        for name in _REMOVED_FILTERS:
            self.filters.pop(name, None)
        self.filters["tojson"] = _to_json
        self.filters["replace"] = _replace
        self.filters["join"] = _join
        self.filters["indent"] = _indent
        self.filters["string"] = _text_of
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = _now
        self.concat = _concat  # type: ignore[method-assign]

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse operations whose result would be huge."""
        if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            _measure(left, len(left) + len(right))
        elif operator == "*":
            _measure_product(left, right)
        elif operator == "**" and (abs(left) > 1_000_000 or abs(right) > 64):
            raise TemplateError("the template computes too large a power")
        elif operator == "%" and isinstance(left, str):
            raise TemplateError("the template formats text with %, which is not supported")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Refuse method calls whose result would be huge."""
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str):
            if name in _WIDTH_METHODS and any(isinstance(a, int) and a > _MAX_WIDTH for a in args):
                raise TemplateError(f"the template pads text too far with {name}")
            if name == "replace" and len(args) >= 2:
                return _replace(owner, *args)
            if name == "join" and args:
                return _join(args[0], owner)
            if name in ("format", "format_map", "translate"):
                raise TemplateError(f"the template calls {name}, which is not supported")
        return super().call(context, obj, *args, **kwargs)


def render_limited(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Render within the limits; TemplateError with the cause when the template fails or exceeds one."""
    try:
        with _deadline(MAX_SECONDS):
            parts: list[str] = []
            total = 0
            for part in template.generate(**variables):
                total += len(part)
                _measure("", total)
                parts.append(part)
            return "".join(parts)
    except TemplateError:
        raise
    except (MemoryError, RecursionError) as error:
        raise TemplateLimitError(f"the template needs too much ({type(error).__name__})") from error
    except Exception as error:
        raise TemplateError(str(error) or type(error).__name__) from error


def compile_template(environment: TemplateEnvironment, source: str) -> jinja2.Template:
    """Compile; TemplateError with the line when the source is broken."""
    if len(source) > MAX_SOURCE:
        raise TemplateError(f"the template has {len(source)} characters; at most {MAX_SOURCE} are read")
    try:
        code = environment.compile(source, filename=_FILENAME)
        return jinja2.Template.from_code(environment, code, environment.make_globals(None))
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"line {error.lineno}: {error.message}") from error
    except (MemoryError, RecursionError, SyntaxError, ValueError) as error:
        raise TemplateError(f"the template cannot be compiled ({type(error).__name__})") from error


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Stop template code (only it, only on this thread) that runs longer than `seconds`."""
    start = time.thread_time()
    lines = 0

    def trace_line(_frame: FrameType, _event: str, _argument: Any) -> Any:
        nonlocal lines
        lines += 1
        if time.thread_time() - start > (seconds if lines > LEAST_LINES else PATIENCE * seconds):
            raise TemplateLimitError(f"the template ran longer than {seconds:g} s")
        return trace_line

    def trace_call(frame: FrameType, _event: str, _argument: Any) -> Any:
        return trace_line if frame.f_code.co_filename == _FILENAME else None

    before = sys.gettrace()
    sys.settrace(trace_call)
    try:
        yield
    finally:
        sys.settrace(before)


def _measure(kind: str | list[Any] | tuple[Any, ...], length: int) -> None:
    limit = MAX_CHARACTERS if isinstance(kind, str) else MAX_ITEMS
    if length > limit:
        raise TemplateLimitError(f"the template builds a value of {length} elements; the limit is {limit}")


def _measure_product(left: Any, right: Any) -> None:
    for sequence, times in ((left, right), (right, left)):
        if isinstance(sequence, str | list | tuple) and isinstance(times, int):
            _measure(sequence, len(sequence) * max(times, 0))
            return
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > 4096:
        raise TemplateError("the template computes too large a number")


def _concat(parts: Iterable[str]) -> str:
    parts = list(parts)
    _measure("", sum(map(len, parts)))
    return "".join(parts)


def _join(value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    items = list(value)
    if attribute is not None:
        items = [item[attribute] for item in items]
    texts = [_text_of(item) for item in items]
    _measure("", sum(map(len, texts)) + len(str(d)) * len(texts))
    return str(d).join(texts)


def _replace(s: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = _text_of(s), _text_of(old), _text_of(new)
    times = text.count(old) if old else len(text) + 1
    times = times if count is None or count < 0 else min(times, count)
    _measure("", len(text) + times * max(len(new) - len(old), 0))
    return text.replace(old, new, -1 if count is None else count)


def _indent(s: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = _text_of(s)
    space = width if isinstance(width, str) else " " * min(max(width, 0), _MAX_WIDTH)
    _measure("", len(text) + (text.count("\n") + 1) * len(space))
    head, *lines = text.split("\n")
    lines = [space + line if line or blank else line for line in lines]
    return "\n".join([space + head if first else head, *lines])


def _text_of(value: Any) -> str:
    """`str(value)`, refused before it is built when containers repeat large values."""
    if isinstance(value, str):
        return value
    _weigh(value, [0])
    return str(value)


def _weigh(value: Any, total: list[int]) -> None:
    """Add the size of the text of nested containers to `total`, up to the limit."""
    if isinstance(value, str):
        total[0] += len(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            _weigh(key, total)
            _weigh(item, total)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            _weigh(item, total)
    total[0] += _ITEM_WEIGHT
    _measure("", total[0])


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    indent = None if indent is None else min(max(indent, 0), 64)
    _weigh(value, [0])
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern[:200])
