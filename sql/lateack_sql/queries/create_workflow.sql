-- Insert one workflow: its own row, its steps and its joins, or nothing when its key is known.
-- Runs alone in its statement; replays are read by find_by_keys, as with create_jobs.
-- $1 workflow id  $2 tenant  $3 key or null  $4 fingerprint  $5 name of the workflow  $6 queue
-- $7 priority  $8 rare, as jsonb  $9 seconds until the first step is runnable or null  $10 eta or null
-- joins: $11 id  $12 total  $13 gather  $14 rule
-- steps and groups: $15 id  $16 task  $17 queue  $18 priority  $19 args  $20 kwargs  $21 max_retries
--        $22 waits_for or null  $23 feeds  $24 position  $25 immutable  $26 parent or null  $27 engine
-- $28 the join that the workflow's own row waits for  $29 seconds before the relay takes fresh rows
WITH patience AS MATERIALIZED (
    SELECT set_config('lock_timeout', '200ms', true)
), moment AS MATERIALIZED (
    SELECT coalesce($10::timestamptz, lateack.now() + make_interval(secs => $9::float8), lateack.now()) AS run_at,
           coalesce(($8::jsonb ->> 'expires_at')::timestamptz,
                    lateack.now() + make_interval(secs => ($8::jsonb ->> 'expires_in')::float8)) AS expires_at
    FROM patience
), keyed AS (
    INSERT INTO lateack.idempotency (tenant_id, key, job_id, fingerprint, expires_at)
    SELECT $2, $3, $1, $4, lateack.now() + interval '24 hours' FROM moment WHERE $3::text IS NOT NULL
    ON CONFLICT DO NOTHING
    RETURNING job_id
), wanted AS (
    SELECT run_at, expires_at FROM moment
    WHERE $3::text IS NULL OR EXISTS (SELECT FROM keyed)
), waiting AS (
    INSERT INTO lateack.joins (id, root_id, total, gather, rule)
    SELECT j.id, $1, j.total, j.gather, j.rule
    FROM unnest($11::uuid[], $12::int4[], $13::boolean[], $14::text[]) AS j (id, total, gather, rule), wanted
), own AS (
    INSERT INTO lateack.jobs (id, tenant_id, task, queue, engine, priority, status, max_retries,
                              root_id, waits_for, created_at, run_at, tags, meta, owner, external_ref, trace)
    SELECT $1, $2, $5, $6, 'workflow', $7, 'blocked', 0, $1, $28::uuid, lateack.now(), run_at,
           CASE WHEN $8::jsonb ? 'tags' THEN ARRAY(SELECT jsonb_array_elements_text($8::jsonb -> 'tags')) END,
           $8::jsonb -> 'meta', $8::jsonb ->> 'owner', $8::jsonb ->> 'external_ref', $8::jsonb -> 'trace'
    FROM wanted
), steps AS (
    INSERT INTO lateack.jobs (id, tenant_id, task, queue, engine, priority, status, args, kwargs, max_retries,
                              root_id, parent_id, waits_for, feeds, position, immutable, created_at, run_at,
                              runnable_since, enqueued_at, expires_at, tags, meta, owner, external_ref, trace)
    SELECT s.id, $2, s.task, s.queue, s.engine, s.priority,
           CASE WHEN s.waits_for IS NOT NULL THEN 'blocked'
                WHEN run_at > lateack.now() THEN 'scheduled' ELSE 'pending' END,
           s.args::json, s.kwargs::json, s.max_retries, $1, coalesce(s.parent_id, $1), s.waits_for, s.feeds, s.position,
           s.immutable, lateack.now(), run_at,
           CASE WHEN s.waits_for IS NULL AND run_at <= lateack.now() THEN lateack.now() END,
           CASE WHEN s.waits_for IS NULL THEN lateack.now() END,
           CASE WHEN s.waits_for IS NULL THEN expires_at END,
           CASE WHEN $8::jsonb ? 'tags' THEN ARRAY(SELECT jsonb_array_elements_text($8::jsonb -> 'tags')) END,
           $8::jsonb -> 'meta', $8::jsonb ->> 'owner', $8::jsonb ->> 'external_ref', $8::jsonb -> 'trace'
    FROM unnest($15::uuid[], $16::text[], $17::text[], $18::int2[], $19::text[], $20::text[], $21::int4[],
                $22::uuid[], $23::uuid[], $24::int4[], $25::boolean[], $26::uuid[], $27::text[])
         AS s (id, task, queue, priority, args, kwargs, max_retries, waits_for, feeds, position, immutable,
               parent_id, engine),
         wanted
    RETURNING id, queue, priority, status, run_at
), published AS (
    INSERT INTO lateack.outbox (job_id, queue, priority, due)
    SELECT id, queue, priority,
           CASE status WHEN 'scheduled' THEN run_at
                ELSE lateack.now() + make_interval(secs => $29) END
    FROM steps WHERE status <> 'blocked'
    RETURNING id, job_id
)
SELECT s.id, s.queue, s.priority, p.id AS outbox_id, s.run_at, s.run_at <= lateack.now() AS runnable,
       lateack.now() AS created_at
FROM steps s JOIN published p ON p.job_id = s.id
