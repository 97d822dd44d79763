-- Mend what an audit found twice: leases without their running job go; jobs that run without a lease are
-- handed back, since nobody could ever end them. Compare-and-set on the fence that was found.
-- $1 jobs that run without a lease  $2 their fences  $3 leases without a job  $4 their fences
WITH lost AS MATERIALIZED (
    SELECT j.id FROM lateack.jobs j
    JOIN unnest($1::uuid[], $2::int4[]) AS d (id, fence) ON j.id = d.id AND j.fence = d.fence
    WHERE j.status = 'running'
    ORDER BY j.id FOR UPDATE OF j
), moved AS (
    UPDATE lateack.jobs j SET
        status = 'pending', fence = j.fence + 1, runnable_since = lateack.now(), enqueued_at = lateack.now(),
        progress = NULL, step = NULL
    FROM lost WHERE j.id = lost.id
    RETURNING j.id, j.fence, j.attempt, j.status, j.queue, j.priority, j.completed_at
), again AS (
    INSERT INTO lateack.outbox (job_id, queue, priority, due)
    SELECT id, queue, priority, lateack.now() FROM moved
), freed AS (
    DELETE FROM lateack.leases l USING unnest($3::uuid[], $4::int4[]) AS d (id, fence)
    WHERE l.job_id = d.id AND l.fence = d.fence
)
SELECT id, fence, attempt, status, completed_at FROM moved
