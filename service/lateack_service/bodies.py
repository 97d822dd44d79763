"""Reading request bodies: their type, their size, and JSON that can be kept as it is."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec
from litestar import Request
from litestar.exceptions import ClientException

from lateack.arguments import MAX_DEPTH, unfit_value
from lateack_core.validation import Refused, invalid, refusal

# A chain may carry sixteen times the arguments of one job; and escaped text is longer on the wire.
MAX_BODY = 2 * 1024 * 1024
MAX_BATCH_BODY = 8 * 1024 * 1024
# Read and thrown away so that a caller who sent too much hears the answer.
MAX_DISCARDED = 32 * 1024 * 1024

T = TypeVar("T")


async def read_json(request: Request[Any, Any, Any], limit: int) -> bytes:
    """The body of a request that must be JSON, at most `limit` bytes long.

    Raises:
        Refused: 415 when it is another type, 413 when it is longer.
    """
    _check_type(request)
    announced = request.headers.get("content-length", "")
    too_long = announced.isdecimal() and int(announced) > limit
    chunks: list[bytes] = []
    size = 0
    while True:
        message: Any = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientException("the caller went away", status_code=400)
        size += len(message.get("body", b""))
        too_long = too_long or size > limit
        if too_long:
            chunks.clear()
        else:
            chunks.append(message.get("body", b""))
        if not message.get("more_body", False) or size > MAX_DISCARDED:
            break
    if too_long:
        raise refusal(413, "too-large", "Too large", f"the body may have {limit} bytes at most")
    return b"".join(chunks)


def decode(body: bytes, decoder: msgspec.json.Decoder[T], where: str = "") -> T:
    """The value in a JSON text.

    Raises:
        Refused: 400 when it is not JSON at all, 422 when it is JSON of another shape, or cannot be
            kept as it is (NaN, half a surrogate pair, too deeply nested).
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(f"{where}{error}") from None
    except RecursionError:
        raise invalid(f"{where}the JSON is nested more than {MAX_DEPTH} levels deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _why_not_json(body, error, where) from None


def _why_not_json(body: bytes, error: Exception, where: str) -> Refused:
    try:
        # The standard reader takes NaN and half pairs, so that they can be called by their names.
        reason = unfit_value(json.loads(body.decode()))
    except UnicodeDecodeError:
        return _malformed(f"{where}the body is not UTF-8")
    except RecursionError:
        return invalid(f"{where}the JSON is nested more than {MAX_DEPTH} levels deep")
    except ValueError:
        reason = None
    if reason:
        return invalid(f"{where}the JSON {reason}")
    return _malformed(f"{where}the body is not JSON: {error}")


def _malformed(detail: str) -> Refused:
    return refusal(400, "malformed-json", "Not JSON", detail)


def _check_type(request: Request[Any, Any, Any]) -> None:
    media, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().replace('"', "")
    coding = request.headers.get("content-encoding", "identity").lower()
    is_json = media.strip().lower() == "application/json" and charset in ("", "charset=utf-8")
    if not is_json or coding != "identity":
        raise refusal(
            415,
            "unsupported-media-type",
            "JSON only",
            "send the body as Content-Type: application/json, in UTF-8 and not compressed",
        )
