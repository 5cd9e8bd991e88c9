"""The lines of a batch file: what is asked, under which id, with which sampling. A wrong field is named."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from engine import RequestError, SamplingParams, Thinking

_SAMPLING = frozenset(field.name for field in fields(SamplingParams) if field.name != "logit_bias")
_ROLES = ("system", "developer", "user", "assistant")
_MOST = 32 << 20
"""Characters of a line."""


class LineError(ValueError):
    """A line asks for nothing that can be answered."""


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt."""

    id: str
    messages: tuple[tuple[str, str], ...]
    """Roles and contents."""
    sampling: Mapping[str, Any]
    """What the line says of `SamplingParams`."""
    max_tokens: int | None
    stop: tuple[str, ...]
    thinking: Thinking | None
    in_openai_form: bool
    """Whether the result is written as OpenAI's batches have it."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is left out."""

    number: int
    reason: str


def read_jobs(text: str) -> tuple[list[Job], list[BadLine]]:
    """Read all lines; blank ones are passed over."""
    jobs: dict[str, Job] = {}
    bad: list[BadLine] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            job = read_job(line, number)
            if job.id in jobs:
                raise LineError(f"the id {job.id!r} stands there before")
        except LineError as error:
            bad.append(BadLine(number, str(error)))
        else:
            jobs[job.id] = job
    return list(jobs.values()), bad


def read_job(line: str, number: int) -> Job:
    """Read one line; `LineError` names the field that is wrong."""
    values = _object(line)
    openai = values.get("body") is not None
    asked: Any = values["body"] if openai else values
    if not isinstance(asked, dict):
        raise LineError("body is no object")
    job_id = values.get("custom_id") if openai else values.get("id", f"line {number}")
    if not isinstance(job_id, str | int) or isinstance(job_id, bool) or job_id == "":
        raise LineError("custom_id is no text" if openai else "id is neither text nor a number")
    sampling = {name: value for name, value in asked.items() if name in _SAMPLING and value is not None}
    try:
        SamplingParams(**sampling)
    except (RequestError, TypeError) as error:
        raise LineError(str(error)) from error
    return Job(
        str(job_id),
        _messages(asked),
        sampling,
        _limit(asked),
        _stop(asked.get("stop")),
        _thinking(asked),
        openai,
    )


def done_ids(path: Path) -> set[str]:
    """Return the ids that a file of results has answers for; cut off a line that was not written whole."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)
    done: set[str] = set()
    for line in data[:whole].decode("utf-8", "replace").split("\n"):
        try:
            record = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and not record.get("error"):
            ids = (record.get(key) for key in ("id", "custom_id"))
            done |= {str(job_id) for job_id in ids if isinstance(job_id, str | int)}
    return done


def with_sampling(usual: SamplingParams, job: Job) -> SamplingParams:
    """Return how a job's tokens are chosen."""
    return replace(usual, **job.sampling)


def _object(line: str) -> dict[str, Any]:
    if len(line) > _MOST:
        raise LineError(f"it is longer than {_MOST:,} characters")
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LineError(f"it is no JSON ({str(error)[:100]})") from error
    if not isinstance(values, dict):
        raise LineError("it is no JSON object")
    return values


def _messages(asked: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    prompt, messages = asked.get("prompt"), asked.get("messages")
    if (prompt is None) is (messages is None):
        raise LineError("it needs either prompt or messages")
    if prompt is not None:
        if not isinstance(prompt, str) or not prompt.strip():
            raise LineError("prompt is no text, or empty")
        return (("user", prompt),)
    if not isinstance(messages, list) or not messages:
        raise LineError("messages is no list, or empty")
    told = tuple(_message(message) for message in messages)
    if told[-1][0] != "user":
        raise LineError("messages: the last one is not the user's")
    return told


def _message(message: Any) -> tuple[str, str]:
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise LineError(f"messages: each has a role, one of {', '.join(_ROLES)}")
    content = message.get("content")
    if isinstance(content, list):
        parts: list[Any] = [part.get("text") if isinstance(part, dict) else None for part in content]
        content = "".join(parts) if all(isinstance(part, str) for part in parts) else None
    if not isinstance(content, str):
        raise LineError("messages: a content is no text; images and the like are not read")
    return str(message["role"]), content


def _limit(asked: Mapping[str, Any]) -> int | None:
    for name in ("max_tokens", "max_completion_tokens"):
        value = asked.get(name)
        if value is None:
            continue
        if type(value) is not int or value < 1:
            raise LineError(f"{name} is no whole number from 1 on")
        return value
    return None


def _stop(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise LineError("stop is neither text nor a list of texts")
    return tuple(stops)


def _thinking(asked: Mapping[str, Any]) -> Thinking | None:
    given = asked.get("thinking", asked.get("reasoning_effort"))
    if given is None:
        return None
    try:
        return Thinking.parse(str(given))
    except ValueError as error:
        raise LineError(f"thinking must be {error}") from error
