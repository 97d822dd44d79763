"""Fences, locks and conditions of the moves."""

from __future__ import annotations

from tests.mutants.mutant import SCHEMA, Mutant, query

MOVES = "tests/sql/test_moves.py"
GUARDS = "tests/sql/test_guards.py"
LOCKS = "tests/sql/test_locks.py"
RACES = "tests/sql/test_races.py"
CREATE = "tests/sql/test_create.py"
WORKFLOW = "tests/sql/test_workflow.py"
TERMS = "tests/sql/test_terms.py"

_ORDERED = f"{LOCKS} -k locks_jobs_in_order and "
_STALE = f"{GUARDS} -k stale_word"
_RAISED = f"{GUARDS} -k raises_its_fence"
_AT_ONCE = f"{GUARDS} -k two_words_at_once"

CLAIM = [
    query(
        "claim_jobs", "any status", "      AND status IN ('pending', 'scheduled', 'retrying')\n",
        "", f"{WORKFLOW} -k hands_results_on",
    ),
    query(
        "claim_jobs", "before its time", "      AND run_at <= lateack.now()\n", "",
        f"{MOVES} -k waits_for_its_time",
    ),
    query(
        "claim_jobs", "after its expiry",
        "      AND (expires_at IS NULL OR expires_at > lateack.now())\n", "",
        f"{MOVES} -k latest_start",
    ),
    query(
        "claim_jobs", "though cancelled", "      AND cancel_requested_at IS NULL\n", "",
        f"{GUARDS} -k heeds_a_cancellation",
    ),
    query(
        "claim_jobs", "a task that it lacks", "      AND task = ANY ($4::text[])\n",
        "      AND $4::text[] IS NOT NULL\n",
        f"{MOVES} -k unknown_task",
    ),
    query(
        "claim_jobs", "locks out of order", "    ORDER BY id FOR UPDATE\n", "    FOR UPDATE\n",
        _ORDERED + "claim",
    ),
    query(
        "claim_jobs", "locks nothing", "    ORDER BY id FOR UPDATE\n", "    ORDER BY id\n",
        f"{RACES} -k cancel_against_claim or cleanup_before_claim",
    ),
    query(
        "claim_jobs", "fence stays", "    SELECT id, fence + 1, $2,", "    SELECT id, fence, $2,",
        f"{MOVES} -k retries_end",
    ),
    query(
        "claim_jobs", "a lease is an error", "    ON CONFLICT (job_id) DO NOTHING\n", "",
        f"{GUARDS} -k keeps_everybody_out",
    ),
    query(
        "claim_jobs", "takes another's lease", "    ON CONFLICT (job_id) DO NOTHING\n",
        "    ON CONFLICT (job_id) DO UPDATE SET fence = excluded.fence, worker_id = $2\n",
        f"{GUARDS} -k keeps_everybody_out",
    ),
]  # fmt: skip

