"""The limits that a task gets when it does not name both."""

from __future__ import annotations

from typing import Any

import pytest

from lateack import App


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ({}, (300, 600)),
        ({"soft_time_limit": 60}, (60, 600)),
        ({"soft_time_limit": 3600}, (3600, 3630)),
        ({"time_limit": 60}, (60, 60)),
        # As long before the end as usual; who asks for an hour gets an hour.
        ({"time_limit": 3600}, (3300, 3600)),
        ({"time_limit": None}, (None, None)),
        ({"time_limit": None, "soft_time_limit": 10}, (10, None)),
        ({"soft_time_limit": None}, (None, 600)),
    ],
)
def test_a_limit_that_is_named_moves_the_other(
    given: dict[str, Any], limits: tuple[float | None, float | None]
) -> None:
    """RTY-05: the app's limits do not cut short a task that has longer ones, or none."""
    app = App("t")

    @app.task(**given)
    async def task() -> None: ...

    assert (task.declared.soft_time_limit, task.declared.time_limit) == limits
