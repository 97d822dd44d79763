-- Record an error, fenced: another attempt when a delay is given and one is left, else the end.
-- A job whose cancellation was asked for ends cancelled instead.
-- $1 job ids  $2 fences  $3 error codes  $4 messages  $5 error infos as jsonb
-- $6 seconds until the next attempt, null for none
WITH mine AS MATERIALIZED (
    SELECT j.id, j.feeds, d.code, d.message, d.info, d.delay, l.worker_id, l.progress, l.step,
           CASE WHEN j.cancel_requested_at IS NOT NULL THEN 'cancelled'
                WHEN d.delay IS NOT NULL AND j.attempt <= j.max_retries THEN 'retrying'
                ELSE 'failed' END AS verdict
    FROM lateack.jobs j
    JOIN unnest($1::uuid[], $2::int4[], $3::text[], $4::text[], $5::jsonb[], $6::float8[])
         AS d (id, fence, code, message, info, delay) ON j.id = d.id AND j.fence = d.fence
    LEFT JOIN lateack.leases l ON l.job_id = j.id
    WHERE j.status = 'running'
    ORDER BY j.id FOR UPDATE OF j
), fed AS MATERIALIZED (
    SELECT i.id FROM lateack.joins i
    WHERE i.id IN (SELECT feeds FROM mine WHERE verdict <> 'retrying') ORDER BY i.id FOR UPDATE
), freed AS (
    DELETE FROM lateack.leases l USING mine WHERE l.job_id = mine.id
), told AS (
    INSERT INTO lateack.attempts
        (job_id, fence, attempt, worker_id, started_at, ended_at, outcome, error_code, error_message)
    SELECT j.id, j.fence, j.attempt, mine.worker_id, j.started_at, lateack.now(),
           CASE verdict WHEN 'retrying' THEN 'retried' ELSE verdict END, mine.code, mine.message
    FROM mine JOIN lateack.jobs j ON j.id = mine.id
), moved AS (
    UPDATE lateack.jobs j SET
        status = verdict,
        run_at = CASE verdict WHEN 'retrying' THEN lateack.now() + make_interval(secs => mine.delay) ELSE j.run_at END,
        runnable_since = NULL,
        progress = mine.progress, step = mine.step,
        completed_at = CASE WHEN verdict <> 'retrying' THEN lateack.now() END,
        error_code = CASE verdict WHEN 'failed' THEN mine.code END,
        error_message = CASE verdict WHEN 'failed' THEN mine.message END,
        error_info = CASE verdict WHEN 'failed' THEN mine.info END
    FROM mine WHERE j.id = mine.id AND (SELECT count(*) FROM fed) >= 0
    RETURNING j.id, j.fence, j.attempt, j.status, j.queue, j.priority, j.run_at, j.completed_at
), again AS (
    INSERT INTO lateack.outbox (job_id, queue, priority, due)
    SELECT id, queue, priority, run_at FROM moved WHERE status = 'retrying'
)
SELECT id, fence, attempt, status, completed_at FROM moved
