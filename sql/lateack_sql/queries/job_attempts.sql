-- How a tenant's job's attempts ended, oldest first. $1 tenant  $2 job id
SELECT a.attempt, a.fence, a.worker_id, a.started_at, a.ended_at, a.outcome, a.error_code, a.error_message
FROM lateack.attempts a JOIN lateack.jobs j ON j.id = a.job_id
WHERE j.tenant_id = $1 AND j.id = $2
ORDER BY a.fence
