-- Cancel a tenant's jobs, and with a workflow all its steps. What nobody runs ends now; what runs
-- is marked, and its worker ends it. A terminal row is left as it is and not returned.
-- Locks whole workflows, in order of id, though only a step is asked for: who ends a step goes on to
-- what waits for it, and must not meet it locked by somebody who waits for that step's neighbour.
-- $1 tenant  $2 job ids
WITH locked AS MATERIALIZED (
    SELECT j.id, j.root_id FROM lateack.jobs j
    WHERE j.tenant_id = $1 AND j.completed_at IS NULL
      AND (j.id = ANY ($2::uuid[])
           OR j.root_id IN (SELECT w.root_id FROM lateack.jobs w
                            WHERE w.id = ANY ($2::uuid[]) AND w.tenant_id = $1))
    ORDER BY j.id FOR UPDATE
), asked AS (
    SELECT l.id FROM locked l
    WHERE l.id = ANY ($2::uuid[])
       OR l.root_id IN (SELECT w.id FROM lateack.jobs w
                        WHERE w.id = ANY ($2::uuid[]) AND w.tenant_id = $1 AND w.engine = 'workflow')
), fed AS MATERIALIZED (
    SELECT i.id FROM lateack.joins i
    WHERE i.id IN (SELECT j.feeds FROM lateack.jobs j JOIN asked x ON j.id = x.id)
    ORDER BY i.id FOR UPDATE
)
UPDATE lateack.jobs j SET
    cancel_requested_at = coalesce(j.cancel_requested_at, lateack.now()),
    status = CASE j.status WHEN 'running' THEN 'running' ELSE 'cancelled' END,
    completed_at = CASE WHEN j.status <> 'running' THEN lateack.now() END,
    fence = CASE j.status WHEN 'running' THEN j.fence ELSE j.fence + 1 END
FROM asked WHERE j.id = asked.id AND (SELECT count(*) FROM fed) >= 0
RETURNING j.id, j.fence, j.attempt, j.status, j.completed_at
