-- Schema version 1 of a Lockwood volume. Run with the volume's schema as the search path.
--
-- Integers are bigint throughout: the system's own types are unsigned and 32 or 64 bits wide. Times are seconds since 1970
-- (negative before) and nanoseconds, because files may carry times that no timestamp type holds. Names and contents are
-- bytes; encode(name, 'escape') shows them, convert_from(name, 'UTF8') does where they are valid UTF-8.

CREATE SEQUENCE versions CACHE 1;
COMMENT ON SEQUENCE versions IS 'The version of every document that is written: never handed out twice';

CREATE TABLE schema_version (
    version bigint PRIMARY KEY,
    applied timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE schema_version IS 'The migrations that were run; the greatest version counts';

CREATE TABLE volume (
    one bigint PRIMARY KEY CHECK (one = 1),
    format bigint NOT NULL,
    id text NOT NULL,
    locking text NOT NULL CHECK (locking IN ('tree', 'document', 'global', 'version')),
    created bigint NOT NULL,
    created_ns bigint NOT NULL,
    next_ino bigint NOT NULL,
    epoch bigint NOT NULL,
    inline_max bigint NOT NULL,
    version bigint NOT NULL
);
COMMENT ON TABLE volume IS 'One row: what this schema holds';
COMMENT ON COLUMN volume.next_ino IS 'The first inode number that no session has been given';
COMMENT ON COLUMN volume.epoch IS 'How many sessions there have been';
COMMENT ON COLUMN volume.inline_max IS 'The largest content that is kept in table content, in bytes';

CREATE TABLE node (
    ino bigint PRIMARY KEY,
    kind text NOT NULL CHECK (kind IN
        ('regular', 'directory', 'symlink', 'fifo', 'socket', 'char_device', 'block_device')),
    mode bigint NOT NULL,
    uid bigint NOT NULL,
    gid bigint NOT NULL,
    nlink bigint NOT NULL CONSTRAINT link_count CHECK (nlink BETWEEN 0 AND 4294967295),
    atime bigint NOT NULL,
    atime_ns bigint NOT NULL,
    mtime bigint NOT NULL,
    mtime_ns bigint NOT NULL,
    ctime bigint NOT NULL,
    ctime_ns bigint NOT NULL,
    btime bigint NOT NULL,
    btime_ns bigint NOT NULL,
    xattrs bigint NOT NULL CONSTRAINT attribute_count CHECK (xattrs BETWEEN 0 AND 4294967295),
    size bigint,
    blocks bigint,
    place text CHECK (place IN ('empty', 'inline', 'backing', 'chunks')),
    parent bigint,
    name bytea,
    children bigint CONSTRAINT entry_count CHECK (children >= 0),
    target bytea,
    rdev bigint,
    version bigint NOT NULL,
    CONSTRAINT regular_files_have CHECK ((kind = 'regular') = (size IS NOT NULL)
        AND (kind = 'regular') = (blocks IS NOT NULL) AND (kind = 'regular') = (place IS NOT NULL)),
    CONSTRAINT directories_have CHECK ((kind = 'directory') = (parent IS NOT NULL)
        AND (kind = 'directory') = (children IS NOT NULL) AND (kind = 'directory' OR name IS NULL)),
    CONSTRAINT symlinks_have CHECK ((kind = 'symlink') = (target IS NOT NULL)),
    CONSTRAINT devices_have CHECK ((kind IN ('char_device', 'block_device')) = (rdev IS NOT NULL))
);
COMMENT ON TABLE node IS 'The attributes of each inode';
COMMENT ON COLUMN node.mode IS 'Permission bits, as a decimal number';
COMMENT ON COLUMN node.nlink IS 'How many names lead here; 0: unlinked but open';
COMMENT ON COLUMN node.xattrs IS 'How many rows of table xattr belong to it';
COMMENT ON COLUMN node.size IS 'Regular files: length in bytes';
COMMENT ON COLUMN node.blocks IS 'Regular files: space taken, in units of 512 bytes';
COMMENT ON COLUMN node.place IS 'Regular files: where the bytes are';
COMMENT ON COLUMN node.parent IS 'Directories: the directory that this one is in; the root is in itself';
COMMENT ON COLUMN node.name IS 'Directories: the name there; none for the root';
COMMENT ON COLUMN node.children IS 'Directories: how many entries there are';
COMMENT ON COLUMN node.target IS 'Symbolic links: where they point';
COMMENT ON COLUMN node.rdev IS 'Devices: their number';

CREATE TABLE entry (
    parent bigint NOT NULL,
    position bigint NOT NULL,
    name bytea NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 255),
    ino bigint NOT NULL,
    kind text NOT NULL CHECK (kind IN
        ('regular', 'directory', 'symlink', 'fifo', 'socket', 'char_device', 'block_device')),
    version bigint NOT NULL,
    PRIMARY KEY (parent, position, name)
);
COMMENT ON TABLE entry IS 'The names in directories';
COMMENT ON COLUMN entry.position IS 'A hash of the name: the order in which a directory is listed';

