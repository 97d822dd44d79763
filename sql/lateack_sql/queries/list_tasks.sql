-- Every task that a worker ever registered.
SELECT name, queue, priority, parameters, max_retries, acks_late, ignore_result, soft_time_limit, time_limit, expires
FROM lateack.tasks ORDER BY name
