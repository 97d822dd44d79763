"""A seed replays a run's choices, and the choices are what was asked for."""

from __future__ import annotations

from collections import Counter
from itertools import islice, takewhile

import pytest

from lateack_cli.storm.fleet import names_of
from lateack_cli.storm.mix import KINDS, REFUSED, orders
from lateack_cli.storm.plan import FAMILIES, faults
from lateack_cli.storm.plan import KINDS as FAULTS

PROCESSES = names_of(3)


def test_a_seed_replays_the_orders() -> None:
    """The same seed, the same jobs at the same times; another one, others."""
    assert list(islice(orders(7, 10.0), 500)) == list(islice(orders(7, 10.0), 500))
    assert list(islice(orders(7, 10.0), 50)) != list(islice(orders(8, 10.0), 50))


def test_a_seed_replays_the_faults() -> None:
    """The same seed and families, the same faults at the same times; a longer run begins alike."""
    once = list(islice(faults(7, FAMILIES, PROCESSES), 200))
    assert once == list(islice(faults(7, FAMILIES, PROCESSES), 200))
    assert once[:50] != list(islice(faults(8, FAMILIES, PROCESSES), 50))


@pytest.mark.parametrize("seed", range(20))
def test_five_minutes_are_enough(seed: int) -> None:
    """Each run of 300 s has more than 2 000 jobs and 60 faults, of every family and kind."""
    ordered = list(takewhile(lambda order: order.at < 300, orders(seed, 10.0)))
    assert sum(order.kind not in REFUSED for order in ordered) > 2_300
    assert {order.kind for order in ordered} == KINDS.keys()
    plan = list(takewhile(lambda fault: fault.at < 300, faults(seed, FAMILIES, PROCESSES)))
    assert len(plan) > 80
    names = Counter(fault.name for fault in plan)
    assert {kind.family for kind in FAULTS if names[kind.name]} == set(FAMILIES)


def test_families_are_chosen() -> None:
    """Only what was asked for, against those who exist."""
    plan = list(islice(faults(1, ("kill", "network"), PROCESSES), 100))
    allowed = {kind.name for kind in FAULTS if kind.family in ("kill", "network")}
    assert {fault.name for fault in plan} == allowed
    assert {fault.target for fault in plan} <= {*PROCESSES, "all"}
    assert list(faults(1, (), PROCESSES)) == []


def test_nobody_is_put_down_who_is_down() -> None:
    """Two faults of one target do not overlap."""
    until: dict[str, float] = {}
    for fault in islice(faults(3, FAMILIES, PROCESSES), 500):
        assert fault.at >= until.get(fault.target, 0.0)
        until[fault.target] = fault.at + fault.seconds
