-- Forget workers that were not seen for long and hold no lease. $1 seconds
DELETE FROM lateack.workers w
WHERE seen_at < lateack.now() - make_interval(secs => $1)
  AND NOT EXISTS (SELECT FROM lateack.leases l WHERE l.worker_id = w.id)
RETURNING id
