"""What workers, relays and the broker must not lose, steal or say too early."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

GUARDS = "tests/consumers/test_guards.py"
RESCUE = "tests/scheduler/test_rescue.py"
IN_THE_LEDGER = "tests/sql/test_guards.py"
RECONCILE = "tests/scheduler/test_reconcile.py"

_CONSUMERS = "consumers/lateack_consumers"
_CORE = "core/lateack_core"

DELIVERY = [
    Mutant(
        "reader: does not ask what is pending with itself", f"{_CONSUMERS}/reader.py",
        "                await self._catch_up(loop)\n", "",
        f"{GUARDS} -k never_reached_it",
    ),
    Mutant(
        "reader: asks that once only", f"{_CONSUMERS}/reader.py",
        "                await self._catch_up(loop)\n",
        "                await self._catch_up(loop)\n"
        "                self._catch_up = lambda loop: loop.pause(0)\n",
        f"{GUARDS} -k never_reached_it",
    ),
    Mutant(
        "reclaimer: every sweep begins at the start", f"{_CONSUMERS}/reclaimer.py",
        "            self._cursors[stream] = cursor\n", "",
        f"{GUARDS} -k where_the_last_one_ended",
    ),
    Mutant(
        "reclaimer: right after trouble", f"{_CONSUMERS}/reclaimer.py",
        " or self._ledger.postgres.settled_for < self._settle:\n", ":\n",
        f"{GUARDS} -k right_after_trouble",
    ),
    Mutant(
        "reaper: right after trouble", "scheduler/lateack_scheduler/rescue.py",
        "        if ground.postgres.settled_for <= settings.ledger_settle:\n",
        "        if False:\n", f"{RESCUE} -k right_after_trouble",
    ),
    Mutant(
        "renewer: keeps entries unasked", f"{_CONSUMERS}/renewer.py",
        "            if renewal.renewed:\n                confirmed",
        "            confirmed.setdefault(active.delivery.stream, []).append("
        "active.delivery.entry_id)\n"
        "            if renewal.renewed:\n                confirmed",
        f"{GUARDS} -k ledger_confirms",
    ),
    Mutant(
        "renewer: takes a locked lease for a lost one", f"{_CONSUMERS}/renewer.py",
        "not renewal.held and ", "", f"{GUARDS} -k ledger_confirms",
    ),
    Mutant(
        "settler: acknowledges before the commit", f"{_CONSUMERS}/settler.py",
        "        success = Success(active.job.owned, verdict.result)\n",
        "        success = Success(active.job.owned, verdict.result)\n"
        "        self._acknowledger.offer(active.delivery)\n",
        f"{GUARDS} -k before_its_outcome",
    ),
    Mutant(
        "dispatcher: acknowledges what runs elsewhere", f"{_CONSUMERS}/dispatcher.py",
        "        for job_id in wanted.keys() - running:\n",
        "        for job_id in wanted.keys():\n",
        f"{GUARDS} -k runs_elsewhere",
    ),
    Mutant(
        "broker: acknowledges and does not delete", f"{_CORE}/stream/scripts.py",
        "redis.call('XDEL', KEYS[1], unpack(ARGV, 2))\n", "", f"{IN_THE_LEDGER} -k neither_book",
    ),
    Mutant(
        "broker: deletes and does not acknowledge", f"{_CORE}/stream/scripts.py",
        "local acked = redis.call('XACK', KEYS[1], ARGV[1], unpack(ARGV, 2))\n",
        "local acked = 0\n", f"{IN_THE_LEDGER} -k neither_book",
    ),
    Mutant(
        "broker: a group begins at its end", f"{_CORE}/stream/broker.py",
        'GROUP, "0", mkstream=True', 'GROUP, "$", mkstream=True', f"{RECONCILE} -k queue_is_young",
    ),
    Mutant(
        "broker: forgets consumers that own entries", f"{_CORE}/stream/scripts.py",
        "if c['pending'] == 0 and c['idle']", "if c['idle']",
        f"{IN_THE_LEDGER} -k neither_book",
    ),
    Mutant(
        "relay: deletes before it publishes", f"{_CORE}/outbox.py",
        "        added = await self._broker.publish(hints) if hints else []\n",
        '        await self._postgres.fetch("delete_outbox", [row["id"] for row in rows])\n'
        "        added = await self._broker.publish(hints) if hints else []\n",
        f"{IN_THE_LEDGER} -k not_published_stays",
    ),
    Mutant(
        "relay: deletes what the broker did not take", f"{_CORE}/outbox.py",
        "zip(ready, added, strict=True) if ok]", "zip(ready, added, strict=True)]",
        f"{IN_THE_LEDGER} -k not_published_stays",
    ),
]  # fmt: skip
