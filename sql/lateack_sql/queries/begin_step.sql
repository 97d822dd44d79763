-- Begin a step of a running job, fenced: what there is of it, and a row for it when there is none.
-- The key share on the lease keeps the reaper away for as long as this statement takes, so that no
-- two owners of a job ever begin one step side by side; a heartbeat skips the row once.
-- One row, always: held (the job is the caller's), done (its result is kept), doubt (another attempt
-- began it and never recorded an end). An own beginning whose answer was not heard is no doubt.
-- $1 job id  $2 fence  $3 name  $4 attempt
WITH held AS MATERIALIZED (
    SELECT job_id FROM lateack.leases WHERE job_id = $1::uuid AND fence = $2::int4 FOR KEY SHARE
), begun AS (
    INSERT INTO lateack.steps (job_id, name, fence, attempt, began_at)
    SELECT job_id, $3::text, $2, $4::int4, lateack.now() FROM held
    ON CONFLICT DO NOTHING
)
SELECT EXISTS (SELECT FROM held) AS held,
       s.ended_at IS NOT NULL AS done,
       s.ended_at IS NULL AND coalesce(s.fence <> $2, false) AS doubt,
       s.result
FROM (SELECT 1) AS one LEFT JOIN lateack.steps s ON s.job_id = $1 AND s.name = $3
