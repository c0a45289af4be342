-- Version 7: whether the server has lost commits since somebody looked. What was not on its disk when it crashed is gone, and
-- of the sequence too: without this a version could be handed out twice.
CREATE UNLOGGED TABLE server_run (since timestamptz NOT NULL DEFAULT now());
INSERT INTO server_run DEFAULT VALUES;
COMMENT ON TABLE outcome IS 'One row a connection: its last commit, but for those that only take locks. Who loses an answer '
    'closes the row of the lost connection, and learns from it';
COMMENT ON TABLE server_run IS 'One row: since when the server has lost nothing. UNLOGGED, so it is empty after a crash or a '
    'failover; whoever connects first then fills it, and has the sequence go on far ahead';
