-- What an audit saw. $1 rules  $2 broken rows of each  $3 mended ones
INSERT INTO lateack.audits (rule, broken, repaired, looked_at, clean_at)
SELECT a.rule, a.broken, a.repaired, lateack.now(), CASE WHEN a.broken = 0 THEN lateack.now() END
FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS a (rule, broken, repaired)
ON CONFLICT (rule) DO UPDATE SET
    broken = excluded.broken, repaired = audits.repaired + excluded.repaired,
    looked_at = excluded.looked_at, clean_at = coalesce(excluded.clean_at, audits.clean_at)
