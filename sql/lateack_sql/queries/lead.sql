-- Become the leader, or stay it: take the lease when it is free or expired (epoch + 1), renew it when
-- it is one's own. Returns nothing when somebody else leads.
-- $1 name  $2 holder  $3 seconds
INSERT INTO lateack.leader AS l (name, holder, epoch, until)
VALUES ($1, $2, 1, lateack.now() + make_interval(secs => $3))
ON CONFLICT (name) DO UPDATE SET
    epoch = CASE WHEN l.holder = excluded.holder AND l.until >= lateack.now() THEN l.epoch ELSE l.epoch + 1 END,
    holder = excluded.holder, until = excluded.until
WHERE l.holder = excluded.holder OR l.until < lateack.now()
RETURNING epoch
