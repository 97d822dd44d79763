-- How many of a tenant's ended jobs were never redriven, by task and error: those that can be, and those
-- that are parts of workflows. What failed only because a step before it did is counted when it is asked for.
-- $1 tenant  $2 failed or cancelled  $3 task or null  $4 queue or null  $5 tag or null
-- $6 error code or null  $7 ended since or null  $8 ended before or null
WITH ended AS (
    SELECT j.* FROM lateack.jobs j
    WHERE $2::text = 'failed' AND j.tenant_id = $1 AND j.error_code IS NOT NULL
    UNION ALL
    SELECT j.* FROM lateack.jobs j
    WHERE $2 = 'cancelled' AND j.tenant_id = $1 AND j.completed_at IS NOT NULL AND j.error_code IS NULL
      AND j.status = 'cancelled'
)
SELECT e.task, e.error_code,
       count(*) FILTER (WHERE NOT part.is_one) AS jobs,
       count(*) FILTER (WHERE part.is_one) AS in_workflows,
       sum(e.worker_losses)::bigint AS worker_losses
FROM ended e
CROSS JOIN LATERAL (SELECT e.engine = 'workflow' OR e.waits_for IS NOT NULL OR e.feeds IS NOT NULL AS is_one) AS part
WHERE ($3::text IS NULL OR e.task = $3)
  AND ($4::text IS NULL OR e.queue = $4)
  AND ($5::text IS NULL OR $5 = ANY (e.tags))
  AND (e.error_code = $6::text OR ($6 IS NULL AND e.error_code IS DISTINCT FROM 'UpstreamFailed'))
  AND ($7::timestamptz IS NULL OR e.completed_at >= $7)
  AND ($8::timestamptz IS NULL OR e.completed_at < $8)
  AND NOT EXISTS (SELECT FROM lateack.redrives r WHERE r.job_id = e.id)
GROUP BY e.task, e.error_code
ORDER BY count(*) DESC, e.task, e.error_code
