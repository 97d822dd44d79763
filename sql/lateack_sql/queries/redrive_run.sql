-- How far a run of redrives has come, and when it began: what ended later is not a part of it, or a job
-- that fails at once would be run again for ever. $1 tenant  $2 run
SELECT count(*) AS retried, coalesce(min(made_at), lateack.now()) AS began,
       coalesce((array_agg(job_id ORDER BY job_id DESC))[1], '00000000-0000-0000-0000-000000000000') AS last_id,
       coalesce((array_agg(new_id ORDER BY job_id))[1:100], '{}') AS new_ids
FROM lateack.redrives WHERE run = $2 AND tenant_id = $1
