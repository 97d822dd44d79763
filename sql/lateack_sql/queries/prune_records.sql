-- Retention of what is not a job: decided ticks and strays, a batch of each.
-- $1 leader's name  $2 holder  $3 epoch  $4 age in seconds, null: for ever  $5 how many at most of each
WITH term AS MATERIALIZED (
    SELECT 1 FROM lateack.leader WHERE name = $1 AND holder = $2 AND epoch = $3 FOR SHARE
), ticks AS (
    DELETE FROM lateack.ticks t
    USING (SELECT schedule_id, due_at FROM term, lateack.ticks
           WHERE decided_at < lateack.now() - make_interval(secs => $4::float8)
           ORDER BY decided_at LIMIT $5 FOR UPDATE OF ticks SKIP LOCKED) AS old
    WHERE t.schedule_id = old.schedule_id AND t.due_at = old.due_at
    RETURNING 1
), strays AS (
    DELETE FROM lateack.strays s
    USING (SELECT id FROM term, lateack.strays
           WHERE found_at < lateack.now() - make_interval(secs => $4::float8)
           ORDER BY id LIMIT $5 FOR UPDATE OF strays SKIP LOCKED) AS old
    WHERE s.id = old.id
    RETURNING 1
)
SELECT (SELECT count(*) FROM ticks) + (SELECT count(*) FROM strays) AS gone
