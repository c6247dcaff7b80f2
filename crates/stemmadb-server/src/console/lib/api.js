// Requests to the server. Everything here is a public route; the server decides what the user may do.
//
// A request that needs a login waits while the user logs in, and is then sent again. Reads wait while the server does
// not answer, for example because it restarts.

import { store } from './dom.js';

// An error response, or status 0: the server did not answer.
export class Failure extends Error {
  constructor(status, error, reason) {
    super(reason || error);
    this.status = status;
    this.error = error;
  }
}

// The logged-in user: undefined until known; `name` is null for anonymous users.
export const user = store(undefined);
// Whether the server answers.
export const reachable = store(true);
// The pending question for a login, or null: { reason, name, done, cancel }.
export const loginQuestion = store(null);

export const isAdmin = (who) => !!who && who.roles.includes('_admin');

// The path of a database or a document within it, and a query string.
export const segment = (text) => encodeURIComponent(text);
export function documentPath(database, id) {
  const special = /^(_design|_local)\/(.*)$/s.exec(id);
  return `/${segment(database)}/${special ? `${special[1]}/${segment(special[2])}` : segment(id)}`;
}
export function withQuery(path, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== '') query.set(name, value);
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Reads at most `limit` bytes of a body; throws a Failure with status 413 if there are more.
async function readUpTo(response, limit) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = '';
  let length = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return text + decoder.decode();
    length += value.length;
    if (length > limit) {
      await reader.cancel();
      throw new Failure(413, 'too_large', `The response has more than ${limit} bytes.`);
    }
    text += decoder.decode(value, { stream: true });
  }
}

async function send(method, path, options) {
  const headers = { Accept: 'application/json', ...options.headers };
  let body = options.content;
  if (options.body !== undefined) body = JSON.stringify(options.body);
  if (options.text !== undefined) body = options.text;
  if (options.body !== undefined || options.text !== undefined) headers['Content-Type'] = 'application/json';
  let wait = 250;
  for (;;) {
    try {
      const response = await fetch(path, { method, headers, body, signal: options.signal, credentials: 'same-origin' });
      reachable.set(true);
      return response;
    } catch (error) {
      if (options.signal?.aborted) throw error;
      reachable.set(false);
      if (method !== 'GET') {
        throw new Failure(0, 'unreachable', 'The server does not answer. Nothing was lost here: try again.');
      }
      await sleep(wait);
      wait = Math.min(wait * 2, 3000);
    }
  }
}

// Asks the user to log in. Resolves after a login; rejects if the user cancels.
let pendingLogin = null;
export function askLogin(reason) {
  pendingLogin ??= new Promise((resolve, reject) => {
    const name = user.get()?.name || '';
    const end = (act) => (value) => {
      pendingLogin = null;
      loginQuestion.set(null);
      act(value);
    };
    loginQuestion.set({ reason, name, done: end(resolve), cancel: end(reject) });
  });
  return pendingLogin;
}

// Sends a request and returns the response. Options: body (JSON), text (JSON as text), content (bytes), headers,
// signal, and `quiet`: a 401 is an error instead of a question.
export async function respond(method, path, options = {}) {
  for (;;) {
    const response = await send(method, path, options);
    if (response.ok || response.status === 304) return response;
    const text = await response.text();
    let error = {};
    try {
      error = JSON.parse(text);
    } catch {
      error = { error: `status ${response.status}`, reason: text.slice(0, 500) };
    }
    const failure = new Failure(response.status, error.error, error.reason);
    failure.body = error;
    if (response.status !== 401 || options.quiet) throw failure;
    const name = user.get()?.name;
    try {
      await askLogin(name ? 'Your session has ended. Log in again: nothing that you typed is lost.' : error.reason);
    } catch {
      throw failure;
    }
  }
}

// As `respond`; returns the parsed JSON. `limit`: the most bytes that are read.
export async function ask(method, path, options = {}) {
  return JSON.parse(await askText(method, path, options));
}

// As `ask`; returns the text.
export async function askText(method, path, options = {}) {
  const response = await respond(method, path, options);
  return options.limit ? readUpTo(response, options.limit) : response.text();
}

export const get = (path, parameters = {}, options = {}) => ask('GET', withQuery(path, parameters), options);
export const post = (path, body, options = {}) => ask('POST', path, { body, ...options });

// Before a write: asks for a login if the session that the user sees has ended. Otherwise the write could be made
// anonymously, where that is allowed.
export async function ensureSession() {
  const name = user.get()?.name;
  if (!name) return;
  const { userCtx } = await get('/_session');
  if (userCtx.name !== name) {
    await askLogin('Your session has ended. Log in again: nothing that you typed is lost.');
  }
}

// The name of the session's user now, or null.
export const sessionName = async () => (await get('/_session', {}, { quiet: true })).userCtx.name;

export async function loadSession() {
  const { userCtx } = await get('/_session', {}, { quiet: true });
  user.set(userCtx);
  return userCtx;
}

export async function logIn(name, password) {
  await ask('POST', '/_session', { body: { name, password }, quiet: true });
  return loadSession();
}

export async function logOut() {
  await ask('DELETE', '/_session', { quiet: true });
  await loadSession();
}

// A feed of server-sent events that reconnects by itself. `handlers`: functions by event type, called with the parsed
// data, and `onState` with 'open', 'waiting' or 'closed'. Returns a function that ends it.
export function feed(path, handlers, onState) {
  let source;
  let timer;
  let ended = false;
  const connect = () => {
    source = new EventSource(path);
    for (const [type, handle] of Object.entries(handlers)) {
      source.addEventListener(type, (event) => {
        if (event.data === undefined || ended) return;
        handle(event.data === '' ? null : JSON.parse(event.data));
      });
    }
    source.onopen = () => onState('open');
    source.onerror = async () => {
      if (ended) return;
      onState('waiting');
      // The browser connects again by itself, unless the response was an error.
      if (source.readyState !== EventSource.CLOSED) return;
      source.close();
      try {
        await ensureSession();
      } catch {
        onState('closed');
        return;
      }
      timer = setTimeout(() => ended || connect(), 1000);
    };
  };
  connect();
  return () => {
    ended = true;
    clearTimeout(timer);
    source.close();
  };
}
