-- Run a tenant's failed or cancelled jobs again, as new ones: each once, ever.
-- The row in redrives decides: who waited for a job's lock meets the row that was committed
-- meanwhile, and makes nothing; redrive_state reads it in a second statement. Steps of workflows, and
-- jobs that have not ended or succeeded, are left.
-- A new job has what the old one was asked to be, none of what became of it, and as much time to start
-- as the old one had from its creation. Begun and ended steps go with it (fence 0: of no attempt of its
-- own), and so does the idempotency key: whoever submits the same again gets the new job.
-- Locks the old jobs in order of id; nobody who holds a key waits for a job.
-- $1 tenant  $2 job ids  $3 the run they belong to or null  $4 seconds before the relay takes fresh rows
WITH ended AS MATERIALIZED (
    SELECT j.* FROM lateack.jobs j
    WHERE j.tenant_id = $1 AND j.id = ANY ($2::uuid[])
      AND j.status IN ('failed', 'cancelled')
      AND j.engine <> 'workflow' AND j.waits_for IS NULL AND j.feeds IS NULL
    ORDER BY j.id FOR UPDATE
), first AS (
    INSERT INTO lateack.redrives (job_id, new_id, tenant_id, run, made_at)
    SELECT id, lateack.uuid7(), tenant_id, $3, lateack.now() FROM ended
    ON CONFLICT DO NOTHING
    RETURNING job_id, new_id
), made AS (
    INSERT INTO lateack.jobs (
        id, tenant_id, task, queue, engine, priority, status, max_retries, args, kwargs, meta, tags, owner,
        external_ref, trace, callback, limit_key, unique_key, root_id, parent_id, position, immutable,
        retry_of, origin_id, ignore_result, soft_time_limit, time_limit, created_at, run_at,
        runnable_since, enqueued_at, expires_at)
    SELECT f.new_id, e.tenant_id, e.task, e.queue, e.engine, e.priority, 'pending', e.max_retries, e.args, e.kwargs,
           e.meta, e.tags, e.owner, e.external_ref, e.trace, e.callback, e.limit_key, e.unique_key, e.root_id,
           e.parent_id, e.position, e.immutable, e.id, coalesce(e.origin_id, e.id), e.ignore_result,
           e.soft_time_limit, e.time_limit, lateack.now(), lateack.now(), lateack.now(), lateack.now(),
           -- A limit that lay before the creation says nothing about how long; there is none then.
           CASE WHEN e.expires_at > e.created_at THEN lateack.now() + (e.expires_at - e.created_at) END
    FROM first f JOIN ended e ON e.id = f.job_id
    RETURNING id, queue, priority
), kept AS (
    INSERT INTO lateack.steps (job_id, name, fence, attempt, begun, began_at, ended_at, result, error)
    SELECT f.new_id, s.name, 0, s.attempt, s.begun, s.began_at, s.ended_at, s.result, s.error
    FROM first f JOIN lateack.steps s ON s.job_id = f.job_id
), repointed AS (
    UPDATE lateack.idempotency i SET
        job_id = f.new_id, expires_at = greatest(i.expires_at, lateack.now() + interval '24 hours')
    FROM first f WHERE i.job_id = f.job_id AND i.tenant_id = $1
), published AS (
    INSERT INTO lateack.outbox (job_id, queue, priority, due)
    SELECT id, queue, priority, lateack.now() + make_interval(secs => $4) FROM made
    RETURNING id, job_id
)
SELECT f.job_id, m.id AS new_id, p.id AS outbox_id, m.queue, m.priority
FROM first f JOIN made m ON m.id = f.new_id JOIN published p ON p.job_id = m.id
ORDER BY f.job_id
