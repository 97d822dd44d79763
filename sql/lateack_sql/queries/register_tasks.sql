-- What a worker can run; the newest word on a task wins. In order of name, against deadlocks.
-- $1 tasks, an array of objects as jsonb
INSERT INTO lateack.tasks AS t (name, queue, priority, parameters, max_retries, acks_late, ignore_result,
                                soft_time_limit, time_limit, expires, registered_at)
SELECT d.name, d.queue, d.priority, d.parameters, d.max_retries, d.acks_late, d.ignore_result,
       d.soft_time_limit, d.time_limit, d.expires, lateack.now()
FROM jsonb_to_recordset($1::jsonb) AS d (
    name text, queue text, priority int2, parameters jsonb, max_retries int, acks_late boolean,
    ignore_result boolean, soft_time_limit real, time_limit real, expires real)
ORDER BY d.name
ON CONFLICT (name) DO UPDATE SET
    queue = excluded.queue, priority = excluded.priority, parameters = excluded.parameters,
    max_retries = excluded.max_retries, acks_late = excluded.acks_late,
    ignore_result = excluded.ignore_result, soft_time_limit = excluded.soft_time_limit,
    time_limit = excluded.time_limit, expires = excluded.expires, registered_at = excluded.registered_at
