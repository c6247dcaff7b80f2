// JSON text in both directions. Integers that numbers don't have are BigInt: in text for the native library they are
// digits, in its text they are strings that begin with a marker which only this process knows.
'use strict';

const { randomUUID } = require('node:crypto');
const { StemmaError } = require('./errors.js');

const marker = `stemma:${randomUUID()}:`;
const marked = new RegExp(`"${marker}(-?[0-9]+)"`, 'g');

const withMarks = (_, value) => {
  if (typeof value !== 'bigint') return value;
  // The parser would round it to a double.
  if (value < -(2n ** 63n) || value >= 2n ** 64n) {
    throw new StemmaError('Invalid', 'an integer is outside -2^63 to 2^64 - 1', 'store it as a number or a string');
  }
  return marker + value;
};
const withoutMarks = (_, value) =>
  typeof value === 'string' && value.startsWith(marker) ? BigInt(value.slice(marker.length)) : value;

/** JSON text of a value. What JSON doesn't have becomes what `JSON.stringify` makes of it. */
function stringify(value) {
  try {
    return JSON.stringify(value);
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    try {
      // `JSON.stringify` refuses BigInt, which is rare enough to be tried second.
      return JSON.stringify(value, withMarks).replace(marked, '$1');
    } catch (cause) {
      if (cause instanceof StemmaError) throw cause;
      throw new StemmaError('Invalid', cause.message, 'documents are what JSON can say');
    }
  }
}

/** The value of marked JSON text. */
function parseMarked(text) {
  return JSON.parse(text, withoutMarks);
}

module.exports = { marker, parseMarked, stringify };
