-- The jobs that these keys stand for. A key whose job has been pruned is not returned.
-- $1 tenant  $2 key
SELECT i.tenant_id, i.key, i.job_id, i.fingerprint
FROM lateack.idempotency i
JOIN unnest($1::text[], $2::text[]) AS k (tenant_id, key) USING (tenant_id, key)
