-- Rules that every row keeps whatever happens: what breaks one, in a single snapshot. It should return
-- nothing, ever; a row that is broken by hand, or by an error of ours, is named here.
-- rule, job id (of a join: its own id), fence
-- $1 how many of each at most
(SELECT 'running-without-lease' AS rule, j.id, j.fence
 FROM lateack.jobs j
 WHERE j.completed_at IS NULL AND j.status = 'running'
   AND NOT EXISTS (SELECT FROM lateack.leases l WHERE l.job_id = j.id AND l.fence = j.fence)
 LIMIT $1)
UNION ALL
(SELECT 'lease-without-running-job', l.job_id, l.fence
 FROM lateack.leases l
 WHERE NOT EXISTS (SELECT FROM lateack.jobs j WHERE j.id = l.job_id AND j.fence = l.fence AND j.status = 'running')
 LIMIT $1)
UNION ALL
(SELECT 'join-not-decided', i.id, 0
 FROM lateack.joins i
 WHERE i.decided_at IS NULL AND NOT EXISTS (
     SELECT FROM lateack.jobs u WHERE u.feeds = i.id AND u.completed_at IS NULL)
 LIMIT $1)
UNION ALL
(SELECT 'blocked-by-nothing', j.id, j.fence
 FROM lateack.jobs j
 WHERE j.completed_at IS NULL AND j.status = 'blocked' AND NOT EXISTS (
     SELECT FROM lateack.joins i WHERE i.id = j.waits_for AND i.decided_at IS NULL)
 LIMIT $1)
