// Differences between two documents, by field.

import { isObject, isSame, own } from './json.js';

// The differing fields of two values: [{ path, left, right }], where path is an array of names. Arrays are compared as
// a whole, since positions shift. A missing value is undefined.
export function differences(left, right, path = []) {
  if (isObject(left) && isObject(right)) {
    const names = [...Object.keys(left), ...Object.keys(right).filter((name) => !Object.hasOwn(left, name))];
    return names.flatMap((name) => differences(own(left, name), own(right, name), [...path, name]));
  }
  if (left === undefined && right === undefined) return [];
  if (left !== undefined && right !== undefined && isSame(left, right)) return [];
  return [{ path, left, right }];
}

const set = (object, name, value) =>
  Object.defineProperty(object, name, { value, enumerable: true, writable: true, configurable: true });

// A copy of `base` with the value at a path replaced, or removed if it is undefined.
export function replaced(base, path, value) {
  const copy = isObject(base) ? Object.keys(base).reduce((copy, name) => set(copy, name, base[name]), {}) : {};
  const [name, ...rest] = path;
  if (rest.length > 0) return set(copy, name, replaced(own(copy, name), rest, value));
  if (value === undefined) delete copy[name];
  else set(copy, name, value);
  return copy;
}

// The contents of a document: without the fields of the database, such as `_id` and `_rev`.
export function contents(document) {
  const copy = {};
  for (const name of Object.keys(document ?? {})) if (!name.startsWith('_')) set(copy, name, document[name]);
  return copy;
}

export const pathText = (path) => path.join('.') || '(document)';
