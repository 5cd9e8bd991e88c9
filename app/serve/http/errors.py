"""Why a request is refused or fails, and how each protocol says so."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

_ANTHROPIC = "/v1/messages"
"""Where paths begin whose errors have Anthropic's shape."""
_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable",
}
_ANTHROPIC_TYPES = _OPENAI_TYPES | {413: "request_too_large", 503: "overloaded_error"}


class JsonResponse(JSONResponse):
    """JSON of any text, halves of surrogate pairs too."""

    def render(self, content: Any) -> bytes:
        """The body."""
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")


class ApiError(Exception):
    """A request is not answered; the message is for whoever sent it and names no path of this computer."""

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        field: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.field, self.code = message, status, field, code
        self.headers = dict(headers or {})


def refused(field: str, why: str) -> ApiError:
    """What is wrong with one field."""
    return ApiError(f"{field}: {why}", field=field)


def openai_error(error: ApiError) -> dict[str, Any]:
    """OpenAI's shape."""
    kind = _OPENAI_TYPES.get(error.status, "server_error")
    return {"error": {"message": error.message, "type": kind, "param": error.field, "code": error.code}}


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """Anthropic's shape."""
    kind = _ANTHROPIC_TYPES.get(error.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def error_response(path: str, error: ApiError) -> JsonResponse:
    """The answer to a request for `path` that is not served."""
    shape = anthropic_error if path.startswith(_ANTHROPIC) else openai_error
    return JsonResponse(shape(error), error.status, headers=error.headers)
