"""Every answer that is not the one asked for, as an RFC 9457 problem document.

`type` is one stable word, the same in HTTP, in the batch's items and in the client's errors.
"""

from __future__ import annotations

import logging
import math
import secrets
from typing import Any

import msgspec
from litestar import MediaType, Request, Response
from litestar.exceptions import (
    HTTPException,
    MethodNotAllowedException,
    NotFoundException,
    ValidationException,
)

from lateack.models import Refusal
from lateack_core.postgres import Blocked, LedgerUnavailable
from lateack_core.validation import Refused, refusal

log = logging.getLogger("lateack.service")

CONTENT_TYPE = "application/problem+json"
# How long a caller should wait for a database that is away.
LEDGER_RETRY_AFTER = 2.0

_encode = msgspec.json.Encoder().encode


def no_such_job() -> Refused:
    """Unknown and foreign are the same answer, byte for byte (I9); so it names no id."""
    return refusal(404, "job-not-found", "No such job", "there is no such job, or it is not yours")


def bad_request(detail: str, errors: list[str] | None = None) -> Refused:
    """A 422 for what stands in the address or in a header."""
    return refusal(422, "invalid-request", "The request must change", detail, errors=errors)


def ledger_away() -> Refusal:
    """The database gave no answer; a submission may have been written."""
    return Refusal(
        type="ledger-unavailable",
        title="The database does not answer",
        status=503,
        detail="the database does not answer; try again, with the same idempotency key if any",
        retry_after=LEDGER_RETRY_AFTER,
    )


def refusal_of(error: BaseException) -> Refusal:
    """What to tell the caller about any error. Unexpected ones are logged under an id."""
    if isinstance(error, Refused):
        return error.refusal
    if isinstance(error, LedgerUnavailable):
        return ledger_away()
    if isinstance(error, Blocked):
        return Refusal(
            type="ledger-busy",
            title="Another transaction is in the way",
            status=503,
            detail="another transaction holds what this needs; try again",
            retry_after=1.0,
        )
    if isinstance(error, HTTPException):
        return _refusal_of_http(error)
    reference = secrets.token_hex(8)
    log.error("unexpected error %s", reference, exc_info=error)
    return Refusal(
        type="internal-error",
        title="Something went wrong here",
        status=500,
        detail=f"the service failed; its log has the reason under {reference}",
        instance=f"urn:lateack:error:{reference}",
    )


def answer(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """The exception handler of the whole application."""
    refused = refusal_of(error)
    headers = {"Cache-Control": "no-store"}
    if refused.retry_after is not None:
        headers["Retry-After"] = str(math.ceil(refused.retry_after))
    if isinstance(error, MethodNotAllowedException):
        headers["Allow"] = ", ".join(_methods_of(request))
    if refused.status == 401:
        headers["WWW-Authenticate"] = 'Tenant header="X-Tenant-ID"'
    return Response(
        _encode(refused), status_code=refused.status, media_type=CONTENT_TYPE, headers=headers
    )


def json_response(
    body: bytes, *, status: int = 200, headers: dict[str, str] | None = None
) -> Response[bytes]:
    """A JSON document that no cache may keep: it is a tenant's, and it changes."""
    return Response(
        body,
        status_code=status,
        media_type=MediaType.JSON,
        headers={"Cache-Control": "no-store", **(headers or {})},
    )


def _refusal_of_http(error: HTTPException) -> Refusal:
    if isinstance(error, NotFoundException):
        return Refusal("no-such-route", "No such address", 404, "there is nothing at this address")
    if isinstance(error, MethodNotAllowedException):
        return Refusal(
            "method-not-allowed",
            "This address takes other methods",
            405,
            "the Allow header lists what this address takes",
        )
    if isinstance(error, ValidationException):
        errors = [_told(item) for item in error.extra or [] if isinstance(item, dict)]
        detail = "; ".join(errors) or "a parameter cannot be read"
        return bad_request(detail, errors or None).refusal
    status = error.status_code
    return Refusal(
        type="invalid-request" if status < 500 else "internal-error",
        title="The request cannot be served",
        status=status,
        detail=error.detail if status < 500 else "the service failed",
    )


def _told(item: dict[str, Any]) -> str:
    key, message = item.get("key"), str(item.get("message", ""))
    return f"{key}: {message}" if key else message


def _methods_of(request: Request[Any, Any, Any]) -> list[str]:
    path = request.scope["path"].rstrip("/") or "/"
    found: set[str] = set()
    for route in request.app.routes:
        if _matches(route.path, path):
            found |= set(getattr(route, "methods", ()))
    return sorted(found)


def _matches(template: str, path: str) -> bool:
    expected, given = template.split("/"), path.split("/")
    return len(expected) == len(given) and all(
        part.startswith("{") or part == other for part, other in zip(expected, given, strict=True)
    )
