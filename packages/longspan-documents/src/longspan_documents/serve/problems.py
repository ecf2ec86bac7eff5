"""Errors: each is one sentence, in the format of its endpoint, and declared in the OpenAPI document."""

from __future__ import annotations

from typing import Any


def problem(path: str, status: int, sentence: str) -> dict[str, Any]:
    """Returns the body of an error: `{"detail": "one sentence"}`, or OpenAI's format below /v1/."""
    if not path.startswith("/v1/"):
        return {"detail": sentence}
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": sentence, "type": kind, "param": None, "code": None}}


MEANINGS = {
    400: "The request is damaged.",
    401: "The token is missing or wrong.",
    403: "The host or the origin is not this server's.",
    404: "There is none of this id.",
    413: "The request, or what it asks for, is too large.",
    422: "The request is invalid.",
    429: "Too many requests wait; come again.",
    500: "Something went wrong here.",
    503: "No process can do the work.",
    504: "It took too long.",
    507: "The disk is full.",
}
ALWAYS = (401, 403, 413, 500)
"""Possible errors of every request: those of the guard, and internal errors."""
BODY = (400, 422)
WORK = (*BODY, 404, 429, 503, 504, 507)
"""Possible errors of requests that a worker handles."""


def declared(model: type, *statuses: int) -> dict[int | str, dict[str, Any]]:
    """Returns the errors of a request for its `responses`; `model` is the format of their bodies."""
    responses: dict[int | str, dict[str, Any]] = {}
    for status in sorted({*ALWAYS, *statuses}):
        responses[status] = {"model": model, "description": MEANINGS[status]}
    if 429 in responses:
        seconds = {"description": "Seconds after which to come again.", "schema": {"type": "integer"}}
        responses[429]["headers"] = {"Retry-After": seconds}
    if 401 in responses:
        responses[401]["headers"] = {"WWW-Authenticate": {"description": "Bearer", "schema": {"type": "string"}}}
    return responses
