-- Set aside messages that are no job of ours, each once. $1 stream  $2 entry ids  $3 fields as jsonb  $4 reasons
INSERT INTO lateack.strays (stream, entry_id, fields, reason, found_at)
SELECT $1, s.entry_id, s.fields, s.reason, lateack.now()
FROM unnest($2::text[], $3::jsonb[], $4::text[]) AS s (entry_id, fields, reason)
ON CONFLICT DO NOTHING
