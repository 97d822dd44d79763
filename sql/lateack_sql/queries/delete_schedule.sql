-- Delete a schedule and its ticks; jobs that it made stay. One that the code still declares is left, since
-- the next start of a worker would bring it back: deleted is false, and app says whose it is.
-- $1 tenant  $2 name
WITH found AS MATERIALIZED (
    SELECT id, origin = 'code' AND retired_at IS NULL AS declared, app FROM lateack.schedules
    WHERE tenant_id = $1 AND name = $2 FOR UPDATE
), gone AS (
    DELETE FROM lateack.schedules s USING found WHERE s.id = found.id AND NOT found.declared
    RETURNING s.id
), forgotten AS (
    DELETE FROM lateack.ticks t USING gone WHERE t.schedule_id = gone.id
)
SELECT EXISTS (SELECT FROM gone) AS deleted, app FROM found
