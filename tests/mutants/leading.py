"""The terms of leaders: every statement that carries one, and the election itself."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, query

GUARDS = "tests/sql/test_guards.py"
TERMS = "tests/sql/test_terms.py"
LEADER = "tests/scheduler/test_leader.py"
PENDING = "tests/scheduler/test_pending.py"
RECONCILE = "tests/scheduler/test_reconcile.py"

_TERMED = (
    "fail_stale_pending", "republish_lost", "fire_ticks", "hold_schedule", "replan_schedules",
    "prune_jobs", "prune_records",
)  # fmt: skip


def _of_term(statement: str) -> list[Mutant]:
    of = "l." if statement == "fire_ticks" else ""
    term = f"WHERE {of}name = $1 AND {of}holder = $2 AND {of}epoch = $3"
    share = " FOR SHARE OF l" if of else " FOR SHARE"
    whole = term + share
    return [
        query(
            statement, "any epoch", whole,
            whole.replace(f"{of}epoch = $3", "$3::int8 IS NOT NULL"),
            f"{TERMS} -k term_is_all_of_it and epoch and {statement}",
        ),
        query(
            statement, "any holder", whole,
            whole.replace(f"{of}holder = $2", "$2::uuid IS NOT NULL"),
            f"{TERMS} -k term_is_all_of_it and holder and {statement}",
        ),
        query(
            statement, "does not hold its term", whole, term,
            f"{TERMS} -k {statement}",
        ),
    ]  # fmt: skip


LEADING = [
    *(mutant for statement in _TERMED for mutant in _of_term(statement)),
    *(
        query(
            sweeper, "waits for what is locked", "FOR UPDATE OF j SKIP LOCKED", "FOR UPDATE OF j",
            f"{TERMS} -k passes_over and {sweeper}",
        )
        for sweeper in ("fail_stale_pending", "republish_lost")
    ),
    query(
        "fail_stale_pending", "fence stays", ", fence = j.fence + 1,\n", ",\n",
        f"{GUARDS} -k raises_its_fence",
    ),
    query(
        "fail_stale_pending", "what is being claimed", "AND j.status = 'pending' AND", "AND",
        f"{PENDING} -k spared",
    ),
    query(
        "fail_stale_pending", "what was never published",
        "EXISTS (SELECT FROM lateack.outbox o WHERE o.job_id = j.id AND NOT o.republish)", "false",
        f"{PENDING} -k spared",
    ),
    query(
        "fail_stale_pending", "what a pause keeps", " AND q.paused_at IS NULL\n", "\n",
        f"{PENDING} -k spared",
    ),
    query(
        "republish_lost", "a healthy backlog",
        "      AND j.enqueued_at < lateack.now() - make_interval(secs => $7)\n",
        "      AND $7::float8 IS NOT NULL\n",
        f"{RECONCILE} -k healthy_backlog",
    ),
    query(
        "republish_lost", "what is in the outbox",
        "      AND NOT EXISTS (SELECT FROM lateack.outbox o WHERE o.job_id = j.id)\n", "",
        f"{GUARDS} -k on_its_way",
    ),
    query(
        "step_down", "any epoch", " AND epoch = $3", " AND $3::int8 IS NOT NULL",
        f"{TERMS} -k term_is_all_of_it and epoch and step_down",
    ),
    query(
        "step_down", "any holder", " AND holder = $2", " AND $2::uuid IS NOT NULL",
        f"{TERMS} -k term_is_all_of_it and holder and step_down",
    ),
    query(
        "lead", "though another leads",
        "WHERE l.holder = excluded.holder OR l.until < lateack.now()\n", "",
        f"{LEADER} -k one_of_two",
    ),
    query(
        "lead", "the epoch stays", "THEN l.epoch ELSE l.epoch + 1 END",
        "THEN l.epoch ELSE l.epoch END",
        f"{LEADER} -k one_of_two or term_that_is_over",
    ),
]  # fmt: skip
