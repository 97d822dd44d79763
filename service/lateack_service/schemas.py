"""What the OpenAPI document says of bodies that are read by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIType, Operation, RequestBody, Schema

from lateack.models import MAX_BATCH, Step, Submission


def _schema_of(struct: type[msgspec.Struct]) -> Schema:
    names = [field.name for field in msgspec.structs.fields(struct) if field.required]
    _, parts = msgspec.json.schema_components([struct], ref_template="#/{name}")
    properties = parts[struct.__name__]["properties"]
    return Schema(
        type=OpenAPIType.OBJECT,
        required=names,
        description=struct.__doc__,
        properties={name: _field(struct, name, given) for name, given in properties.items()},
    )


def _field(struct: type[msgspec.Struct], name: str, given: dict[str, Any]) -> Schema:
    if name in ("then", "group", "chain"):
        # Parts hold parts; what one looks like is said once.
        inner = Schema(type=OpenAPIType.OBJECT, description="a part, like those of `then`")
        items = inner if struct is Step else _schema_of(Step)
        return Schema(type=OpenAPIType.ARRAY, items=items)
    options = given.get("anyOf", [given])
    types = [OpenAPIType(option["type"]) for option in options if "type" in option]
    return Schema(
        type=types if len(types) > 1 else types[0] if types else None,
        format=next((option["format"] for option in options if "format" in option), None),
    )


def body_of(struct: type[msgspec.Struct]) -> RequestBody:
    """A body that is one `struct`."""
    return _body(_schema_of(struct))


def _body(schema: Schema) -> RequestBody:
    return RequestBody(required=True, content={"application/json": OpenAPIMediaType(schema=schema)})


@dataclass
class SubmitOperation(Operation):
    """One submission."""

    def __post_init__(self) -> None:
        self.request_body = body_of(Submission)


@dataclass
class BatchOperation(Operation):
    """Many submissions."""

    def __post_init__(self) -> None:
        items = Schema(type=OpenAPIType.ARRAY, max_items=MAX_BATCH, items=_schema_of(Submission))
        self.request_body = _body(
            Schema(type=OpenAPIType.OBJECT, required=["items"], properties={"items": items})
        )
