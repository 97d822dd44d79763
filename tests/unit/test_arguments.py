"""Whether arguments fit, told without importing anybody's code."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lateack import App, Context
from lateack.arguments import MAX_DEPTH, Parameter, misfit, parameters_of, unfit_value
from lateack.errors import DeclarationError


def plain(a: Any, b: Any = 1) -> None: ...
def only(a: Any, /, b: Any, *, c: Any, d: Any = 1) -> None: ...
def star(a: Any, *args: Any) -> None: ...
def double(a: Any, /, **kwargs: Any) -> None: ...
def both(*args: Any, k: Any, **kwargs: Any) -> None: ...
def none() -> None: ...


@given(
    function=st.sampled_from([plain, only, star, double, both, none]),
    args=st.lists(st.integers(), max_size=4),
    names=st.sets(st.sampled_from("abcdkz")),
)
def test_it_says_what_python_would(function: Any, args: list[int], names: set[str]) -> None:
    """A call fits if and only if Python takes it."""
    kwargs = dict.fromkeys(names, 0)
    try:
        function(*args, **kwargs)
    except TypeError:
        fits = False
    else:
        fits = True
    assert (misfit(parameters_of(function, hidden=None), args, kwargs) is None) == fits


def test_it_says_what_to_change() -> None:
    parameters = parameters_of(only, hidden=None)
    assert misfit(parameters, [1], {}) == "misses the arguments b, c"
    assert misfit(parameters, [1, 2, 3], {"c": 1}) == "takes at most 2 positional arguments, got 3"
    assert misfit(parameters, [1, 2], {"c": 1, "x": 1}) == "has no parameter named x"
    assert misfit(parameters, [1, 2], {"b": 1, "c": 1}) == "got b both by position and by name"


def test_parameters_survive_the_tasks_table() -> None:
    parameters = parameters_of(both, hidden=None)
    text = msgspec.json.encode(parameters)
    assert msgspec.json.decode(text, type=tuple[Parameter, ...]) == parameters


def test_the_context_is_not_the_callers_business() -> None:
    app = App("a")

    @app.task(name="t.with_context")
    async def with_context(a: int, *, ctx: Context) -> None: ...

    assert [p.name for p in with_context.parameters] == ["a"]

    async def positional(ctx: Context) -> None: ...

    with pytest.raises(DeclarationError, match="after a star"):
        app.task(name="t.positional")(positional)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("a\x00b", "NUL"),
        ({"\x00": 1}, "NUL"),
        (["\ud800"], "surrogate"),
        ({"a": [{"b": "\udfff"}]}, "surrogate"),
        (float("nan"), "not finite"),
        ([{"x": float("-inf")}], "not finite"),
    ],
)
def test_what_cannot_be_stored_is_refused(value: Any, reason: str) -> None:
    """PAY-01, PAY-02"""
    assert reason in (unfit_value(value) or "")


def test_nesting_has_a_bottom() -> None:
    value: Any = []
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    assert unfit_value(value) is None
    assert "levels deep" in (unfit_value([value]) or "")


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")), inner
            )
        ),
        max_leaves=20,
    )
)
def test_everything_else_passes(value: Any) -> None:
    """PAY-05: integers of any size, every character."""
    assert unfit_value(value) is None
    assert json.loads(json.dumps(value)) == value
