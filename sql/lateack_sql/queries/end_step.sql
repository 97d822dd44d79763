-- Record a step's result, fenced; from here on it is never run again. No row when the job is not the
-- caller's any more.
-- $1 job id  $2 fence  $3 name  $4 attempt  $5 result as JSON text
WITH held AS MATERIALIZED (
    SELECT job_id FROM lateack.leases WHERE job_id = $1::uuid AND fence = $2::int4 FOR KEY SHARE
)
UPDATE lateack.steps s SET
    fence = $2, attempt = $4::int4, ended_at = lateack.now(), result = $5::text::json, error = NULL
FROM held WHERE s.job_id = held.job_id AND s.name = $3::text AND (s.ended_at IS NULL OR s.fence = $2)
RETURNING s.name
