-- Give up the lead at once, so that a successor need not wait for the lease. $1 name  $2 holder  $3 epoch
UPDATE lateack.leader SET until = lateack.now() - interval '1 second'
WHERE name = $1 AND holder = $2 AND epoch = $3
