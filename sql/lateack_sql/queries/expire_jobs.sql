-- Jobs that did not start by their latest start time end `failed` / Expired. $1 job ids, or null: any
WITH late AS (
    SELECT id FROM lateack.jobs
    WHERE completed_at IS NULL AND expires_at <= lateack.now()
      AND status IN ('pending', 'scheduled', 'retrying')
      AND ($1::uuid[] IS NULL OR id = ANY ($1))
    ORDER BY expires_at LIMIT 1000 FOR UPDATE SKIP LOCKED
), fed AS MATERIALIZED (
    SELECT i.id FROM lateack.joins i
    WHERE i.id IN (SELECT j.feeds FROM lateack.jobs j JOIN late x ON j.id = x.id)
    ORDER BY i.id FOR UPDATE
)
UPDATE lateack.jobs j SET
    status = 'failed', error_code = 'Expired', error_message = 'not started before its expiry',
    error_info = jsonb_build_object('type', 'Expired', 'timestamp', lateack.now(), 'expires_at', j.expires_at),
    completed_at = lateack.now(), fence = j.fence + 1
FROM late WHERE j.id = late.id AND (SELECT count(*) FROM fed) >= 0
RETURNING j.id, j.fence, j.attempt, j.status, j.completed_at
