-- Retention: forget jobs that ended long ago, the oldest first, with all that belongs to them.
-- A workflow goes as a whole, by its own row, once none of its steps is alive: what a step returned is
-- read by those behind it. A job whose key is still good stays, or the key would make it a second time.
-- A sweeper: what somebody has locked stays for the next batch.
-- $1 leader's name  $2 holder  $3 epoch
-- $4 age in seconds of what ended well, null: for ever  $5 of what failed  $6 how many at most of each
WITH term AS MATERIALIZED (
    SELECT 1 FROM lateack.leader WHERE name = $1 AND holder = $2 AND epoch = $3 FOR SHARE
), well AS MATERIALIZED (
    SELECT j.id, j.root_id FROM term, lateack.jobs j
    WHERE j.completed_at < lateack.now() - make_interval(secs => $4::float8) AND j.error_code IS NULL
      AND (j.root_id IS NULL OR j.root_id = j.id)
      AND NOT EXISTS (SELECT FROM lateack.idempotency i WHERE i.job_id = j.id AND i.expires_at > lateack.now())
    ORDER BY j.completed_at LIMIT $6 FOR UPDATE OF j SKIP LOCKED
), badly AS MATERIALIZED (
    SELECT j.id, j.root_id FROM term, lateack.jobs j
    WHERE j.completed_at < lateack.now() - make_interval(secs => $5::float8) AND j.error_code IS NOT NULL
      AND (j.root_id IS NULL OR j.root_id = j.id)
      AND NOT EXISTS (SELECT FROM lateack.idempotency i WHERE i.job_id = j.id AND i.expires_at > lateack.now())
    ORDER BY j.completed_at LIMIT $6 FOR UPDATE OF j SKIP LOCKED
), old AS MATERIALIZED (
    SELECT o.id, o.root_id FROM (SELECT * FROM well UNION ALL SELECT * FROM badly) AS o
    WHERE o.root_id IS NULL
       OR NOT EXISTS (SELECT FROM lateack.jobs s WHERE s.root_id = o.root_id AND s.completed_at IS NULL)
), whole AS MATERIALIZED (
    SELECT id FROM old WHERE root_id IS NULL
    UNION ALL
    SELECT s.id FROM lateack.jobs s WHERE s.root_id IN (SELECT root_id FROM old WHERE root_id IS NOT NULL)
), results AS (
    DELETE FROM lateack.results WHERE job_id IN (SELECT id FROM whole)
), attempts AS (
    DELETE FROM lateack.attempts WHERE job_id IN (SELECT id FROM whole)
), steps AS (
    DELETE FROM lateack.steps WHERE job_id IN (SELECT id FROM whole)
), redrives AS (
    DELETE FROM lateack.redrives WHERE job_id IN (SELECT id FROM whole)
), keys AS (
    DELETE FROM lateack.idempotency WHERE job_id IN (SELECT id FROM whole)
), joins AS (
    DELETE FROM lateack.joins WHERE root_id IN (SELECT root_id FROM old WHERE root_id IS NOT NULL)
)
DELETE FROM lateack.jobs WHERE id IN (SELECT id FROM whole)
RETURNING id
