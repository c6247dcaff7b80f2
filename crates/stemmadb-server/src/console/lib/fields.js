// The fields that documents really have, from the database's exact statistics, and completion of Mango queries by them.

import { get, post, segment } from './api.js';
import { compact, count } from './format.js';
import { selectorName } from './mango.js';

const OPERATORS = [
  ['$eq', 'equal'],
  ['$ne', 'not equal'],
  ['$gt', 'greater'],
  ['$gte', 'greater or equal'],
  ['$lt', 'less'],
  ['$lte', 'less or equal'],
  ['$in', 'one of a list'],
  ['$nin', 'none of a list'],
  ['$exists', 'true or false'],
  ['$type', 'the type of the value'],
  ['$regex', 'a regular expression'],
  ['$beginsWith', 'a prefix of a text'],
  ['$all', 'an array with all of these'],
  ['$elemMatch', 'an array with a matching element'],
  ['$allMatch', 'an array of matching elements'],
  ['$size', 'the length of an array'],
  ['$mod', 'divisor and remainder'],
  ['$and', 'all of these conditions'],
  ['$or', 'one of these conditions'],
  ['$nor', 'none of these conditions'],
  ['$not', 'not this condition'],
];
const ITEMS_MAX = 40;

// The fields: [{ path, name, documents, values, kinds }]; `name` is how a selector names the path.
export async function loadFields(database, signal) {
  const { rows } = await get(`/${segment(database)}/_paths`, {}, { signal });
  // `\[]` is a part of a name, and `[]` stands for the elements of an array.
  const withoutElements = (path) => path.replace(/(\\.)|\[\]/g, '$1');
  return rows.map((row) => ({ ...row, name: selectorName(withoutElements(row.path)) }));
}

// The most frequent values of a field: [{ value, count }].
export async function topValues(database, path, selector, signal) {
  const body = { group_by: path, figures: { n: 'count' }, order_by: 'n', descending: true, limit: 12 };
  if (selector) body.selector = selector;
  const { rows } = await post(`/${segment(database)}/_aggregate`, body, { signal, limit: 2_000_000 });
  return rows.map(({ key, value }) => ({ value: key, count: value.n }));
}

export const kindsText = ({ kinds }) =>
  Object.entries(kinds)
    .sort((left, right) => right[1] - left[1])
    .map(([kind]) => kind)
    .join(', ');

// The string that a position of a text is in: { from, text, isName }, where `from` is after the quote.
export function stringAt(text, at) {
  let from = -1;
  for (let index = 0; index < at; index += 1) {
    if (text[index] === '\\') index += 1;
    else if (text[index] === '"') from = from < 0 ? index + 1 : -1;
  }
  if (from < 0) return null;
  const before = text.slice(0, from - 1).trimEnd();
  return { from, text: text.slice(from, at), isName: !before.endsWith(':'), before };
}

// The name before the value that begins at the end of `before`.
export const nameBefore = (before) =>
  /"((?:[^"\\]|\\.)*)"\s*:(?:\s*\{\s*"\$\w+"\s*:)?\s*\[?(?:\s*"[^"]*"\s*,)*\s*$/.exec(before)?.[1];

// A completion function for the editor. `values` maps field names to their known values.
export function completion(fields, values) {
  return (text, at) => {
    const found = stringAt(text, at);
    if (!found) return null;
    const rest = /^[^"\n]*/.exec(text.slice(at))[0];
    const isClosed = text[at + rest.length] === '"';
    const to = isClosed ? at + rest.length : at;
    const typed = found.text.toLowerCase();
    const fits = (name) => name.toLowerCase().includes(typed);
    const inList = /"(?:fields|sort|group_by)"\s*:\s*\[[^\]]*$/.test(found.before);
    let items;
    if (found.text.startsWith('$')) {
      items = OPERATORS.filter(([name]) => fits(name)).map(([name, detail]) => ({ label: name, detail }));
    } else if (found.isName || inList) {
      const seen = new Set();
      items = fields
        .filter(({ name }) => fits(name) && !seen.has(name) && seen.add(name))
        .sort((left, right) => right.documents - left.documents)
        .map((field) => ({ label: field.name, detail: `${kindsText(field)} · ${compact(field.documents)} docs` }));
    } else {
      const known = values.get(nameBefore(found.before) ?? '') ?? [];
      items = known
        .filter(({ value }) => typeof value === 'string' && fits(value))
        .map(({ value, count: number }) => ({ label: value, detail: `${count(number)} docs` }));
    }
    const quoted = (text) => JSON.stringify(text).slice(1, -1);
    items = items.slice(0, ITEMS_MAX).map((item) => ({ ...item, text: quoted(item.label) }));
    return { from: found.from, to, items };
  };
}
