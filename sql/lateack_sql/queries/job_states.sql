-- What watchers need to know of any jobs; who may watch was settled before. $1 job ids
SELECT j.id AS job_id, j.status, j.fence, j.attempt,
       coalesce(l.progress, j.progress) AS progress, coalesce(l.step, j.step) AS step,
       j.error_code, j.error_message, coalesce(j.completed_at, lateack.now()) AS at
FROM lateack.jobs j LEFT JOIN lateack.leases l ON l.job_id = j.id AND l.fence = j.fence
WHERE j.id = ANY ($1::uuid[])
