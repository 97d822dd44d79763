-- The steps of a tenant's workflows, in the order in which they were written. $1 tenant  $2 workflow ids
SELECT root_id, id AS job_id, task, status
FROM lateack.jobs
WHERE tenant_id = $1 AND root_id = ANY ($2::uuid[]) AND engine <> 'workflow'
ORDER BY root_id, id
