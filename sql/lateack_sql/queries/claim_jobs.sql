-- The only door to `running`: compare-and-set, one lease, fence + 1.
-- Locks the jobs in order of id. The lease is inserted last, so that whoever waited for a job's
-- row meets the lease that was made meanwhile (its primary key) and gets nothing.
-- $1 job ids  $2 worker  $3 lease in seconds  $4 the tasks this worker has
-- $5 those of them whose bodies wait for something else before they start; begin_jobs tells when
-- $6 losses that end a job: those are left that have lost a worker and that one more loss would end;
--    null: they are taken too
WITH free AS MATERIALIZED (
    SELECT id, fence, task FROM lateack.jobs
    WHERE id = ANY ($1::uuid[])
      AND status IN ('pending', 'scheduled', 'retrying')
      AND run_at <= lateack.now()
      AND (expires_at IS NULL OR expires_at > lateack.now())
      AND cancel_requested_at IS NULL
      AND task = ANY ($4::text[])
      AND ($6::int4 IS NULL OR worker_losses = 0 OR (worker_losses + 1 < $6 AND attempt < max_retries))
    ORDER BY id FOR UPDATE
), leased AS (
    INSERT INTO lateack.leases (job_id, fence, worker_id, until, waiting)
    SELECT id, fence + 1, $2, lateack.now() + make_interval(secs => $3), task = ANY ($5::text[]) FROM free
    ON CONFLICT (job_id) DO NOTHING
    RETURNING job_id, fence
)
UPDATE lateack.jobs j SET
    status = 'running', fence = leased.fence, attempt = j.attempt + 1, started_at = lateack.now(),
    progress = NULL, step = NULL
FROM leased WHERE j.id = leased.job_id
RETURNING j.id, j.tenant_id, j.task, j.queue, j.priority, j.fence, j.attempt, j.max_retries, j.args, j.kwargs,
    j.meta, j.root_id, j.ignore_result, j.soft_time_limit, j.time_limit, j.started_at,
    CASE WHEN j.waits_for IS NOT NULL AND NOT j.immutable THEN lateack.gathered(j.waits_for) END AS upstream,
    j.origin_id
