-- Begin a step in doubt once more, fenced; no row when the job is not the caller's any more.
-- $1 job id  $2 fence  $3 name  $4 attempt
WITH held AS MATERIALIZED (
    SELECT job_id FROM lateack.leases WHERE job_id = $1::uuid AND fence = $2::int4 FOR KEY SHARE
)
UPDATE lateack.steps s SET
    -- Repeating an answer that was not heard counts once.
    begun = s.begun + (s.fence <> $2)::int,
    fence = $2, attempt = $4::int4, began_at = lateack.now(), error = NULL
FROM held WHERE s.job_id = held.job_id AND s.name = $3::text AND s.ended_at IS NULL
RETURNING s.name
