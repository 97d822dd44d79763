-- Groups that have failed, and their members that are still alive, those of groups inside them too. A
-- group of which nobody is alive any more has one row, without a member.
-- $1 how many groups at most
WITH RECURSIVE failed AS MATERIALIZED (
    SELECT group_id, root_id FROM lateack.abandoned ORDER BY group_id LIMIT $1
), alive AS MATERIALIZED (
    SELECT j.id, j.parent_id, j.engine, j.tenant_id FROM lateack.jobs j
    WHERE j.root_id IN (SELECT root_id FROM failed) AND j.completed_at IS NULL
), members AS (
    SELECT f.group_id, a.id, a.engine, a.tenant_id FROM failed f JOIN alive a ON a.parent_id = f.group_id
    UNION
    SELECT m.group_id, a.id, a.engine, a.tenant_id
    FROM members m JOIN alive a ON a.parent_id = m.id AND m.engine = 'workflow'
)
SELECT f.group_id, m.tenant_id, m.id AS job_id
FROM failed f LEFT JOIN members m ON m.group_id = f.group_id
