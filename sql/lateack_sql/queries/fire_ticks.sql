-- Record what became of ticks, make the jobs of those that fire, and move each schedule to its next
-- tick: all in one statement under the leader's term, or nothing. A leader that was frozen finds its
-- term over; a schedule that was changed, fired or locked since it was read is left to the next turn.
-- Nothing fires before the ledger's clock says so, whatever the caller believed.
-- A lock is waited for two seconds at most: the leader's row is held meanwhile.
-- Locks: leader (share), schedules by id (those that are locked are skipped).
-- $1 leader's name  $2 holder  $3 epoch
-- schedules: $4 id  $5 revision that was read  $6 newest tick, or null  $7 next tick, or null  $8 problem or null
-- ticks: $9 schedule  $10 due  $11 until or null  $12 outcome  $13 reason or null  $14 run at, or null for now
WITH patience AS MATERIALIZED (
    SELECT set_config('lock_timeout', '2s', true)
), term AS MATERIALIZED (
    SELECT l.epoch FROM patience, lateack.leader l
    WHERE l.name = $1 AND l.holder = $2 AND l.epoch = $3 FOR SHARE OF l
), mine AS MATERIALIZED (
    SELECT s.*, a.following, a.trouble, term.epoch
    FROM term, unnest($4::uuid[], $5::int8[], $6::timestamptz[], $7::timestamptz[], $8::text[])
             AS a (id, revision, newest, following, trouble)
    JOIN lateack.schedules s ON s.id = a.id AND s.revision = a.revision
    WHERE coalesce(a.newest <= lateack.now(), true)
    ORDER BY s.id FOR UPDATE OF s SKIP LOCKED
), ready AS MATERIALIZED (
    SELECT m.id, live.runs,
           CASE WHEN t.name IS NULL THEN 'unknown_task'
                WHEN lateack.misfit(t.parameters, m.args::jsonb, m.kwargs::jsonb) IS NOT NULL
                THEN 'invalid_arguments'
                WHEN m.overlap = 'skip' AND cardinality(live.runs) > 0 THEN 'overlap' END AS hindrance
    FROM mine m
    LEFT JOIN lateack.tasks t ON t.name = m.task
    -- By id and nothing else: the index of live jobs looks cheap until there are many of them.
    CROSS JOIN LATERAL (SELECT coalesce(array_agg(run ORDER BY run), '{}') AS runs FROM unnest(m.runs) AS run
                        WHERE (SELECT j.completed_at IS NULL FROM lateack.jobs j WHERE j.id = run)) AS live
), judged AS MATERIALIZED (
    SELECT m.*, r.hindrance, w.due_at, w.until, w.outcome, w.reason, w.run_at,
           w.outcome IN ('fired', 'late') AS meant, w.outcome IN ('fired', 'late') AND r.hindrance IS NULL AS fires
    FROM unnest($9::uuid[], $10::timestamptz[], $11::timestamptz[], $12::text[], $13::text[], $14::timestamptz[])
         AS w (schedule_id, due_at, until, outcome, reason, run_at)
    JOIN mine m ON m.id = w.schedule_id
    JOIN ready r ON r.id = w.schedule_id
    -- Only a clock that went backwards can bring a tick up again.
    WHERE NOT EXISTS (SELECT FROM lateack.ticks t WHERE t.schedule_id = w.schedule_id AND t.due_at = w.due_at)
    ORDER BY m.id, w.due_at
), made AS (
    INSERT INTO lateack.ticks (schedule_id, due_at, until, outcome, reason, job_id, epoch, decided_at)
    SELECT id, due_at, until,
           CASE WHEN meant AND NOT fires THEN 'skipped' ELSE outcome END,
           CASE WHEN meant AND NOT fires THEN hindrance ELSE reason END,
           CASE WHEN fires THEN lateack.submit(
               task => task, args => args, kwargs => kwargs, tenant => tenant_id, queue => queue,
               priority => priority::int, max_retries => max_retries, eta => run_at,
               expires => due_at + make_interval(secs => expires),
               meta => jsonb_build_object('schedule', name, 'due_at',
                   to_char(due_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))) END,
           epoch, lateack.now()
    FROM judged
    RETURNING schedule_id, due_at, outcome, reason, job_id
), moved AS (
    UPDATE lateack.schedules s SET
        revision = s.revision + 1, next_due = m.following, problem = m.trouble,
        runs = (SELECT coalesce(array_agg(run ORDER BY run DESC), '{}')
                FROM (SELECT run FROM (SELECT unnest(r.runs) AS run
                                       UNION SELECT job_id FROM made WHERE schedule_id = m.id AND job_id IS NOT NULL) AS u
                      ORDER BY run DESC LIMIT 20) AS newest)
    FROM mine m JOIN ready r USING (id)
    WHERE s.id = m.id
    RETURNING s.id, s.tenant_id, s.name
)
SELECT moved.id, moved.tenant_id, moved.name, made.due_at, made.outcome, made.reason, made.job_id
FROM moved LEFT JOIN made ON made.schedule_id = moved.id
