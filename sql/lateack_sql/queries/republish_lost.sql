-- Pending jobs that the broker no longer knows: put in one of the queue's streams long enough before
-- the watermark (the newest entry that was delivered) to have been delivered themselves.
-- A healthy backlog is younger than the watermark and stays.
-- $1 leader's name  $2 holder  $3 epoch  $4 queue  $5 lowest  $6 highest priority of the stream
-- $7 age of the watermark, with the grace, in seconds  $8 how many at most
WITH term AS MATERIALIZED (
    SELECT 1 FROM lateack.leader WHERE name = $1 AND holder = $2 AND epoch = $3 FOR SHARE
), lost AS MATERIALIZED (
    SELECT j.id FROM term, lateack.jobs j
    WHERE j.completed_at IS NULL AND j.queue = $4 AND j.status = 'pending'
      AND j.priority BETWEEN $5 AND $6
      AND j.run_at <= lateack.now()
      AND j.enqueued_at < lateack.now() - make_interval(secs => $7)
      AND NOT EXISTS (SELECT FROM lateack.outbox o WHERE o.job_id = j.id)
    ORDER BY j.created_at LIMIT $8 FOR UPDATE OF j SKIP LOCKED
), marked AS (
    UPDATE lateack.jobs j SET enqueued_at = lateack.now() FROM lost WHERE j.id = lost.id
    RETURNING j.id, j.queue, j.priority
)
INSERT INTO lateack.outbox (job_id, queue, priority, due, republish)
SELECT id, queue, priority, lateack.now(), true FROM marked
RETURNING job_id
