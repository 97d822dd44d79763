-- Serialise admission to capped queues until the transaction ends. Always in the same order.
-- $1 names of the caps
SELECT pg_advisory_xact_lock(hashtextextended('lateack.cap:' || name, 0))
FROM (SELECT DISTINCT name FROM unnest($1::text[]) AS n (name) ORDER BY name) AS names
