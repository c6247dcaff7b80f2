// Calls of the native library: promises by number, which it answers on the event loop.
'use strict';

const native = require('./native.js');
const { StemmaError } = require('./errors.js');
const { marker, parseMarked, stringify } = require('./json.js');

const pending = new Map();
let lastNumber = 0;

// A pending call keeps the process running; the library's own handle does not.
const keepAlive = setInterval(() => {}, 2 ** 31 - 1);
keepAlive.unref();

const calls = new native.Calls((number, form, value) => {
  const { resolve, reject } = pending.get(number);
  pending.delete(number);
  if (pending.size === 0) keepAlive.unref();
  try {
    switch (form) {
      case 0:
        resolve(value);
        break;
      case 1:
        resolve(JSON.parse(value));
        break;
      case 2:
        resolve(parseMarked(value));
        break;
      default: {
        const { code, message, hint } = JSON.parse(value);
        reject(new StemmaError(code, message, hint));
      }
    }
  } catch (error) {
    reject(error);
  }
}, marker);

/** A promise of what `start(calls, number)` will answer. */
function ask(start) {
  return new Promise((resolve, reject) => {
    const number = ++lastNumber;
    pending.set(number, { resolve, reject });
    if (pending.size === 1) keepAlive.ref();
    try {
      start(calls, number);
    } catch (error) {
      pending.delete(number);
      if (pending.size === 0) keepAlive.unref();
      throw error;
    }
  });
}

/** Makes a call of a native handle. */
function call(handle, operation, parameters = {}) {
  return ask((calls, number) => handle.call(calls, number, operation, stringify(parameters)));
}

/** Opens a database; resolves to its native handle. */
function open(parameters) {
  return ask((calls, number) => native.Handle.open(calls, number, stringify(parameters)));
}

/** Attaches a file. */
function attach(handle, parameters, content) {
  return ask((calls, number) => handle.attach(calls, number, stringify(parameters), content));
}

/** The next items of a native cursor: whether there are no more, then the items. */
function next(cursor, count) {
  return ask((calls, number) => cursor.next(calls, number, count));
}

module.exports = { attach, call, next, open };
