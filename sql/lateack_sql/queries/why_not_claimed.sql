-- Why a claim returned nothing for these ids; what is absent here does not exist.
-- $1 job ids  $2 losses that end a job
SELECT j.id, j.status, j.fence, j.task, j.queue, j.priority, j.completed_at IS NOT NULL AS ended,
       j.run_at > lateack.now() AS later,
       j.expires_at <= lateack.now() AS expired,
       j.cancel_requested_at IS NOT NULL AS cancelling,
       j.worker_losses > 0 AND (j.worker_losses + 1 >= $2 OR j.attempt >= j.max_retries) AS last_life,
       l.until > lateack.now() AS leased, l.worker_id
FROM lateack.jobs j LEFT JOIN lateack.leases l ON l.job_id = j.id
WHERE j.id = ANY ($1::uuid[])
