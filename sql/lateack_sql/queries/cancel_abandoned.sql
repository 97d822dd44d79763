-- Cancel what is left of groups that have failed: what nobody runs ends, what runs is marked and its
-- worker ends it. A sweeper: groups that another takes right now are skipped; if it fails, nothing is
-- forgotten.
-- $1 how many groups at most
WITH RECURSIVE taken AS MATERIALIZED (
    DELETE FROM lateack.abandoned a
    USING (SELECT group_id FROM lateack.abandoned ORDER BY group_id LIMIT $1 FOR UPDATE SKIP LOCKED) AS t
    WHERE a.group_id = t.group_id
    RETURNING a.group_id, a.root_id
), alive AS MATERIALIZED (
    SELECT j.id, j.parent_id, j.engine FROM lateack.jobs j
    WHERE j.root_id IN (SELECT root_id FROM taken) AND j.completed_at IS NULL
), members AS (
    SELECT id, engine FROM alive WHERE parent_id IN (SELECT group_id FROM taken)
    UNION
    SELECT a.id, a.engine FROM alive a JOIN members m ON a.parent_id = m.id AND m.engine = 'workflow'
), locked AS MATERIALIZED (
    -- Whole workflows, as with cancel_jobs.
    SELECT j.id FROM lateack.jobs j
    WHERE j.root_id IN (SELECT root_id FROM taken) AND j.completed_at IS NULL
    ORDER BY j.id FOR UPDATE
), asked AS MATERIALIZED (
    SELECT id FROM locked WHERE id IN (SELECT id FROM members)
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
