// The client of the JSON API, and the server's clock, which decides deadlines.

import { sleep } from './dom.js';

// Problem is an error answer of the service (RFC 9457). The status is 0 if no answer came. The code names the kind of
// problem. Not every problem has the other members.
export class Problem extends Error {
  constructor(status, detail, { code = '', openOrders = [], retryAfter = 0 } = {}) {
    super(detail);
    this.status = status;
    this.code = code;
    this.openOrders = openOrders; // ids
    this.retryAfter = retryAfter; // in seconds
  }

  // transient reports whether a retry of the same request may succeed. The service may or may not have executed the
  // request.
  get transient() {
    return [0, 408, 429, 502, 503, 504].includes(this.status);
  }
}

const unreachable = 'The service does not answer.';

// request sends a request and returns the decoded body of the answer, or null without one. It throws a Problem.
export async function request(method, path, { body, headers = {}, credentials, seconds = 10 } = {}) {
  const options = { method, headers: { ...headers }, credentials, signal: AbortSignal.timeout(seconds * 1000) };
  if (body !== undefined) {
    options.headers['Content-Type'] = 'application/json';
    options.body = JSON.stringify(body);
  }
  const sentAt = performance.now();
  let response;
  let text;
  try {
    response = await fetch(path, options);
    text = await response.text();
  } catch {
    throw new Problem(0, unreachable);
  }
  const answer = parse(text);
  if (response.ok) {
    const time = answer?.server_time ?? answer?.items?.[0]?.server_time; // an order, or the first of a list of orders
    if (time) {
      serverClock.update(time, sentAt);
    }
    for (const object of [answer, ...(answer?.items ?? [])].filter(Boolean)) {
      sendTimes.set(object, sentAt);
    }
    return answer;
  }
  const fieldErrors = (answer?.errors ?? []).map((error) => error.detail).join('; ');
  const detail = answer?.detail ?? `The service answers with the error ${response.status}.`;
  throw new Problem(response.status, fieldErrors ? `${detail} ${fieldErrors}.` : detail, {
    code: answer?.type?.replace('/problems/', ''),
    openOrders: answer?.open_orders,
    retryAfter: Number(response.headers.get('Retry-After')) || 0,
  });
}

// requestedAt returns when the request was sent that was answered with an object, or with a list that has the object.
// Answers may arrive out of order, and the server's clock may go back, so that of two answers the one wins that was
// requested later.
export const requestedAt = (object) => sendTimes.get(object);
const sendTimes = new WeakMap();

// retry calls action, and up to three more times after transient problems. Before each retry it calls waiting, if given,
// with the problem. After a problem it is unknown whether the service executed the action, so the action must be
// idempotent.
export async function retry(action, waiting) {
  for (let attempt = 0; ; attempt++) {
    try {
      return await action();
    } catch (failure) {
      if (!failure.transient || attempt === 3) {
        throw failure;
      }
      waiting?.(failure);
      // The random part spreads the requests of the pages that the service has rejected at the same time.
      const retryAfter = 1000 * failure.retryAfter * (1 + Math.random() / 2);
      await sleep(Math.max(500 * 2 ** attempt, retryAfter));
    }
  }
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null; // the body is empty, or a proxy's error page
  }
}

// ServerClock estimates the database's time from the times in answers. Between answers it advances with the browser's
// monotonic clock. An answer's time is uncertain by half of the round trip, so the clock uses the answer of the last
// minute that had the shortest round trip.
class ServerClock {
  #offset = 0; // server time minus performance.now(), in ms
  #uncertainty = Infinity; // of the offset, in ms
  #updatedAt = 0;
  #wallOffset = wallOffset();

  now() {
    return performance.now() + this.#offset;
  }

  // update takes the server's time from the answer to a request that was sent at sentAt, a value of performance.now().
  update(time, sentAt) {
    const receivedAt = performance.now();
    const uncertainty = (receivedAt - sentAt) / 2;
    if (uncertainty < this.#uncertainty || receivedAt - this.#updatedAt > 60_000) {
      this.#uncertainty = uncertainty;
      this.#updatedAt = receivedAt;
      this.#offset = Date.parse(time) - (sentAt + receivedAt) / 2;
      this.#wallOffset = wallOffset();
    }
  }

  // detectSleep reports whether the machine has slept since the last update. In some browsers performance.now() stands
  // still while the machine sleeps. So after a sleep the next answer replaces the estimate.
  detectSleep() {
    if (Math.abs(wallOffset() - this.#wallOffset) < 1000) {
      return false;
    }
    this.#uncertainty = Infinity;
    this.#wallOffset = wallOffset();
    return true;
  }
}

const wallOffset = () => Date.now() - performance.now();

export const serverClock = new ServerClock();
