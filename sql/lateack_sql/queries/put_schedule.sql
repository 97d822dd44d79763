-- Make a schedule over HTTP, or replace what one says. One that the code declares stays the code's and is
-- marked as edited; a retired one becomes the caller's. Returns whether it is new.
-- $1 tenant  $2 name  $3 task  $4 args  $5 kwargs  $6 queue  $7 priority  $8 max_retries  $9 expires
-- $10 cron  $11 days  $12 every  $13 anchor  $14 zone  $15 misfire  $16 overlap  $17 paused, null: as it is
-- $18 next tick
INSERT INTO lateack.schedules AS s (
    id, tenant_id, name, task, args, kwargs, queue, priority, max_retries, expires, cron, days, every, anchor,
    zone, misfire, overlap, origin, paused_at, next_due, created_at, updated_at)
VALUES (lateack.uuid7(), $1, $2, $3, $4::text::json, $5::text::json, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16,
        'api', CASE WHEN $17::boolean THEN lateack.now() END, $18, lateack.now(), lateack.now())
ON CONFLICT (tenant_id, name) DO UPDATE SET
    task = excluded.task, args = excluded.args, kwargs = excluded.kwargs, queue = excluded.queue,
    priority = excluded.priority, max_retries = excluded.max_retries, expires = excluded.expires,
    cron = excluded.cron, days = excluded.days, every = excluded.every, anchor = excluded.anchor,
    zone = excluded.zone, misfire = excluded.misfire, overlap = excluded.overlap,
    origin = CASE WHEN s.retired_at IS NULL THEN s.origin ELSE 'api' END,
    app = CASE WHEN s.retired_at IS NULL THEN s.app END,
    declared = CASE WHEN s.retired_at IS NULL THEN s.declared END,
    edited_at = CASE WHEN s.retired_at IS NULL AND s.origin = 'code' THEN lateack.now() END,
    retired_at = NULL,
    paused_at = CASE $17::boolean WHEN true THEN coalesce(s.paused_at, lateack.now()) WHEN false THEN NULL
                     ELSE s.paused_at END,
    next_due = CASE WHEN s.next_due IS NOT NULL
                     AND (s.cron, s.days, s.every, s.anchor, s.zone) IS NOT DISTINCT FROM
                         (excluded.cron, excluded.days, excluded.every, excluded.anchor, excluded.zone)
                    THEN s.next_due ELSE excluded.next_due END,
    problem = NULL, revision = s.revision + 1, updated_at = lateack.now()
RETURNING revision = 1 AS created
