-- The jobs that a worker holds. $1 worker
SELECT job_id FROM lateack.leases WHERE worker_id = $1
