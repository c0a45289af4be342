-- Version 4: where the bytes of large files are, if not in this schema.
ALTER TABLE volume ADD COLUMN content text;
COMMENT ON COLUMN volume.content IS 'The object store that has the bytes of large files (docs/contents.md); null: table chunk';
COMMENT ON COLUMN chunk.bytes IS 'The bytes, or where volume.content is set the JSON text that names the object with them';
