-- Hand jobs back, fenced, their attempt given back too: a deploy costs none (I10).
-- $1 job ids  $2 fences
WITH mine AS MATERIALIZED (
    SELECT j.id, l.worker_id
    FROM lateack.jobs j
    JOIN unnest($1::uuid[], $2::int4[]) AS d (id, fence) ON j.id = d.id AND j.fence = d.fence
    LEFT JOIN lateack.leases l ON l.job_id = j.id
    WHERE j.status = 'running'
    ORDER BY j.id FOR UPDATE OF j
), freed AS (
    DELETE FROM lateack.leases l USING mine WHERE l.job_id = mine.id
), told AS (
    INSERT INTO lateack.attempts (job_id, fence, attempt, worker_id, started_at, ended_at, outcome)
    SELECT j.id, j.fence, j.attempt, mine.worker_id, j.started_at, lateack.now(), 'handed_back'
    FROM mine JOIN lateack.jobs j ON j.id = mine.id
), moved AS (
    UPDATE lateack.jobs j SET
        status = CASE WHEN j.cancel_requested_at IS NOT NULL THEN 'cancelled' ELSE 'pending' END,
        completed_at = CASE WHEN j.cancel_requested_at IS NOT NULL THEN lateack.now() END,
        attempt = j.attempt - 1, fence = j.fence + 1,
        runnable_since = lateack.now(), enqueued_at = lateack.now(), progress = NULL, step = NULL
    FROM mine WHERE j.id = mine.id
    RETURNING j.id, j.fence, j.attempt, j.status, j.queue, j.priority, j.completed_at
), again AS (
    INSERT INTO lateack.outbox (job_id, queue, priority, due)
    SELECT id, queue, priority, lateack.now() FROM moved WHERE status = 'pending'
)
SELECT id, fence, attempt, status, completed_at FROM moved
