"""Arguments of a call against the schema that its tool has: what does not fit is not sent."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

_LONGEST = 300
_Check = Callable[..., Iterator[Any]]


def problem_with(arguments: Mapping[str, Any] | str, schema: Mapping[str, Any]) -> str | None:
    """Say what does not fit, or return None. A schema that is none refuses nothing: the server checks too."""
    if isinstance(arguments, str):
        return "the arguments are no JSON object"
    from jsonschema.exceptions import best_match

    try:
        error = best_match(_validator(schema).iter_errors(dict(arguments)))
    except Exception:
        # A schema of a server may fail in any way; it is its own business.
        return None
    if error is None:
        return None
    where = "".join(f"[{part!r}]" for part in error.absolute_path)
    return f"arguments{where}: {error.message}"[:_LONGEST]


def _validator(schema: Mapping[str, Any]) -> "Validator":
    from referencing import Registry

    # An empty registry: a reference to elsewhere is not fetched.
    return _checker()(dict(schema), registry=Registry())


@cache
def _checker() -> "type[Validator]":
    """Check everything but regular expressions, which may take for ever: those the server checks."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    plain: _Check = Draft202012Validator.VALIDATORS["additionalProperties"]

    def passed(*_: Any) -> Iterator[Any]:
        return iter(())

    def additional(validator: Any, value: Any, instance: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
        # What else may be there expressions say.
        return iter(()) if "patternProperties" in schema else plain(validator, value, instance, schema)

    own: dict[str, _Check] = {"additionalProperties": additional}
    own |= dict.fromkeys(("pattern", "patternProperties", "unevaluatedProperties", "format"), passed)
    return extend(Draft202012Validator, own)