OWNERS = [
    query(
        "complete_jobs", "no fence", "      ON j.id = d.id AND j.fence = d.fence\n",
        "      ON j.id = d.id\n", _STALE,
    ),
    query(
        "complete_jobs", "any status", "    WHERE j.status = 'running'\n", "",
        f"{GUARDS} -k second_word",
    ),
    query(
        "complete_jobs", "locks out of order", "    ORDER BY j.id FOR UPDATE OF j\n",
        "    FOR UPDATE OF j\n", _ORDERED + "complete",
    ),
    query(
        "complete_jobs", "locks nothing", "    ORDER BY j.id FOR UPDATE OF j\n",
        "    ORDER BY j.id\n", _AT_ONCE,
    ),
    query(
        "complete_jobs", "joins in any order", " AND (SELECT count(*) FROM fed) >= 0", "",
        "tests/sql/test_groups.py -k crosswise",
    ),
    query(
        "fail_jobs", "no fence", "ON j.id = d.id AND j.fence = d.fence\n", "ON j.id = d.id\n",
        _STALE,
    ),
    query(
        "fail_jobs", "any status", "    WHERE j.status = 'running'\n", "",
        f"{GUARDS} -k second_word",
    ),
    query(
        "fail_jobs", "locks out of order", "    ORDER BY j.id FOR UPDATE OF j\n",
        "    FOR UPDATE OF j\n", _ORDERED + "fail",
    ),
    query(
        "fail_jobs", "locks nothing", "    ORDER BY j.id FOR UPDATE OF j\n", "    ORDER BY j.id\n",
        _AT_ONCE,
    ),
    query(
        "release_jobs", "no fence", "ON j.id = d.id AND j.fence = d.fence\n", "ON j.id = d.id\n",
        _STALE,
    ),
    query(
        "release_jobs", "any status", "    WHERE j.status = 'running'\n", "",
        f"{GUARDS} -k second_word",
    ),
    query(
        "release_jobs", "locks out of order", "    ORDER BY j.id FOR UPDATE OF j\n",
        "    FOR UPDATE OF j\n", _ORDERED + "release",
    ),
    query(
        "release_jobs", "locks nothing", "    ORDER BY j.id FOR UPDATE OF j\n",
        "    ORDER BY j.id\n", _AT_ONCE,
    ),
    query(
        "release_jobs", "fence stays", "attempt = j.attempt - 1, fence = j.fence + 1,",
        "attempt = j.attempt - 1,", _RAISED,
    ),
    query(
        "heartbeat", "no fence",
        "      ON l.job_id = h.job_id AND l.fence = h.fence\n    ORDER BY",
        "      ON l.job_id = h.job_id\n    ORDER BY", _STALE,
    ),
    query(
        "heartbeat", "held by any fence",
        "LEFT JOIN lateack.leases l ON l.job_id = h.job_id AND l.fence = h.fence\n",
        "LEFT JOIN lateack.leases l ON l.job_id = h.job_id\n", _STALE,
    ),
    query(
        "heartbeat", "waits for what is locked", "FOR UPDATE OF l SKIP LOCKED",
        "FOR UPDATE OF l", f"{RACES} -k meets_a_locked_lease",
    ),
    query(
        "begin_jobs", "no fence",
        "ON l.job_id = b.job_id AND l.fence = b.fence\n", "ON l.job_id = b.job_id\n", _STALE,
    ),
    query(
        "begin_jobs", "locks out of order", "    ORDER BY l.job_id FOR UPDATE OF l\n",
        "    FOR UPDATE OF l\n", f"{LOCKS} -k bodies_begin",
    ),
]  # fmt: skip