CREATE TABLE content (
    ino bigint PRIMARY KEY,
    bytes bytea NOT NULL,
    version bigint NOT NULL
);
COMMENT ON TABLE content IS 'The bytes of small files';

CREATE TABLE xattr (
    ino bigint NOT NULL,
    name bytea NOT NULL,
    value bytea NOT NULL,
    version bigint NOT NULL,
    PRIMARY KEY (ino, name)
);
COMMENT ON TABLE xattr IS 'Extended attributes';

CREATE TABLE orphan (
    ino bigint PRIMARY KEY,
    session text NOT NULL,
    version bigint NOT NULL
);
COMMENT ON TABLE orphan IS 'Inodes to collect: they lost their last name while a session had them open';

CREATE TABLE session (
    id text COLLATE "C" PRIMARY KEY,
    host text NOT NULL,
    boot_id text NOT NULL,
    pid bigint NOT NULL,
    mount_point text NOT NULL,
    started bigint NOT NULL,
    started_ns bigint NOT NULL,
    lease_ms bigint NOT NULL,
    heartbeat bigint NOT NULL,
    epoch bigint NOT NULL,
    intents bigint NOT NULL,
    operations_below bigint NOT NULL,
    state text NOT NULL CHECK (state IN ('joining', 'live', 'fenced', 'recovered')),
    version bigint NOT NULL,
    CONSTRAINT state_is_part_of_a_key UNIQUE (id, state)
);
COMMENT ON TABLE session IS 'Who has the volume mounted';
COMMENT ON COLUMN session.heartbeat IS 'Grows while the session lives';
COMMENT ON COLUMN session.lease_ms IS 'How long others wait for a heartbeat before they may fence the session';
COMMENT ON CONSTRAINT state_is_part_of_a_key ON session IS
    'Makes a change of state, and no heartbeat, wait for every commit of the session: such an update locks FOR UPDATE';

CREATE TABLE chunk (
    ino bigint NOT NULL,
    index bigint NOT NULL,
    bytes bytea NOT NULL,
    version bigint NOT NULL,
    PRIMARY KEY (ino, index)
);
COMMENT ON TABLE chunk IS 'The bytes of large files, in pieces';
COMMENT ON COLUMN chunk.index IS 'Which piece, counted from 0';

CREATE TABLE lock (
    id text COLLATE "C" PRIMARY KEY,
    path bytea NOT NULL,
    lock_type text CHECK (lock_type IN ('shared', 'exclusive')),
    lock_count bigint NOT NULL,
    holders jsonb NOT NULL,
    waiters jsonb NOT NULL,
    version bigint NOT NULL
);
COMMENT ON TABLE lock IS 'The locks that are held or waited for';
COMMENT ON COLUMN lock.id IS 'The path, URL-encoded';
COMMENT ON COLUMN lock.lock_type IS 'How it is held; none if it is only waited for';
COMMENT ON COLUMN lock.lock_count IS 'How many hold it';

CREATE TABLE outcome (
    connection bigint PRIMARY KEY,
    number bigint NOT NULL DEFAULT 0,
    version bigint NOT NULL,
    closed boolean NOT NULL DEFAULT false,
    used timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE outcome IS
    'One row a connection: its last commit. Who loses an answer closes the row of the lost connection, and learns from it';
COMMENT ON COLUMN outcome.closed IS 'No commit of this connection takes effect any more';

CREATE VIEW path AS
WITH RECURSIVE tree (ino, kind, path) AS (
    SELECT CAST(1 AS bigint), 'directory', ''
    UNION ALL
    SELECT entry.ino, entry.kind, tree.path || '/' || encode(entry.name, 'escape')
    FROM tree JOIN entry ON entry.parent = tree.ino WHERE tree.kind = 'directory'
)
SELECT CASE WHEN path = '' THEN '/' ELSE path END AS path, ino, kind FROM tree;
COMMENT ON VIEW path IS 'Every path of the tree. Reads the whole tree, whatever the condition';
