-- Published. $1 outbox ids
DELETE FROM lateack.outbox WHERE id = ANY ($1::bigint[])