OTHERS = [
    query(
        "reap_jobs", "valid leases", "THEN l.until < lateack.now()\n", "THEN true\n",
        f"{GUARDS} -k dead_process",
    ),
    query(
        "reap_jobs", "no fence", "AND j.status = 'running' AND j.fence = l.fence\n",
        "AND j.status = 'running'\n", f"{GUARDS} -k another_fence",
    ),
    query(
        "reap_jobs", "an owner's word without its fence",
        "(l.job_id, l.fence) IN (SELECT * FROM unnest($1::uuid[], $4) AS died (id, fence))",
        "l.job_id IN (SELECT id FROM unnest($1::uuid[], $4) AS died (id, fence))",
        f"{MOVES} -k its_own_loss",
    ),
    query(
        "reap_jobs", "waits for what is locked", "FOR UPDATE OF l, j SKIP LOCKED",
        "FOR UPDATE OF l, j", f"{RACES} -k against_the_owner",
    ),
    query(
        "reap_jobs", "locks nothing", " FOR UPDATE OF l, j SKIP LOCKED", "",
        f"{RACES} -k against_the_owner",
    ),
    query(
        "reap_jobs", "fence stays", "status = verdict, fence = j.fence + 1,", "status = verdict,",
        _RAISED,
    ),
    query(
        "cancel_jobs", "locks out of order", "    ORDER BY j.id FOR UPDATE\n", "    FOR UPDATE\n",
        _ORDERED + "cancel",
    ),
    query(
        "cancel_jobs", "locks nothing", "    ORDER BY j.id FOR UPDATE\n", "    ORDER BY j.id\n",
        f"{GUARDS} -k two_cancellations",
    ),
    query(
        "cancel_jobs", "locks a step alone",
        "(SELECT w.root_id FROM lateack.jobs w\n                            "
        "WHERE w.id = ANY ($2::uuid[]) AND w.tenant_id = $1))",
        "(SELECT w.id FROM lateack.jobs w\n                            "
        "WHERE w.id = ANY ($2::uuid[]) AND w.tenant_id = $1))",
        f"{LOCKS} -k behind_the_step",
    ),
    query(
        "cancel_jobs", "anybody's", "    WHERE j.tenant_id = $1 AND j.completed_at IS NULL\n",
        "    WHERE j.completed_at IS NULL\n", f"{MOVES} -k another_tenants",
    ),
    query(
        "cancel_jobs", "what has ended", "    WHERE j.tenant_id = $1 AND j.completed_at IS NULL\n",
        "    WHERE j.tenant_id = $1\n", f"{MOVES} -k terminal_row",
    ),
    query(
        "cancel_jobs", "fence stays", "THEN j.fence ELSE j.fence + 1 END",
        "THEN j.fence ELSE j.fence END", _RAISED,
    ),
    query(
        "expire_jobs", "fence stays", ", fence = j.fence + 1\n", "\n", _RAISED,
    ),
    query(
        "expire_jobs", "too early", " AND expires_at <= lateack.now()\n", "\n",
        "tests/scheduler/test_rescue.py -k late_jobs_expire",
    ),
    query(
        "expire_jobs", "what runs", "      AND status IN ('pending', 'scheduled', 'retrying')\n",
        "", f"{MOVES} -k latest_start",
    ),
    query(
        "expire_jobs", "waits for what is locked", "FOR UPDATE SKIP LOCKED", "FOR UPDATE",
        f"{TERMS} -k passes_over and expire",
    ),
    query(
        "defer_jobs", "trusts a row that is about to go", "WHERE j.status = 'pending'\n",
        "WHERE j.status = 'pending' "
        "AND NOT EXISTS (SELECT FROM lateack.outbox o WHERE o.job_id = j.id)\n",
        f"{GUARDS} -k loses_no_hint",
    ),
]  # fmt: skip

CREATION = [
    query(
        "create_jobs", "keys out of order", ' ORDER BY tenant_id, key COLLATE "C", id\n', "\n",
        f"{LOCKS} -k keys_are_inserted",
    ),
    query(
        "create_jobs", "a known key is an error", "    ON CONFLICT DO NOTHING\n", "",
        f"{CREATE} -k one_key_twice",
    ),
    query(
        "create_jobs", "a job for every asker",
        "    SELECT * FROM asked WHERE key IS NULL OR id IN (SELECT job_id FROM keyed)\n",
        "    SELECT * FROM asked\n", f"{CREATE} -k one_key_twice",
    ),
    query(
        "create_jobs", "waits for a key without end", "set_config('lock_timeout', '200ms', true)",
        "set_config('lock_timeout', '0', true)", f"{CREATE} -k holds_up_its_own_key",
    ),
    query(
        "register_tasks", "out of order", "ORDER BY d.name\n", "", f"{LOCKS} -k tasks_are",
    ),
    query(
        "lock_caps", "out of order", " ORDER BY name) AS names", ") AS names",
        f"{LOCKS} -k caps_are",
    ),
]  # fmt: skip

OUTBOX = [
    query(
        "lease_outbox", "what is not due", " WHERE due <= lateack.now()\n", "\n",
        f"{GUARDS} -k what_another_takes",
    ),
    query(
        "lease_outbox", "waits for what is locked", "FOR UPDATE SKIP LOCKED", "FOR UPDATE",
        f"{GUARDS} -k what_another_takes",
    ),
    query(
        "lease_outbox", "takes nothing away",
        "SET due = lateack.now() + make_interval(secs => $1)\n",
        "SET due = due + make_interval(secs => 0 * $1)\n",
        f"{GUARDS} -k what_another_takes",
    ),
    query(
        "mark_runnable", "before its time", " AND j.run_at <= lateack.now()\n", "\n",
        f"{GUARDS} -k before_its_time",
    ),
    query(
        "mark_runnable", "waits for what is locked", "FOR UPDATE OF j SKIP LOCKED",
        "FOR UPDATE OF j", f"{TERMS} -k passes_over and mark",
    ),
]  # fmt: skip

