#!lua flags=allow-oom
-- Publishes what several commits have changed. It is not flagged as free of writes, so that a replica refuses it: what is
-- published there reaches only those who listen there.
--
-- KEYS: the version counter, which says where the commits are. ARGV: the channel of the notices, then their texts.
for n = 2, #ARGV do redis.call('PUBLISH', ARGV[1], ARGV[n]) end
return #ARGV - 1
