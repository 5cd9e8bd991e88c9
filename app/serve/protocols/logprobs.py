"""Log-probabilities as OpenAI's chats and completions write them."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.serve.http.fields import Fields
from app.serve.requests.answer import Scores
from app.serve.requests.port import ServedTokenizer

_MOST = 20
_INCLUDED = "message.output_text.logprobs"
"""What `include` of a response names."""


def read_chat_logprobs(fields: Fields) -> int | None:
    """`logprobs` and `top_logprobs` of chats: how many tokens to tell beside each one; None: of none."""
    wanted, top = fields.flag("logprobs"), _top(fields)
    if top and not wanted:
        raise fields.refuse("top_logprobs", "needs logprobs to be true")
    return (top or 0) if wanted else None


def read_response_logprobs(fields: Fields) -> int | None:
    """`top_logprobs` of responses, for who has them included."""
    wanted, top = _INCLUDED in (fields.many("include") or ()), _top(fields)
    if top and not wanted:
        raise fields.refuse("top_logprobs", f"needs include to have {_INCLUDED}")
    return (top or 0) if wanted else None


def read_completion_logprobs(fields: Fields) -> int | None:
    """`logprobs` of completions, which is a number."""
    top = fields.whole("logprobs")
    if top is not None and not 0 <= top <= _MOST:
        raise fields.refuse("logprobs", f"{top} is not between 0 and {_MOST}")
    return top


def _top(fields: Fields) -> int | None:
    top = fields.whole("top_logprobs")
    if top is not None and not 0 <= top <= _MOST:
        raise fields.refuse("top_logprobs", f"{top} is not between 0 and {_MOST}")
    return top


def chat_logprobs(scores: Scores, tokenizer: ServedTokenizer) -> dict[str, Any] | None:
    """Of a choice, or a piece of one; None where there are none."""
    if not scores:
        return None
    content = [
        {
            **_token(token_id, told.logprob, tokenizer),
            "top_logprobs": [_token(one, logprob, tokenizer) for one, logprob in told.top],
        }
        for token_id, told in scores
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(scores: Scores, tokenizer: ServedTokenizer, offset: int) -> dict[str, Any] | None:
    """The same of completions; offset: letters in front."""
    if not scores:
        return None
    texts = [_text(token_id, tokenizer) for token_id, _ in scores]
    offsets = [offset + sum(map(len, texts[:index])) for index in range(len(texts))]
    return {
        "tokens": texts,
        "token_logprobs": [told.logprob for _, told in scores],
        "top_logprobs": [_tops(told.top, tokenizer) for _, told in scores],
        "text_offset": offsets,
    }


def _tops(top: Sequence[tuple[int, float]], tokenizer: ServedTokenizer) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for token_id, logprob in top:
        # Of tokens that have one text the likeliest is told.
        found.setdefault(_text(token_id, tokenizer), logprob)
    return found


def _token(token_id: int, logprob: float, tokenizer: ServedTokenizer) -> dict[str, Any]:
    text = _text(token_id, tokenizer)
    return {"token": text, "logprob": logprob, "bytes": list(tokenizer.token_bytes(token_id))}


def _text(token_id: int, tokenizer: ServedTokenizer) -> str:
    return tokenizer.decode([token_id], special=True)
