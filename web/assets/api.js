// The JSON API, and the clock that decides deadlines.

import { wait } from './dom.js';

// Problem is an answer that is not 2xx (RFC 9457), or no answer at all: then status is 0.
export class Problem extends Error {
  constructor(status, detail, type = '') {
    super(detail);
    this.status = status;
    this.type = type;
  }

  // passing says that the same request may well succeed in a moment, and that it is open whether it was done.
  get passing() {
    return [0, 408, 429, 502, 503, 504].includes(this.status);
  }
}

const unreachable = 'The service does not answer.';

// request sends a request and returns what the answer holds; null if nothing. It throws a Problem.
export async function request(method, path, { body, headers = {}, seconds = 10 } = {}) {
  const options = { method, headers: { ...headers }, signal: AbortSignal.timeout(seconds * 1000) };
  if (body !== undefined) {
    options.headers['Content-Type'] = 'application/json';
    options.body = JSON.stringify(body);
  }
  const sent = performance.now();
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
    const time = answer?.server_time ?? answer?.items?.[0]?.server_time; // an order's own items have none
    if (time) {
      serverClock.heard(time, sent);
    }
    return answer;
  }
  const faults = (answer?.errors ?? []).map((fault) => fault.detail).join('; ');
  const detail = answer?.detail ?? `The service answers ${response.status}.`;
  throw new Problem(response.status, faults ? `${detail} ${faults}.` : detail, answer?.type);
}

// insist does something, and again while it is open whether it was done: it must be harmless to repeat.
export async function insist(act) {
  for (let attempt = 0; ; attempt++) {
    try {
      return await act();
    } catch (failure) {
      if (!failure.passing || attempt === 3) {
        throw failure;
      }
      await wait(500 * 2 ** attempt);
    }
  }
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null; // a proxy's page, or nothing
  }
}

// ServerClock tells the database's time. It goes by the browser's monotonic clock from the best of the last
// minute's answers: what is unknown of a time in an answer is how long the answer was under way.
class ServerClock {
  #offset = 0; // server time less performance.now(), in ms
  #doubt = Infinity; // half of that answer's round trip
  #heardAt = 0;
  #drift = wallDrift();

  now() {
    return performance.now() + this.#offset;
  }

  // heard takes the time in an answer to a request that was sent at performance.now() = sent.
  heard(time, sent) {
    const received = performance.now();
    const doubt = (received - sent) / 2;
    if (doubt < this.#doubt || received - this.#heardAt > 60_000) {
      this.#doubt = doubt;
      this.#heardAt = received;
      this.#offset = Date.parse(time) - (sent + received) / 2;
      this.#drift = wallDrift();
    }
  }

  // slept says that performance.now() has stood still, as it does in some browsers while the machine
  // sleeps. What was known of the server's time is forgotten then.
  slept() {
    if (Math.abs(wallDrift() - this.#drift) < 1000) {
      return false;
    }
    this.#doubt = Infinity;
    this.#drift = wallDrift();
    return true;
  }
}

const wallDrift = () => Date.now() - performance.now();

export const serverClock = new ServerClock();
