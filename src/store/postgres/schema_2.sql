-- Schema version 2 of a Lockwood volume: advisory locks between hosts. Run with the volume's schema as the search path.

CREATE TABLE advisory (
    ino bigint PRIMARY KEY,
    lock_count bigint NOT NULL,
    locks jsonb NOT NULL,
    version bigint NOT NULL
);
COMMENT ON TABLE advisory IS 'The locks that programs hold by flock(2) and fcntl(2), one row an inode';
COMMENT ON COLUMN advisory.lock_count IS 'How many there are';
COMMENT ON COLUMN advisory.locks IS 'Each of them, with its holder';

CREATE VIEW advisory_lock AS
SELECT advisory.ino, one.family, one.mode, one.start AS first_byte, one."end" AS last_byte, one.session, one.owner, one.pid,
    one.host, to_timestamp(CAST(one.since ->> 'sec' AS bigint)) AS since
FROM advisory CROSS JOIN LATERAL jsonb_to_recordset(advisory.locks) AS one (family text, mode text, start bigint,
    "end" bigint, session text, owner text, pid bigint, host text, since jsonb);
COMMENT ON VIEW advisory_lock IS 'The advisory locks, one row a lock; last_byte 9223372036854775807: to the end of the file';
