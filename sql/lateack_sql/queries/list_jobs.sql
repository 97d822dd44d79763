-- A tenant's jobs, newest first, without results.
-- $1 tenant  $2 before this id or null  $3 statuses or null  $4 task or null  $5 queue or null
-- $6 tag or null  $7 created since or null  $8 created before or null  $9 how many
SELECT j.id AS job_id, j.task, j.queue, j.status, j.priority,
       coalesce(l.progress, j.progress) AS progress, coalesce(l.step, j.step) AS step,
       j.fence, j.attempt, j.max_retries, NULL::json AS result, j.result_location, j.error_code, j.error_message,
       j.error_info, j.tags, j.meta, j.owner, j.external_ref, j.parent_id, j.retry_of,
       j.cancel_requested_at IS NOT NULL AS cancel_requested,
       j.created_at, j.run_at, j.started_at, j.completed_at, j.expires_at, j.engine
FROM lateack.jobs j
LEFT JOIN lateack.leases l ON l.job_id = j.id AND l.fence = j.fence
WHERE j.tenant_id = $1
  AND ($2::uuid IS NULL OR j.id < $2)
  AND ($3::text[] IS NULL OR j.status = ANY ($3))
  AND ($4::text IS NULL OR j.task = $4)
  AND ($5::text IS NULL OR j.queue = $5)
  AND ($6::text IS NULL OR $6 = ANY (j.tags))
  AND ($7::timestamptz IS NULL OR j.created_at >= $7)
  AND ($8::timestamptz IS NULL OR j.created_at < $8)
ORDER BY j.id DESC LIMIT $9
