#!lua flags=allow-oom
-- Tries everything that a commit does, and what comes before the first, on a key that is gone afterwards: a commit must not find out half way that a command
-- is forbidden. KEYS: a counter, a hash and a sorted set of no meaning. ARGV: the channel of the notices.
redis.call('INCR', KEYS[1])
redis.call('INCRBY', KEYS[1], 1)
redis.call('GET', KEYS[1])
redis.call('SET', KEYS[1], '1')
redis.call('EXISTS', KEYS[2])
redis.call('HSET', KEYS[2], 'a', '1')
redis.call('HGET', KEYS[2], 'a')
redis.call('HMGET', KEYS[2], 'a', 'b')
redis.call('HGETALL', KEYS[2])
redis.call('HDEL', KEYS[2], 'a')
redis.call('HSET', KEYS[2], 'a', '1')
redis.call('EXPIRE', KEYS[2], '60')
redis.call('TTL', KEYS[2])
redis.call('ZADD', KEYS[3], 0, 'a')
redis.call('ZSCORE', KEYS[3], 'a')
redis.call('ZRANGEBYLEX', KEYS[3], '-', '+', 'LIMIT', 0, 1)
redis.call('ZCARD', KEYS[3])
redis.call('ZREM', KEYS[3], 'a')
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('PUBLISH', ARGV[1], '- ')
return 'done'
