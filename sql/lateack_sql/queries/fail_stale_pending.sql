-- Pending cleanup: jobs that have been runnable and waiting for too long fail in one statement.
-- Never a job that somebody is claiming (SKIP LOCKED, then tested again as it is now), never one of
-- a paused queue, never one that the broker has not been told of, unless for very long. One that is
-- told again (a worker that lacks its task put it back, or the broker lost it) has waited all along.
-- $1 leader's name  $2 holder  $3 epoch  $4 timeout in seconds by queue name, as jsonb; "" is the
-- default, 0 is never  $5 seconds for a job that was never published  $6 how many at most
-- $7 seconds after which a worker counts as gone
WITH term AS MATERIALIZED (
    SELECT 1 FROM lateack.leader WHERE name = $1 AND holder = $2 AND epoch = $3 FOR SHARE
), stale AS MATERIALIZED (
    SELECT j.id
    FROM term, lateack.jobs j
    LEFT JOIN lateack.queues q ON q.name = j.queue
    CROSS JOIN LATERAL (SELECT coalesce(
        extract(epoch FROM q.pending_timeout)::float8,
        ($4::jsonb ->> j.queue)::float8, ($4::jsonb ->> '')::float8) AS seconds) AS timeout
    WHERE j.completed_at IS NULL AND j.status = 'pending' AND q.paused_at IS NULL
      AND CASE WHEN EXISTS (SELECT FROM lateack.outbox o WHERE o.job_id = j.id AND NOT o.republish)
               THEN j.created_at < lateack.now() - make_interval(secs => $5)
               ELSE timeout.seconds > 0
                    AND j.runnable_since < lateack.now() - make_interval(secs => timeout.seconds) END
    -- The order of the live index: by id, the planner might walk millions of finished rows.
    ORDER BY j.queue, j.created_at LIMIT $6 FOR UPDATE OF j SKIP LOCKED
), fed AS MATERIALIZED (
    SELECT i.id FROM lateack.joins i
    WHERE i.id IN (SELECT j.feeds FROM lateack.jobs j JOIN stale x ON j.id = x.id)
    ORDER BY i.id FOR UPDATE
)
UPDATE lateack.jobs j SET
    status = 'failed', completed_at = lateack.now(), fence = j.fence + 1,
    error_code = verdict.code,
    error_message = CASE verdict.code
        WHEN 'UnknownTask' THEN 'pending timeout: no live worker knows the task ' || j.task
        ELSE 'pending timeout: auto cleanup' END,
    error_info = jsonb_build_object('type', verdict.code, 'timestamp', lateack.now())
FROM stale
JOIN lateack.jobs s ON s.id = stale.id
CROSS JOIN LATERAL (SELECT CASE
    WHEN EXISTS (SELECT FROM lateack.workers w WHERE s.queue = ANY (w.queues)
                 AND w.seen_at > lateack.now() - make_interval(secs => $7))
     AND NOT EXISTS (SELECT FROM lateack.workers w WHERE s.task = ANY (w.tasks)
                     AND w.seen_at > lateack.now() - make_interval(secs => $7))
    THEN 'UnknownTask' ELSE 'PendingTimeout' END AS code) AS verdict
WHERE j.id = stale.id AND (SELECT count(*) FROM fed) >= 0
RETURNING j.id, j.fence, j.attempt, j.status, j.completed_at
