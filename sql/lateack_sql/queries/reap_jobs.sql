-- Jobs whose lease has expired: runnable again, or failed with WorkerLost when they have lost
-- workers too often or have no attempt left. One whose body had not begun is handed back: that
-- costs no attempt and counts no loss (I10). A sweeper: it takes a lease before its job, so it
-- skips whatever is locked; the locked rows are tested again as they are now.
-- $1 job ids, or null: any  $2 losses that end a job  $3 how many at most
-- $4 fences, when the owner itself says that the process that ran them died: no waiting for the lease,
--    and always a loss: a process that dies before any body begins would go round for ever
WITH lost AS MATERIALIZED (
    SELECT l.job_id, l.worker_id, l.progress, l.step, (l.waiting AND $4::int4[] IS NULL) AS unbegun,
           CASE WHEN j.cancel_requested_at IS NOT NULL THEN 'cancelled'
                WHEN l.waiting AND $4::int4[] IS NULL THEN 'pending'
                WHEN j.worker_losses + 1 >= $2 OR j.attempt > j.max_retries
                     OR NOT coalesce(t.acks_late, true) THEN 'failed'
                ELSE 'pending' END AS verdict
    FROM lateack.leases l
    JOIN lateack.jobs j ON j.id = l.job_id
    LEFT JOIN lateack.tasks t ON t.name = j.task
    WHERE CASE WHEN $4::int4[] IS NULL THEN l.until < lateack.now()
               ELSE (l.job_id, l.fence) IN (SELECT * FROM unnest($1::uuid[], $4) AS died (id, fence)) END
      AND j.status = 'running' AND j.fence = l.fence
      AND ($1::uuid[] IS NULL OR l.job_id = ANY ($1))
    ORDER BY l.job_id LIMIT $3 FOR UPDATE OF l, j SKIP LOCKED
), fed AS MATERIALIZED (
    SELECT i.id FROM lateack.joins i
    WHERE i.id IN (SELECT j.feeds FROM lateack.jobs j JOIN lost x ON j.id = x.job_id WHERE verdict <> 'pending')
    ORDER BY i.id FOR UPDATE
), freed AS (
    DELETE FROM lateack.leases l USING lost WHERE l.job_id = lost.job_id
), told AS (
    INSERT INTO lateack.attempts
        (job_id, fence, attempt, worker_id, started_at, ended_at, outcome, error_code, error_message)
    SELECT j.id, j.fence, j.attempt, lost.worker_id, j.started_at, lateack.now(),
           CASE WHEN unbegun THEN 'handed_back' ELSE 'lost' END,
           CASE WHEN NOT unbegun THEN 'WorkerLost' END,
           CASE WHEN unbegun THEN 'the worker was lost before the body began'
                ELSE 'the worker stopped renewing its lease' END
    FROM lost JOIN lateack.jobs j ON j.id = lost.job_id
), moved AS (
    UPDATE lateack.jobs j SET
        status = verdict, fence = j.fence + 1, attempt = j.attempt - unbegun::int,
        worker_losses = j.worker_losses + (NOT unbegun)::int,
        runnable_since = CASE verdict WHEN 'pending' THEN lateack.now() END,
        enqueued_at = lateack.now(), progress = lost.progress, step = lost.step,
        completed_at = CASE WHEN verdict <> 'pending' THEN lateack.now() END,
        error_code = CASE verdict WHEN 'failed' THEN 'WorkerLost' END,
        error_message = CASE verdict WHEN 'failed' THEN
            'the worker was lost ' || (j.worker_losses + 1) || ' times, on attempt ' || j.attempt END,
        error_info = CASE verdict WHEN 'failed' THEN jsonb_build_object(
            'type', 'WorkerLost', 'timestamp', lateack.now(), 'worker_losses', j.worker_losses + 1) END
    FROM lost WHERE j.id = lost.job_id AND (SELECT count(*) FROM fed) >= 0
    RETURNING j.id, j.fence, j.attempt, j.status, j.queue, j.priority, j.completed_at
), again AS (
    INSERT INTO lateack.outbox (job_id, queue, priority, due)
    SELECT id, queue, priority, lateack.now() FROM moved WHERE status = 'pending'
)
SELECT id, fence, attempt, status, completed_at FROM moved
