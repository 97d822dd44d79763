"""Query parameters as one value: read strictly, and described in the OpenAPI document."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from litestar import Request
from litestar.openapi.spec import OpenAPIType, Parameter, Reference, Schema

from .problems import bad_request

T = TypeVar("T", bound=msgspec.Struct)


def parameters(request: Request[Any, Any, Any], type_: type[T]) -> T:
    """The query of a request as a `type_`, which refuses what it does not know.

    Raises:
        Refused: a parameter is unknown, given twice, or not what it should be.
    """
    given: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in given:
            raise bad_request(f"{name} was given twice")
        given[name] = value
    try:
        value_ = msgspec.convert(given, type_, strict=False)
    except msgspec.ValidationError as error:
        raise bad_request(f"{error}; known are {', '.join(type_.__struct_fields__)}") from None
    without_nul(value_)
    return value_


def without_nul(value: msgspec.Struct) -> None:
    """Refuse texts that PostgreSQL cannot hold.

    Raises:
        Refused
    """
    texts = [getattr(value, name) for name in value.__struct_fields__]
    if any("\x00" in text for text in texts if isinstance(text, str)):
        raise bad_request("a filter holds a NUL character")


def described(type_: type[msgspec.Struct]) -> list[Parameter | Reference]:
    """The parameters that `parameters` reads, for the OpenAPI document."""
    _, parts = msgspec.json.schema_components([type_], ref_template="#/{name}")
    properties: dict[str, dict[str, Any]] = parts[type_.__name__]["properties"]
    return [
        Parameter(name=name, param_in="query", required=False, schema=_schema(given))
        for name, given in properties.items()
    ]


def _schema(given: dict[str, Any]) -> Schema:
    sort = next(option for option in given.get("anyOf", [given]) if option.get("type") != "null")
    return Schema(
        # The choices of a Literal come without their type; here they are texts.
        type=OpenAPIType(sort.get("type", "string")),
        enum=sort.get("enum"),
        format=sort.get("format"),
        minimum=sort.get("minimum"),
        maximum=sort.get("maximum"),
        default=given.get("default"),
    )
