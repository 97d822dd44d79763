-- Why a tenant's job was not redriven: which job runs it again already, and what it is.
-- $1 tenant  $2 job id
SELECT j.status, j.engine = 'workflow' AS is_workflow,
       CASE WHEN j.waits_for IS NOT NULL OR j.feeds IS NOT NULL THEN j.root_id END AS workflow_id, r.new_id
FROM lateack.jobs j LEFT JOIN lateack.redrives r ON r.job_id = j.id
WHERE j.tenant_id = $1 AND j.id = $2
