-- Version 3: where the locks of a session are, if not in this schema.
ALTER TABLE session ADD COLUMN locks text;
COMMENT ON COLUMN session.locks IS 'The servers that keep its locks (docs/redlock.md); null: table lock';
