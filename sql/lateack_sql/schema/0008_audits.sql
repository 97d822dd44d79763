-- What the audit saw last; a row for each rule.
CREATE TABLE lateack.audits (
    rule       text PRIMARY KEY,
    broken     bigint NOT NULL,
    repaired   bigint NOT NULL,
    looked_at  timestamptz NOT NULL,
    clean_at   timestamptz              -- when it was last found unbroken
);
