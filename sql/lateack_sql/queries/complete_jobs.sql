-- Record success, fenced. What is not returned was not the caller's any more.
-- Next steps of workflows move in the same statement, by trigger.
-- $1 job ids  $2 fences  $3 results as text, null for none  $4 result locations or null
WITH mine AS MATERIALIZED (
    SELECT j.id, j.feeds, d.result, d.location
    FROM lateack.jobs j
    JOIN unnest($1::uuid[], $2::int4[], $3::text[], $4::text[]) AS d (id, fence, result, location)
      ON j.id = d.id AND j.fence = d.fence
    WHERE j.status = 'running'
    ORDER BY j.id FOR UPDATE OF j
), fed AS MATERIALIZED (
    -- Jobs by id, then the joins that they feed by id: that is everybody's order.
    SELECT i.id FROM lateack.joins i WHERE i.id IN (SELECT feeds FROM mine) ORDER BY i.id FOR UPDATE
), freed AS (
    DELETE FROM lateack.leases l USING mine WHERE l.job_id = mine.id
), kept AS (
    INSERT INTO lateack.results (job_id, result) SELECT id, result::json FROM mine WHERE result IS NOT NULL
), told AS (
    INSERT INTO lateack.attempts (job_id, fence, attempt, worker_id, started_at, ended_at, outcome)
    SELECT j.id, j.fence, j.attempt, l.worker_id, j.started_at, lateack.now(), 'succeeded'
    FROM mine JOIN lateack.jobs j ON j.id = mine.id LEFT JOIN lateack.leases l ON l.job_id = j.id
    WHERE j.attempt > 1
)
UPDATE lateack.jobs j SET
    status = 'succeeded', completed_at = lateack.now(), progress = 100, result_location = mine.location
FROM mine WHERE j.id = mine.id AND (SELECT count(*) FROM fed) >= 0
RETURNING j.id, j.fence, j.attempt, j.status, j.completed_at
