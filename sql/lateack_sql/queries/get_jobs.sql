-- Whole documents of a tenant's jobs. $1 tenant  $2 job ids
SELECT j.id AS job_id, j.task, j.queue, j.status, j.priority,
       coalesce(l.progress, j.progress) AS progress, coalesce(l.step, j.step) AS step,
       j.fence, j.attempt, j.max_retries, r.result, j.result_location, j.error_code, j.error_message, j.error_info,
       j.tags, j.meta, j.owner, j.external_ref, j.parent_id, j.retry_of,
       j.cancel_requested_at IS NOT NULL AS cancel_requested,
       j.created_at, j.run_at, j.started_at, j.completed_at, j.expires_at, j.engine
FROM lateack.jobs j
LEFT JOIN lateack.leases l ON l.job_id = j.id AND l.fence = j.fence
LEFT JOIN lateack.results r ON r.job_id = j.id
WHERE j.tenant_id = $1 AND j.id = ANY ($2::uuid[])