_STEP = "WHERE job_id = $1::uuid AND fence = $2::int4 FOR KEY SHARE"
STEPS = "tests/sql/test_steps.py"
EFFECTS = [
    mutant
    for step in ("begin_step", "repeat_step", "leave_step", "end_step")
    for mutant in (
        query(
            step, "no fence", _STEP,
            "WHERE job_id = $1::uuid AND $2::int4 IS NOT NULL FOR KEY SHARE",
            f"{STEPS} -k stale_owner and {step}",
        ),
        query(
            step, "locks nothing", _STEP, _STEP.removesuffix(" FOR KEY SHARE"),
            f"{STEPS} -k {step}",
        ),
    )
] + [
    query(
        "end_step", "what has ended", " AND (s.ended_at IS NULL OR s.fence = $2)", "",
        f"{STEPS} -k not_ended_again",
    ),
    query(
        "repeat_step", "what has ended", " AND s.ended_at IS NULL", "",
        f"{STEPS} -k not_ended_again",
    ),
    Mutant(
        "transaction: commits for whoever has lost the job", "core/lateack_core/postgres.py",
        "end = self._transaction.commit() if rows else self._transaction.rollback()",
        "end = self._transaction.commit()",
        "tests/consumers/test_effects.py -k lost_owner_commits_nothing",
    ),
]  # fmt: skip

RULES = [
    Mutant(
        "rules: a terminal row may change", f"{SCHEMA}/0002_rules.sql",
        "    FOR EACH ROW WHEN (OLD.completed_at IS NOT NULL)\n",
        "    FOR EACH ROW WHEN (false)\n", f"{MOVES} -k terminal_row",
    ),
    Mutant(
        "rules: the end of a step feeds nothing", f"{SCHEMA}/0002_rules.sql",
        "OLD.completed_at IS NULL AND NEW.completed_at IS NOT NULL AND NEW.feeds IS NOT NULL",
        "false", f"{WORKFLOW} -k hands_results_on",
    ),
]  # fmt: skip

GROUPS = "tests/sql/test_groups.py"
AUDITED = "tests/scheduler/test_audit.py"
RETAINED = "tests/scheduler/test_retention.py"
_FEED = f"{SCHEMA}/0007_groups.sql"
LATER = [
    Mutant(
        "groups: members of a failed one live on", _FEED,
        "WHERE waits_for = j.id AND engine = 'workflow'\n", "WHERE false\n",
        f"{GROUPS} -k first_failure",
    ),
    Mutant(
        "groups: the first end releases what waits", _FEED,
        "ELSIF j.succeeded + j.failed + j.cancelled = j.total THEN", "ELSE",
        f"{GROUPS} -k chord_runs_its_body",
    ),
    Mutant(
        "groups: results in any order", _FEED, " ORDER BY u.position)",
        " ORDER BY u.position DESC)",
        f"{GROUPS} -k list_of_its_results",
    ),
    query(
        "abandoned_members", "not those of groups inside",
        "ON a.parent_id = m.id AND m.engine = 'workflow'", "ON false",
        f"{GROUPS} -k first_failure",
    ),
    query(
        "prune_jobs", "a workflow whose steps live",
        "s.root_id = o.root_id AND s.completed_at IS NULL", "false",
        f"{RETAINED} -k last_member",
    ),
    query(
        "mend_leases", "whatever has moved since", "ON j.id = d.id AND j.fence = d.fence\n",
        "ON j.id = d.id\n", f"{AUDITED} -k moved_since",
    ),
    Mutant(
        "limits: too late is in time", "consumers/lateack_consumers/execution.py",
        "verdict.code is None and active.past_hard_limit(time.monotonic())",
        "verdict.code is None and False",
        "tests/consumers/test_effects.py -k hard_limit",
    ),
]  # fmt: skip

LEDGER = [*CLAIM, *OWNERS, *OTHERS, *CREATION, *OUTBOX, *EFFECTS, *RULES, *LATER]
