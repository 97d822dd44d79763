-- Note what an open step raised, fenced. It stays open: an error does not say whether the outside
-- took effect.
-- $1 job id  $2 fence  $3 name  $4 error
WITH held AS MATERIALIZED (
    SELECT job_id FROM lateack.leases WHERE job_id = $1::uuid AND fence = $2::int4 FOR KEY SHARE
)
UPDATE lateack.steps s SET error = $4::text
FROM held WHERE s.job_id = held.job_id AND s.name = $3::text AND s.ended_at IS NULL
RETURNING s.name
