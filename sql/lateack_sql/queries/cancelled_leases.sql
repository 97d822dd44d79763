-- Running jobs of one worker whose cancellation was asked for. $1 worker
SELECT l.job_id, l.fence
FROM lateack.leases l JOIN lateack.jobs j ON j.id = l.job_id
WHERE l.worker_id = $1 AND j.cancel_requested_at IS NOT NULL
