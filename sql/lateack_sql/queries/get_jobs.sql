-- Whole documents of a tenant's jobs. $1 tenant  $2 job ids
SELECT j.id AS job_id, j.task, j.queue, j.status, j.priority,
       coalesce(l.progress, j.progress, w.progress) AS progress, coalesce(l.step, j.step, w.step) AS step,
       j.fence, j.attempt, j.max_retries, r.result, j.result_location, j.error_code, j.error_message, j.error_info,
       j.tags, j.meta, j.owner, j.external_ref, j.parent_id, j.retry_of,
       j.cancel_requested_at IS NOT NULL AS cancel_requested,
       j.created_at, j.run_at, j.started_at, j.completed_at, j.expires_at, j.engine
FROM lateack.jobs j
LEFT JOIN lateack.leases l ON l.job_id = j.id AND l.fence = j.fence
-- A workflow that goes on is as far as its steps are, and its step is the first task that runs.
LEFT JOIN LATERAL (
    SELECT round(avg(CASE WHEN s.completed_at IS NOT NULL THEN 100 ELSE coalesce(sl.progress, s.progress, 0) END)::numeric,
                 1)::real AS progress,
           min(s.task) FILTER (WHERE s.status = 'running') AS step
    FROM lateack.jobs s LEFT JOIN lateack.leases sl ON sl.job_id = s.id AND sl.fence = s.fence
    WHERE s.root_id = j.id AND s.engine <> 'workflow'
) AS w ON j.engine = 'workflow' AND j.completed_at IS NULL AND j.root_id = j.id
LEFT JOIN lateack.results r ON r.job_id = j.id
WHERE j.tenant_id = $1 AND j.id = ANY ($2::uuid[])
