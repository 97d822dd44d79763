-- A tenant's failed jobs that were never redriven, newest first. What failed only because a step before
-- it did is listed when it is asked for.
-- $1 tenant  $2 task or null  $3 queue or null  $4 tag or null  $5 error code or null
-- $6 ended since or null  $7 ended before or null  $8 before this id  $9 how many
SELECT j.id AS job_id, j.task, j.queue, j.attempt, j.worker_losses, j.error_code, j.error_message,
       CASE WHEN j.waits_for IS NOT NULL OR j.feeds IS NOT NULL THEN j.root_id END AS workflow_id,
       j.retry_of, j.created_at, j.completed_at
FROM lateack.jobs j
WHERE j.tenant_id = $1 AND j.error_code IS NOT NULL AND j.id < $8::uuid
  AND ($2::text IS NULL OR j.task = $2)
  AND ($3::text IS NULL OR j.queue = $3)
  AND ($4::text IS NULL OR $4 = ANY (j.tags))
  AND (j.error_code = $5::text OR ($5 IS NULL AND j.error_code <> 'UpstreamFailed'))
  AND ($6::timestamptz IS NULL OR j.completed_at >= $6)
  AND ($7::timestamptz IS NULL OR j.completed_at < $7)
  AND NOT EXISTS (SELECT FROM lateack.redrives r WHERE r.job_id = j.id)
ORDER BY j.id DESC LIMIT $9
