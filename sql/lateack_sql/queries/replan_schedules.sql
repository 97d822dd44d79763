-- Correct the next ticks of schedules that have none due, under the leader's term.
-- $1 leader's name  $2 holder  $3 epoch  $4 ids  $5 revisions that were read  $6 next ticks or null
-- $7 problems or null
WITH term AS MATERIALIZED (
    SELECT 1 FROM lateack.leader WHERE name = $1 AND holder = $2 AND epoch = $3 FOR SHARE
), mine AS MATERIALIZED (
    SELECT s.id, a.following, a.trouble
    FROM term, unnest($4::uuid[], $5::int8[], $6::timestamptz[], $7::text[]) AS a (id, revision, following, trouble)
    JOIN lateack.schedules s ON s.id = a.id AND s.revision = a.revision
    ORDER BY s.id FOR UPDATE OF s SKIP LOCKED
)
UPDATE lateack.schedules s SET next_due = m.following, problem = m.trouble, revision = s.revision + 1
FROM mine m WHERE s.id = m.id
RETURNING s.tenant_id, s.name
