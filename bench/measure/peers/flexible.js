// A service that limits by rate-limiter-flexible. It takes {"limit": ..., "client": ...}, and
// answers with 200 or 429. The limits are those that the other products have.
'use strict';

const http = require('http');
const Memcached = require('memcached');
const { RateLimiterMemcache } = require('rate-limiter-flexible');

const storeClient = new Memcached(process.env.MEMCACHED, { poolSize: 20 });
const limiters = {
  never: new RateLimiterMemcache({ storeClient, keyPrefix: 'never', points: 1e9, duration: 3600 }),
  // Who is over the limit is denied without a way to Memcached.
  hundred: new RateLimiterMemcache({ storeClient, keyPrefix: 'hundred', points: 100, duration: 86400, inMemoryBlockOnConsumed: 100 }),
};

function answer(response, status, value) {
  const body = JSON.stringify(value);
  response.writeHead(status, { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(body) });
  response.end(body);
}

http.createServer((request, response) => {
  let body = '';
  request.on('data', (part) => { body += part; });
  request.on('end', () => {
    const { limit, client } = JSON.parse(body);
    limiters[limit].consume(client).then(
      (r) => answer(response, 200, { allowed: true, remaining: r.remainingPoints, retry_after_ms: 0 }),
      (r) => (r instanceof Error
        ? answer(response, 503, { error: String(r) })
        : answer(response, 429, { allowed: false, remaining: r.remainingPoints, retry_after_ms: r.msBeforeNext })),
    );
  });
}).listen(process.env.PORT, process.env.HOST);
