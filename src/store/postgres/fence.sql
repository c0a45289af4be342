-- Version 6: commits of a session that is about to be fenced can be held back.
ALTER TABLE session ADD COLUMN held_until timestamptz;
COMMENT ON COLUMN session.held_until IS
    'Until then new commits of the session wait, because somebody fences it and waits for those under way; null: they do not';
