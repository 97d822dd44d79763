-- Run a schedule now, by hand: a job and a row among its ticks, in one statement. Refused, with the reason,
-- when its task cannot run, or when runs may not overlap and one is live. Returns nothing when the
-- schedule was changed since it was read.
-- $1 tenant  $2 name  $3 revision that was read  $4 idempotency key or null
WITH mine AS MATERIALIZED (
    SELECT * FROM lateack.schedules
    WHERE tenant_id = $1 AND name = $2 AND revision = $3 AND retired_at IS NULL FOR UPDATE
), ready AS MATERIALIZED (
    SELECT m.id, live.runs,
           CASE WHEN t.name IS NULL THEN 'unknown_task'
                WHEN lateack.misfit(t.parameters, m.args::jsonb, m.kwargs::jsonb) IS NOT NULL
                THEN 'invalid_arguments'
                WHEN m.overlap = 'skip' AND cardinality(live.runs) > 0 THEN 'overlap' END AS hindrance
    FROM mine m
    LEFT JOIN lateack.tasks t ON t.name = m.task
    -- By id and nothing else: the index of live jobs looks cheap until there are many of them.
    CROSS JOIN LATERAL (SELECT coalesce(array_agg(run ORDER BY run), '{}') AS runs FROM unnest(m.runs) AS run
                        WHERE (SELECT j.completed_at IS NULL FROM lateack.jobs j WHERE j.id = run)) AS live
), sent AS MATERIALIZED (
    SELECT m.id, m.runs, lateack.submit(
               task => m.task, args => m.args, kwargs => m.kwargs, tenant => m.tenant_id, queue => m.queue,
               priority => m.priority::int, max_retries => m.max_retries, idempotency_key => $4,
               expires => lateack.now() + make_interval(secs => m.expires),
               meta => jsonb_build_object('schedule', m.name)) AS job_id
    FROM mine m JOIN ready r USING (id) WHERE r.hindrance IS NULL
), made AS (
    INSERT INTO lateack.ticks (schedule_id, due_at, outcome, job_id, decided_at)
    -- A key that made its job a moment ago.
    SELECT id, lateack.now(), 'manual', job_id, lateack.now() FROM sent WHERE job_id <> ALL (runs)
    RETURNING job_id
), moved AS (
    UPDATE lateack.schedules s SET
        revision = s.revision + 1, runs = (r.runs || made.job_id)[greatest(1, cardinality(r.runs) - 18):]
    FROM ready r, made WHERE s.id = r.id
)
SELECT r.hindrance, sent.job_id FROM ready r LEFT JOIN sent ON true
