-- Live jobs by queue and status, with the age of the oldest runnable one in seconds. $1 tenant, or null: all
SELECT queue, status, count(*) AS jobs,
       extract(epoch FROM lateack.now() - min(runnable_since) FILTER (WHERE status = 'pending'))::float8 AS oldest
FROM lateack.jobs
WHERE completed_at IS NULL AND ($1::text IS NULL OR tenant_id = $1)
GROUP BY queue, status
