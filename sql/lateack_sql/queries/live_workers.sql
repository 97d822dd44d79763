-- Workers seen lately, with the age of that fact in seconds. $1 seconds after which one counts as gone
SELECT id, name, host, pid, queues, tasks, slots, started_at, draining,
       extract(epoch FROM lateack.now() - seen_at)::float8 AS age,
       (SELECT count(*) FROM lateack.leases l WHERE l.worker_id = w.id) AS active
FROM lateack.workers w
WHERE seen_at > lateack.now() - make_interval(secs => $1)
ORDER BY name
