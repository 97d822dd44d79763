-- Renew leases, past their expiry too: as long as nobody took the job, it is still its owner's.
-- A lease that somebody has locked right now is neither renewed nor lost: held without renewed.
-- $1 job ids  $2 fences  $3 lease in seconds  $4 progress  $5 step
WITH mine AS MATERIALIZED (
    SELECT l.job_id, h.progress, h.step
    FROM lateack.leases l
    JOIN unnest($1::uuid[], $2::int4[], $4::real[], $5::text[]) AS h (job_id, fence, progress, step)
      ON l.job_id = h.job_id AND l.fence = h.fence
    ORDER BY l.job_id FOR UPDATE OF l SKIP LOCKED
), renewed AS (
    UPDATE lateack.leases l SET
        until = lateack.now() + make_interval(secs => $3), progress = mine.progress, step = mine.step
    FROM mine WHERE l.job_id = mine.job_id
    RETURNING l.job_id
)
SELECT h.job_id, r.job_id IS NOT NULL AS renewed, l.job_id IS NOT NULL AS held
FROM unnest($1::uuid[], $2::int4[]) AS h (job_id, fence)
LEFT JOIN lateack.leases l ON l.job_id = h.job_id AND l.fence = h.fence
LEFT JOIN renewed r ON r.job_id = h.job_id
