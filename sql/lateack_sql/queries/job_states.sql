-- What watchers need to know of any jobs; who may watch was settled before. $1 job ids
SELECT j.id AS job_id, j.status, j.fence, j.attempt,
       coalesce(l.progress, j.progress, w.progress) AS progress, coalesce(l.step, j.step, w.step) AS step,
       j.engine, j.error_code, j.error_message, coalesce(j.completed_at, lateack.now()) AS at
FROM lateack.jobs j LEFT JOIN lateack.leases l ON l.job_id = j.id AND l.fence = j.fence
-- A workflow that goes on is as far as its steps are, and its step is the first task that runs.
LEFT JOIN LATERAL (
    SELECT round(avg(CASE WHEN s.completed_at IS NOT NULL THEN 100 ELSE coalesce(sl.progress, s.progress, 0) END)::numeric,
                 1)::real AS progress,
           min(s.task) FILTER (WHERE s.status = 'running') AS step
    FROM lateack.jobs s LEFT JOIN lateack.leases sl ON sl.job_id = s.id AND sl.fence = s.fence
    WHERE s.root_id = j.id AND s.engine <> 'workflow'
) AS w ON j.engine = 'workflow' AND j.completed_at IS NULL AND j.root_id = j.id
WHERE j.id = ANY ($1::uuid[])
