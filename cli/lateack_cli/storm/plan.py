"""Which faults come when, drawn from the seed and from nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FAMILIES = ("kill", "freeze", "broker", "database", "network")
GAP = (0.8, 2.6)  # seconds between the beginnings of two faults
FIRST = 2.0
# How much later than its end a target is met again: it has to come back first.
RECOVERY = 1.5
BROKER, DATABASE = "broker", "database"


@dataclass(frozen=True)
class Fault:
    """What is done to whom, when, and for how long. Times are seconds."""

    number: int
    at: float  # after the start of the storm
    name: str
    target: str  # a process, "broker" or "database"; for a network fault who is cut off, or "all"
    seconds: float  # until it is undone
    side: str = ""  # for a network fault: cut off from "broker", "database" or "both"
    amount: float = 0.0  # the delay of each packet; how old a copy is restored


@dataclass(frozen=True)
class Kind:
    """A kind of fault: how often it comes, whom it meets, how long it lasts."""

    family: str
    name: str
    weight: float
    targets: str  # "processes", "workers", "broker", "database", "connections"
    seconds: tuple[float, float]


# A lease is 2 s in a chaos run; what is longer loses jobs, what is shorter must not.
KINDS = (
    Kind("kill", "kill", 4, "processes", (0.2, 3.0)),
    Kind("kill", "stop", 3, "processes", (0.2, 2.0)),
    Kind("kill", "hurry", 1, "processes", (0.2, 2.0)),
    Kind("kill", "quit", 1, "processes", (0.2, 2.0)),
    Kind("kill", "kill child", 1.5, "workers", (0.0, 0.0)),
    Kind("freeze", "freeze", 6, "processes", (0.5, 7.0)),
    Kind("freeze", "freeze broker", 1, BROKER, (0.5, 4.0)),
    Kind("freeze", "freeze database", 1, DATABASE, (0.5, 4.0)),
    Kind("broker", "kill broker", 1.5, BROKER, (0.1, 3.0)),
    Kind("broker", "restart broker", 1, BROKER, (0.1, 3.0)),
    Kind("broker", "flush", 2, BROKER, (0.0, 0.0)),
    Kind("broker", "roll back", 2, BROKER, (0.1, 1.0)),
    Kind("broker", "drop groups", 1, BROKER, (0.0, 0.0)),
    Kind("broker", "drop clients", 1, BROKER, (0.0, 0.0)),
    Kind("database", "kill database", 1.5, DATABASE, (0.1, 2.5)),
    Kind("database", "restart database", 1, DATABASE, (0.1, 2.5)),
    Kind("database", "end sessions", 2, DATABASE, (0.0, 0.0)),
    Kind("database", "lock jobs", 1, DATABASE, (0.5, 3.0)),
    Kind("database", "refuse writes", 1, DATABASE, (0.5, 3.0)),
    Kind("network", "cut", 2, "connections", (0.0, 0.0)),
    Kind("network", "refuse", 2, "connections", (0.5, 5.0)),
    Kind("network", "hold", 4, "connections", (0.5, 7.0)),
    Kind("network", "delay", 2, "connections", (1.0, 5.0)),
    Kind("network", "deafen", 2, "connections", (0.3, 2.0)),
)


def faults(seed: int, families: Sequence[str], processes: Sequence[str]) -> Iterator[Fault]:
    """An endless run of faults over a fleet of `processes`; none when `families` is empty."""
    draw = random.Random(f"{seed}:faults")
    at, number = FIRST, 0
    busy_until: dict[str, float] = {}
    while families:
        at += draw.uniform(*GAP)
        # First the family, so that none comes more often for having more kinds.
        family = draw.choice(list(families))
        kinds = [kind for kind in KINDS if kind.family == family]
        kind = draw.choices(kinds, [kind.weight for kind in kinds])[0]
        fault = _fault(draw, number, at, kind, processes)
        # Who is down already cannot be put down: the draw is spent, and the storm goes on.
        if busy_until.get(fault.target, 0.0) > at:
            continue
        busy_until[fault.target] = at + fault.seconds + RECOVERY
        yield fault
        number += 1


def _fault(
    draw: random.Random, number: int, at: float, kind: Kind, processes: Sequence[str]
) -> Fault:
    # Workers come twice: they have the most to lose.
    workers = [name for name in processes if "worker" in name]
    if kind.targets == "connections":
        # Mostly one process alone: the others see a healthy system, and take its jobs over.
        target = draw.choice([*workers, *processes, "all"])
    elif kind.targets in (BROKER, DATABASE):
        target = kind.targets
    else:
        target = draw.choice([*workers, *(processes if kind.targets == "processes" else ())])
    side = draw.choice((BROKER, DATABASE, "both"))
    amount = draw.uniform(0.02, 0.3) if kind.name == "delay" else draw.uniform(2.0, 20.0)
    return Fault(
        number=number,
        at=at,
        name=kind.name,
        target=target,
        seconds=round(draw.uniform(*kind.seconds), 3),
        side=side if kind.targets == "connections" else "",
        amount=round(amount, 3) if kind.name in ("delay", "roll back") else 0.0,
    )
