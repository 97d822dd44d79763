"""Which jobs are submitted when, drawn from the seed and from nothing else.

The draws for one order never depend on what became of another: the same seed and rate give the same
orders, on any machine and in whatever storm.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Body = dict[str, Any]

TENANTS = ("acme", "globex")
BURST = 0.006  # how often an order is the first of many that come at once
BURST_SIZE = 20
# Of what a caller may do with a job besides submitting it, how often he does.
CANCELS, LOOKS, WATCHES, PRIES = 0.07, 0.3, 0.04, 0.05
PRYING = ("get", "wait", "cancel", "attempts", "events")
DEATHS = ("kill", "exit")
KEYS_AT_ONCE = 6  # shared keys that are in use at the same time
ORDERS_A_KEY = 100  # then others come into use


@dataclass(frozen=True)
class Order:
    """A request to submit, and what its caller does afterwards. Times are seconds."""

    number: int
    at: float  # after the start of the load
    kind: str
    tenant: str
    service: int  # which of the API processes is asked first
    bodies: tuple[Body, ...]  # one, unless it is a batch
    cancel_after: float | None = None
    look_after: float | None = None  # looks until it has ended, and once more
    watch: bool = False
    pry: str | None = None  # what the other tenant asks of it
    then: Body | None = field(default=None)  # the same key with other content, to be refused


def orders(seed: int, rate: float) -> Iterator[Order]:
    """An endless run of orders, `rate` of them a second."""
    draw = random.Random(f"{seed}:jobs")
    names = list(KINDS)
    weights = [weight for weight, _ in KINDS.values()]
    at, burst = 0.0, 0
    for number in itertools.count():
        burst = burst - 1 if burst else BURST_SIZE if draw.random() < BURST else 0
        at += draw.uniform(0.5, 1.5) / rate if not burst else 0.0
        kind = draw.choices(names, weights)[0]
        yield _order(draw, number, at, kind)


def _order(draw: random.Random, number: int, at: float, kind: str) -> Order:
    tenant = draw.choice(TENANTS)
    made = KINDS[kind][1](draw, number)
    bodies = made if isinstance(made, list) else [made]
    then: Body | None = None
    keyed = draw.random() < 0.5
    for place, body in enumerate(bodies):
        # How a job that was accepted unheard is recognised, and how two for one request are found.
        body.setdefault("external_ref", f"order-{number}" + (f"-{place}" if place else ""))
        if keyed or kind == "conflict":
            body.setdefault("idempotency_key", body["external_ref"])
    if kind == "conflict":
        then = bodies[0] | {"args": [-1], "external_ref": f"order-{number}-other"}
    afterwards = {
        "cancel_after": draw.uniform(0.0, 1.5),
        "look_after": draw.uniform(0.0, 1.0),
        "watch": True,
        "pry": draw.choice(PRYING),
    }
    for name, often in zip(afterwards, (CANCELS, LOOKS, WATCHES, PRIES), strict=True):
        if draw.random() >= often or kind in REFUSED or len(bodies) > 1:
            afterwards[name] = None if name != "watch" else False
    return Order(
        number=number,
        at=at,
        kind=kind,
        tenant=tenant,
        service=draw.randrange(1000),
        bodies=tuple(bodies),
        then=then,
        **afterwards,  # type: ignore[arg-type]
    )


# -- one maker a kind -------------------------------------------------------------------------


def _task(name: str, *args: Any, **options: Any) -> Body:
    return {"task": f"storm.{name}", "args": list(args), **options}


def _chain(draw: random.Random, number: int) -> Body:
    names = "bcde"[: draw.randint(1, 4)]
    links = [_task(draw.choice(("link", "link", "heavy.link")), name) for name in names]
    return _task("first", "a", then=links)


def _broken_chain(draw: random.Random, number: int) -> Body:
    broken = draw.choice((_task("failing", immutable=True), _task("flaky", 9, immutable=True)))
    return _task("first", "a", then=[_task("link", "b"), broken, _task("link", "never")])


def _shared(draw: random.Random, number: int) -> Body:
    # Neighbours in time share a key, and so do callers who come much later than the job's end.
    slot = draw.randrange(KEYS_AT_ONCE) + KEYS_AT_ONCE * (number // ORDERS_A_KEY)
    key = f"shared-{slot}"
    return _task("instant", slot, external_ref=key, idempotency_key=key)


def _batch(draw: random.Random, number: int) -> list[Body]:
    items = [_task("instant", n) for n in range(draw.randint(3, 8))]
    items[draw.randrange(len(items))] = _task("unknown")
    return items


def _book(draw: random.Random, number: int) -> Body:
    # A worker that dies takes others with it, so that is rare.
    ways = ("", "raise", "linger", "raise after", "die inside", "die after")
    how = draw.choices(ways, (50, 15, 20, 10, 2, 2))[0]
    return _task("book", number, how)


def _pay(draw: random.Random, number: int) -> Body:
    ways = ("", "raise before", "raise after", "die after")
    how = draw.choices(ways, (50, 15, 25, 3))[0]
    return _task("pay", how, draw.random() < 0.6)


def _pay_elsewhere(draw: random.Random, number: int) -> Body:
    where = draw.choice(("heavy.pay_thread", "heavy.pay_process", "heavy.pay_process"))
    ways = ["", "raise before", "raise after"] + ["die after"] * (where == "heavy.pay_process")
    return _task(where, draw.choice(ways), draw.random() < 0.6)


Maker = Callable[[random.Random, int], Body | list[Body]]

# The kinds, each with its weight and how one is made.
KINDS: dict[str, tuple[float, Maker]] = {
    "instant": (18, lambda d, n: _task("instant", d.randrange(100))),
    "priority": (4, lambda d, n: _task("instant", d.randrange(9), priority=d.randrange(10))),
    "slow": (12, lambda d, n: _task("slow", d.choice((0.3, 2.0, 4.0, 6.0)))),
    "thread": (4, lambda d, n: _task("heavy.thread", d.choice((0.1, 0.5, 3.0)))),
    "process": (4, lambda d, n: _task("heavy.process", d.choice((0.05, 0.3, 2.5)))),
    "retrying": (7, lambda d, n: _task("flaky", d.randint(1, 3))),
    "doomed": (1.5, lambda d, n: _task("flaky", 9)),
    "again": (2, lambda d, n: _task("again", d.randint(1, 3))),
    "failing": (2, lambda d, n: _task("failing")),
    "crash": (
        2,
        lambda d, n: _task("heavy.crash", d.choice((1, 1, 9)), d.choice(DEATHS)),
    ),
    "worker crash": (
        0.35,
        lambda d, n: _task("crash_worker", d.choice((1, 1, 1, 9)), d.choice(DEATHS)),
    ),
    "block": (1.5, lambda d, n: _task("block", d.choice((0.2, 0.5, 3.0)))),
    "stuck": (0.2, lambda d, n: _task("stuck")),
    "chain": (7, _chain),
    "broken chain": (1.5, _broken_chain),
    "delayed": (5, lambda d, n: _task("instant", 1, countdown=round(d.uniform(0.1, 8.0), 3))),
    "expiring": (
        3,
        lambda d, n: _task("instant", 1, countdown=d.uniform(0.0, 3.0), expires=d.uniform(0.5, 4)),
    ),
    "shared key": (9, _shared),
    "conflict": (1, lambda d, n: _task("instant", 1)),
    "batch": (1, _batch),
    "transaction": (9, _book),
    "step": (6, _pay),
    "step elsewhere": (5, _pay_elsewhere),
    "unknown task": (0.5, lambda d, n: _task("unknown")),
    "misfit": (0.5, lambda d, n: _task("instant", 1, 2, 3)),
}
# Kinds that the service has to refuse.
REFUSED = frozenset({"unknown task", "misfit"})
