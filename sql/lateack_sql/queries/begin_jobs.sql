-- Bodies that waited start now, fenced: from here on, losing the worker costs an attempt (I10). What
-- is not returned is no longer the caller's and must not start. Locks leases in order of job id.
-- $1 job ids  $2 fences
WITH mine AS MATERIALIZED (
    SELECT l.job_id, l.fence
    FROM lateack.leases l
    JOIN unnest($1::uuid[], $2::int4[]) AS b (job_id, fence) ON l.job_id = b.job_id AND l.fence = b.fence
    ORDER BY l.job_id FOR UPDATE OF l
)
UPDATE lateack.leases l SET waiting = false
FROM mine WHERE l.job_id = mine.job_id AND l.fence = mine.fence
RETURNING l.job_id, l.fence
