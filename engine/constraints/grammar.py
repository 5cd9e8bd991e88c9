"""The grammar of a whole answer: thoughts that may stand in front, and what the constraint says behind them.

Written in llguidance's form of Lark. Tokens that no text can spell are named by their ids.
"""

import json
from typing import Any

from engine.api.answer_format import AnswerFormat, MessageFormat, TagFormat
from engine.api.constraint import Constraint, ConstraintError, ConstraintKind
from engine.constraints.calls import add_calls, held_calls
from engine.constraints.rules import Rules, bounded
from engine.tokenizer.tokenizer import Tokenizer

_BODY = "body"


def grammar_of(constraint: Constraint, tokenizer: Tokenizer) -> str:
    """For `LLMatcher`; raises `ConstraintError` for a text that is not of its kind."""
    rules = Rules(tokenizer)
    if constraint.kind in (ConstraintKind.CALLS, ConstraintKind.TOOLS):
        add_calls(rules, constraint)
    else:
        rules.add("answer", _text_or_calls(rules, constraint))
    row = constraint.answer_format
    rules.add("start", "answer" if row is None else _with_thoughts(rules, row, constraint.in_thoughts))
    return rules.text()


def _text_or_calls(rules: Rules, constraint: Constraint) -> str:
    text = rules.grammar(_BODY, **_sub_grammar(constraint))
    if not constraint.calls:
        return text
    rules.add("calls", held_calls(rules, constraint, constraint.calls))
    return f"{text} | calls"


def _sub_grammar(constraint: Constraint) -> dict[str, Any]:
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    if constraint.kind is ConstraintKind.JSON_SCHEMA:
        return {"json_schema": bounded(_schema(constraint.text))}
    if constraint.kind is ConstraintKind.REGEX:
        made = json.loads(LLMatcher.grammar_from_regex(constraint.text))
        return {"lark_grammar": made["grammars"][0]["lark_grammar"]}
    try:
        return {"lark_grammar": any_to_lark(constraint.text)}
    except Exception as error:
        # The converter raises whatever it meets.
        raise ConstraintError("", str(error)) from error


def _schema(text: str) -> Any:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConstraintError("", f"is not JSON: {error}") from error
    if not isinstance(schema, dict | bool):
        raise ConstraintError("", "a schema is an object, or true or false")
    return schema


def _with_thoughts(rules: Rules, row: AnswerFormat, in_thoughts: bool) -> str:
    """What an answer may begin with, and the answer."""
    if isinstance(row, MessageFormat):
        # Without thoughts it begins with the header of a message for the reader.
        header = rules.literal(row.ending.rpartition("assistant")[2])
        rules.add("rest", f"{rules.up_to(row.ending)} answer")
        return "rest" if in_thoughts else f"{rules.literal(row.opening)} rest | {header} answer"
    _add_wrapped(rules, row)
    rules.add("rest", f"{rules.up_to(row.closes)} {rules.space()} wrapped")
    return "rest" if in_thoughts else f"{rules.literal(row.opens)} rest | wrapped"


def _add_wrapped(rules: Rules, row: TagFormat) -> None:
    """The answer, between tags of its own where the model may write them."""
    if row.wrapped is None:
        rules.add("wrapped", "answer")
        return
    opens, closes = map(rules.literal, row.wrapped)
    rules.add("wrapped", f"answer | {opens} {rules.space()} answer {rules.space()} {closes}")
