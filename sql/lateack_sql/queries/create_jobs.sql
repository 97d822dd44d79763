-- Insert jobs with their outbox rows; of each (tenant, key) only the first, ever.
-- Keys are inserted in order, so that two batches with the same keys cannot deadlock. What was
-- replayed is not returned: find_by_keys reads it in a second statement, since one statement
-- cannot see a row that another transaction committed while it waited.
-- A key that another transaction holds is waited for 200 ms at most: one caller's open transaction
-- must not hold up its neighbours in the batch.
-- $1 id  $2 tenant  $3 key or null  $4 fingerprint  $5 task  $6 queue  $7 priority  $8 args
-- $9 kwargs  $10 max_retries  $11 seconds until runnable or null  $12 eta or null
-- $13 what is rare, as jsonb or null  $14 seconds before the relay takes the fresh rows
WITH patience AS MATERIALIZED (
    SELECT set_config('lock_timeout', '200ms', true)
), asked AS MATERIALIZED (
    SELECT a.*, coalesce(a.eta, lateack.now() + make_interval(secs => a.delay), lateack.now()) AS run_at
    FROM patience, unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[], $5::text[], $6::text[], $7::int2[],
                $8::text[], $9::text[], $10::int4[], $11::float8[], $12::timestamptz[], $13::jsonb[])
         AS a (id, tenant_id, key, fingerprint, task, queue, priority, args, kwargs, max_retries,
               delay, eta, rare)
), keyed AS (
    INSERT INTO lateack.idempotency (tenant_id, key, job_id, fingerprint, expires_at)
    SELECT tenant_id, key, id, fingerprint, lateack.now() + interval '24 hours'
    FROM asked WHERE key IS NOT NULL ORDER BY tenant_id, key COLLATE "C", id
    ON CONFLICT DO NOTHING
    RETURNING job_id
), fresh AS (
    SELECT * FROM asked WHERE key IS NULL OR id IN (SELECT job_id FROM keyed)
), made AS (
    INSERT INTO lateack.jobs (
        id, tenant_id, task, queue, priority, status, args, kwargs, max_retries, created_at, run_at,
        runnable_since, enqueued_at, expires_at, tags, meta, owner, external_ref, ignore_result, trace,
        retry_of)
    SELECT id, tenant_id, task, queue, priority,
           CASE WHEN run_at > lateack.now() THEN 'scheduled' ELSE 'pending' END,
           args::json, kwargs::json, max_retries, lateack.now(), run_at,
           CASE WHEN run_at <= lateack.now() THEN lateack.now() END,
           lateack.now(),
           CASE WHEN rare IS NOT NULL THEN coalesce(
               (rare ->> 'expires_at')::timestamptz,
               lateack.now() + make_interval(secs => (rare ->> 'expires_in')::float8)) END,
           CASE WHEN rare ? 'tags' THEN ARRAY(SELECT jsonb_array_elements_text(rare -> 'tags')) END,
           rare -> 'meta', rare ->> 'owner', rare ->> 'external_ref',
           coalesce((rare ->> 'ignore_result')::boolean, false), rare -> 'trace',
           (rare ->> 'retry_of')::uuid
    FROM fresh
), published AS (
    INSERT INTO lateack.outbox (job_id, queue, priority, due)
    SELECT id, queue, priority,
           CASE WHEN run_at > lateack.now() THEN run_at
                ELSE lateack.now() + make_interval(secs => $14) END
    FROM fresh
    RETURNING id, job_id
)
SELECT f.id, p.id AS outbox_id, f.run_at, f.run_at <= lateack.now() AS runnable, lateack.now() AS created_at
FROM fresh f JOIN published p ON p.job_id = f.id
