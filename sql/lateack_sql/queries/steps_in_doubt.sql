-- A tenant's steps that began, never ended, and whose attempt is over: whether the outside took effect is
-- not known. A redriven job's steps are its successor's to settle, and are listed there.
-- $1 tenant  $2 before this job's id  $3 and this step's name  $4 how many
SELECT s.job_id, s.name, coalesce(j.origin_id, j.id) AS origin_id, j.task, j.queue, j.status, s.attempt, s.begun,
       s.began_at, s.error
FROM lateack.steps s JOIN lateack.jobs j ON j.id = s.job_id
WHERE s.ended_at IS NULL AND j.tenant_id = $1
  AND (s.job_id, s.name COLLATE "C") < ($2::uuid, $3::text COLLATE "C")
  AND NOT EXISTS (SELECT FROM lateack.leases l WHERE l.job_id = s.job_id AND l.fence = s.fence)
  AND NOT EXISTS (SELECT FROM lateack.redrives r WHERE r.job_id = s.job_id)
ORDER BY s.job_id DESC, s.name COLLATE "C" DESC LIMIT $4
