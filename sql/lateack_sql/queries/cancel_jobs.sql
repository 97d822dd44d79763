-- Cancel a tenant's jobs, and with a workflow all its steps. What nobody runs ends now; what runs
-- is marked, and its worker ends it. A terminal row is left as it is and not returned.
-- $1 tenant  $2 job ids
WITH asked AS MATERIALIZED (
    SELECT j.id FROM lateack.jobs j
    WHERE j.tenant_id = $1 AND j.completed_at IS NULL
      AND (j.id = ANY ($2::uuid[])
           OR j.root_id IN (SELECT w.id FROM lateack.jobs w
                            WHERE w.id = ANY ($2::uuid[]) AND w.tenant_id = $1 AND w.engine = 'workflow'))
    ORDER BY j.id FOR UPDATE
)
UPDATE lateack.jobs j SET
    cancel_requested_at = coalesce(j.cancel_requested_at, lateack.now()),
    status = CASE j.status WHEN 'running' THEN 'running' ELSE 'cancelled' END,
    completed_at = CASE WHEN j.status <> 'running' THEN lateack.now() END,
    fence = CASE j.status WHEN 'running' THEN j.fence ELSE j.fence + 1 END
FROM asked WHERE j.id = asked.id
RETURNING j.id, j.fence, j.attempt, j.status, j.completed_at
