"""Whether arguments fit a task's signature, and whether a value may be an argument at all.

A worker publishes each task's parameters to the ledger, so that the service can check a
submission without importing anybody's code.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from .errors import DeclarationError

# Deep nesting is an attack on every parser behind us, not data.
MAX_DEPTH = 64

Kind = Literal["positional", "either", "keyword", "args", "kwargs"]

_KINDS: dict[Any, Kind] = {
    inspect.Parameter.POSITIONAL_ONLY: "positional",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "either",
    inspect.Parameter.KEYWORD_ONLY: "keyword",
    inspect.Parameter.VAR_POSITIONAL: "args",
    inspect.Parameter.VAR_KEYWORD: "kwargs",
}


class Parameter(msgspec.Struct, frozen=True):
    """One parameter of a task, as callers see it (the context is not among them)."""

    name: str
    kind: Kind
    required: bool


def parameters_of(function: Callable[..., Any], *, hidden: str | None) -> tuple[Parameter, ...]:
    """The parameters of `function` without the one called `hidden`."""
    return tuple(
        Parameter(
            p.name,
            _KINDS[p.kind],
            p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD),
        )
        for p in inspect.signature(function).parameters.values()
        if p.name != hidden
    )


def misfit(
    parameters: Sequence[Parameter], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str | None:
    """Why these arguments do not fit, in words that say what to change; None when they fit."""
    positional = [p for p in parameters if p.kind in ("positional", "either")]
    if len(args) > len(positional) and not any(p.kind == "args" for p in parameters):
        return f"takes at most {len(positional)} positional arguments, got {len(args)}"
    given = {p.name for p in positional[: len(args)]}
    by_name = {p.name for p in parameters if p.kind in ("either", "keyword")}
    if twice := sorted(given & by_name & kwargs.keys()):
        return f"got {', '.join(twice)} both by position and by name"
    unexpected = sorted(kwargs.keys() - by_name)
    if unexpected and not any(p.kind == "kwargs" for p in parameters):
        return f"has no parameter named {', '.join(unexpected)}"
    missing = [
        p.name
        for p in parameters
        if p.required and p.name not in given and (p.kind == "positional" or p.name not in kwargs)
    ]
    if missing:
        return f"misses the argument{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
    return None


def unfit_value(value: Any, *, depth: int = 0) -> str | None:
    """Why a JSON value cannot be stored and read back unchanged, or None when it can.

    NUL and lone surrogates cannot live in PostgreSQL, NaN and the infinities not in JSON.
    """
    if isinstance(value, str):
        return _unfit_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "holds a number that is not finite"
    if isinstance(value, (list, tuple, dict)):
        if depth >= MAX_DEPTH:
            return f"is nested more than {MAX_DEPTH} levels deep"
        if isinstance(value, dict):
            parts: list[Any] = [*value.keys(), *value.values()]
        else:
            parts = list(value)
        for part in parts:
            if reason := unfit_value(part, depth=depth + 1):
                return reason
    return None


def _unfit_text(text: str) -> str | None:
    if "\x00" in text:
        return "holds a NUL character"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "holds half of a surrogate pair"
    return None


def check_reserved(parameters: Sequence[Parameter], task: str) -> None:
    """Refuse a task that cannot be called by JSON arguments.

    Raises:
        DeclarationError: the context was declared positional, or a name is used twice.
    """
    if any(p.name == "self" for p in parameters):
        raise DeclarationError(
            f"task {task}: the first parameter is called self; lateack passes no task instance. "
            "Take the context instead: `*, ctx: Context`."
        )
