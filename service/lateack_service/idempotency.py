"""The idempotency key of a request: from the header or from the body, never two different ones."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from litestar import Request

from lateack.models import Submission

from .problems import bad_request

HEADER = "Idempotency-Key"

# A string of RFC 8941; what is not one is taken as it stands.
_QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')


def key_of(request: Request[Any, Any, Any]) -> str | None:
    """The key in the header, None when there is none.

    Raises:
        Refused: it is not UTF-8, or several were given.
    """
    name = HEADER.lower().encode()
    values = {value for header, value in request.scope["headers"] if header.lower() == name}
    if not values:
        return None
    if len(values) > 1:
        raise bad_request(f"{HEADER} was given twice, with different keys")
    try:
        text = values.pop().decode()
    except UnicodeDecodeError:
        raise bad_request(f"{HEADER} is not UTF-8") from None
    text = text.strip(" \t")
    if quoted := _QUOTED.fullmatch(text):
        return re.sub(r"\\(.)", r"\1", quoted[1])
    return text


def with_key(submission: Submission, key: str | None) -> Submission:
    """The submission under the key of its header.

    Raises:
        Refused: the body has another key.
    """
    if key is None or key == submission.idempotency_key:
        return submission
    if submission.idempotency_key is not None:
        raise bad_request(f"{HEADER} and idempotency_key differ; give one of them")
    return msgspec.structs.replace(submission, idempotency_key=key)
