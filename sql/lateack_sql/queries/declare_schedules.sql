-- What an app's code says of its schedules. A declaration speaks when it is new or has changed; one that
-- says what it said before leaves an edit over HTTP alone. What the app declares no longer is retired.
-- A name that another app declares is left, and returned with taken = false. Pausing is never undone.
-- One deploy at a time for each app, so that two of them cannot deadlock.
-- $1 app  $2 the declarations, an array of objects as json (not jsonb: numbers stay as they are)
WITH alone AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(hashtextextended('lateack.declare:' || $1, 0))
), said AS MATERIALIZED (
    SELECT d.* FROM alone, json_to_recordset($2::json) AS d (
        tenant_id text, name text, task text, args json, kwargs json, queue text, priority int2, max_retries int4,
        expires float8, cron text, days text, every float8, anchor timestamptz, zone text, misfire text,
        overlap text, paused boolean, declared text, next_due timestamptz, problem text)
), put AS (
    INSERT INTO lateack.schedules AS s (
        id, tenant_id, name, task, args, kwargs, queue, priority, max_retries, expires, cron, days, every,
        anchor, zone, misfire, overlap, origin, app, declared, paused_at, next_due, problem,
        created_at, updated_at)
    SELECT lateack.uuid7(), tenant_id, name, task, args, kwargs, queue, priority, max_retries, expires, cron,
           days, every, anchor, zone, misfire, overlap, 'code', $1, decode(declared, 'hex'),
           CASE WHEN paused THEN lateack.now() END, next_due, problem, lateack.now(), lateack.now()
    FROM said ORDER BY tenant_id, name COLLATE "C"
    ON CONFLICT (tenant_id, name) DO UPDATE SET
        task = excluded.task, args = excluded.args, kwargs = excluded.kwargs, queue = excluded.queue,
        priority = excluded.priority, max_retries = excluded.max_retries, expires = excluded.expires,
        cron = excluded.cron, days = excluded.days, every = excluded.every, anchor = excluded.anchor,
        zone = excluded.zone, misfire = excluded.misfire, overlap = excluded.overlap,
        origin = 'code', app = excluded.app, declared = excluded.declared, edited_at = NULL, retired_at = NULL,
        -- A tick that is due in this moment is not lost to a change of something else.
        next_due = CASE WHEN s.next_due IS NOT NULL
                         AND (s.cron, s.days, s.every, s.anchor, s.zone) IS NOT DISTINCT FROM
                             (excluded.cron, excluded.days, excluded.every, excluded.anchor, excluded.zone)
                        THEN s.next_due ELSE excluded.next_due END,
        problem = excluded.problem, revision = s.revision + 1, updated_at = lateack.now()
    WHERE (s.app IS NULL OR s.app = excluded.app OR s.retired_at IS NOT NULL)
      AND (s.declared IS DISTINCT FROM excluded.declared OR s.retired_at IS NOT NULL)
    RETURNING tenant_id, name
), retired AS (
    UPDATE lateack.schedules s SET
        retired_at = lateack.now(), next_due = NULL, problem = NULL, revision = s.revision + 1,
        updated_at = lateack.now()
    FROM alone
    WHERE s.app = $1 AND s.origin = 'code' AND s.retired_at IS NULL
      AND NOT EXISTS (SELECT FROM said WHERE said.tenant_id = s.tenant_id AND said.name = s.name)
    RETURNING s.tenant_id, s.name
)
SELECT tenant_id, name, 'spoke' AS outcome FROM put
UNION ALL
SELECT tenant_id, name, 'retired' FROM retired
UNION ALL
SELECT s.tenant_id, s.name, 'taken' FROM lateack.schedules s JOIN said USING (tenant_id, name)
WHERE s.app <> $1 AND s.retired_at IS NULL
