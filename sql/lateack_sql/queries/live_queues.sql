-- Queues that have jobs in them: a loose walk over the live index, one step a queue.
WITH RECURSIVE q (queue) AS (
    (SELECT queue FROM lateack.jobs WHERE completed_at IS NULL ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT j.queue FROM lateack.jobs j
            WHERE j.completed_at IS NULL AND j.queue > q.queue ORDER BY j.queue LIMIT 1)
    FROM q WHERE q.queue IS NOT NULL
)
SELECT queue FROM q WHERE queue IS NOT NULL
