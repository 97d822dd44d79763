-- Why a claim returned nothing for these ids; what is absent here does not exist.
-- $1 job ids
SELECT j.id, j.status, j.fence, j.task, j.queue, j.priority, j.completed_at IS NOT NULL AS ended,
       j.run_at > lateack.now() AS later,
       j.expires_at <= lateack.now() AS expired,
       j.cancel_requested_at IS NOT NULL AS cancelling,
       l.until > lateack.now() AS leased, l.worker_id
FROM lateack.jobs j LEFT JOIN lateack.leases l ON l.job_id = j.id
WHERE j.id = ANY ($1::uuid[])
