-- A schedule that cannot be handled waits, with the reason, so that it does not hold up the others. Under the
-- leader's term.
-- $1 leader's name  $2 holder  $3 epoch  $4 id  $5 revision that was read  $6 problem
WITH term AS MATERIALIZED (
    SELECT 1 FROM lateack.leader WHERE name = $1 AND holder = $2 AND epoch = $3 FOR SHARE
)
UPDATE lateack.schedules s SET next_due = NULL, problem = $6, revision = s.revision + 1
FROM term WHERE s.id = $4 AND s.revision = $5
RETURNING s.tenant_id, s.name
