// Simple Mango queries as rows of field, operator and value, in both directions.
//
// What rows can't say stays as it is: other members of the query, and other parts of its selector.

import { ExactNumber, isObject, own, parse } from './json.js';

// Operators: the name, the words for it, and the types that its value may have.
const ANY = ['text', 'number', 'true', 'false', 'null'];
export const OPERATORS = [
  ['$eq', 'is', ANY],
  ['$ne', 'is not', ANY],
  ['$gt', 'greater than', ANY],
  ['$gte', 'at least', ANY],
  ['$lt', 'less than', ANY],
  ['$lte', 'at most', ANY],
  ['$beginsWith', 'begins with', ['text']],
  ['$regex', 'matches', ['text']],
  ['$exists', 'exists', ['true', 'false']],
];
export const typesOf = (operator) => OPERATORS.find(([name]) => name === operator)[2];

// A path as the name of a selector: a dollar sign in front would make an operator of it.
export const selectorName = (path) => (path.startsWith('$') ? `\\${path}` : path);
const pathOf = (name) => (name.startsWith('\\$') ? name.slice(1) : name);

const CONSTANTS = { true: true, false: false, null: null };

// The value of a row, or undefined if its text is no number.
export function valueOf({ type, text }) {
  if (type === 'text') return text;
  if (type !== 'number') return CONSTANTS[type];
  try {
    const value = parse(text.trim());
    return typeof value === 'number' || value instanceof ExactNumber ? value : undefined;
  } catch {
    return undefined;
  }
}

// A value as type and text of a row, or null if a row can't have it.
function typed(value) {
  if (typeof value === 'string') return { type: 'text', text: value };
  if (typeof value === 'number' || value instanceof ExactNumber) return { type: 'number', text: String(value) };
  return value === null || typeof value === 'boolean' ? { type: String(value), text: '' } : null;
}

// Whether a row is complete, so that it can be written.
export const isComplete = (row) => row.path !== '' && valueOf(row) !== undefined;

// The rows of a condition on a field, or null if it is not simple.
function rowsOfField(name, condition) {
  const plain = typed(condition);
  if (plain) return [{ path: pathOf(name), operator: '$eq', ...plain }];
  if (!isObject(condition) || Object.keys(condition).length === 0) return null;
  const rows = Object.entries(condition).map(([operator, operand]) => {
    const value = typed(operand);
    const known = OPERATORS.find(([name]) => name === operator);
    return value && known?.[2].includes(value.type) ? { path: pathOf(name), operator, ...value } : null;
  });
  return rows.includes(null) ? null : rows;
}

// The rows of a selector, and the parts of it that are not simple.
function readSelector(selector) {
  const rows = [];
  const others = [];
  for (const [name, condition] of Object.entries(selector)) {
    if (name === '$and' && Array.isArray(condition)) {
      for (const part of condition) {
        const read = isObject(part) ? readSelector(part) : { rows: [], others: [part] };
        if (read.others.length === 0) rows.push(...read.rows);
        else others.push(['$and', part]);
      }
      continue;
    }
    const found = name.startsWith('$') ? null : rowsOfField(name, condition);
    if (found) rows.push(...found);
    else others.push([name, condition]);
  }
  return { rows, others };
}

function readSort(sort) {
  if (sort === undefined) return [];
  if (!Array.isArray(sort)) return null;
  const found = sort.map((part) => {
    if (typeof part === 'string') return { path: part, direction: 'asc' };
    if (!isObject(part) || Object.keys(part).length !== 1) return null;
    const [[path, direction]] = Object.entries(part);
    return direction === 'asc' || direction === 'desc' ? { path, direction } : null;
  });
  return found.includes(null) ? null : found;
}

// Reads a query: { rows, sort, limit, others }. `sort` and `limit` are null if they are not simple; `others` are the
// names of the parts of the selector that rows can't say.
export function readQuery(query) {
  const selector = own(query, 'selector') ?? {};
  const { rows, others } = isObject(selector) ? readSelector(selector) : { rows: [], others: [['selector']] };
  const limit = own(query, 'limit');
  const isPlain = limit === undefined || (Number.isInteger(limit) && limit >= 0);
  const names = [...new Set(others.map(([name]) => name))];
  return { rows, others: names, sort: readSort(own(query, 'sort')), limit: isPlain ? String(limit ?? '') : null };
}

// The query with other rows, sort order and limit. Incomplete rows are left out.
export function writeQuery(query, { rows, sort, limit }) {
  const before = own(query, 'selector');
  // Names of fields may be `__proto__`, so that objects are made of entries.
  const conditions = new Map();
  const again = [];
  for (const row of rows.filter(isComplete)) {
    const name = selectorName(row.path);
    const operators = conditions.get(name) ?? new Map();
    if (operators.has(row.operator)) again.push(Object.fromEntries([[name, { [row.operator]: valueOf(row) }]]));
    else operators.set(row.operator, valueOf(row));
    conditions.set(name, operators);
  }
  const entries = [...conditions].map(([name, operators]) => {
    const isEquality = operators.size === 1 && operators.has('$eq');
    return [name, isEquality ? operators.get('$eq') : Object.fromEntries(operators)];
  });
  const others = isObject(before) ? readSelector(before).others : [];
  const joined = [...others.filter(([name]) => name === '$and').map(([, part]) => part), ...again];
  for (const [name, condition] of others) {
    if (name === '$and') continue;
    if (conditions.has(name)) joined.push(Object.fromEntries([[name, condition]]));
    else entries.push([name, condition]);
  }
  if (joined.length > 0) entries.push(['$and', joined]);
  const members = { ...query, selector: Object.fromEntries(entries) };
  if (sort) {
    const named = sort.filter(({ path }) => path !== '');
    if (named.length > 0)
      members.sort = named.map(({ path, direction }) => (direction === 'asc' ? path : Object.fromEntries([[path, direction]])));
    else delete members.sort;
  }
  if (limit !== null) {
    if (/^\d{1,9}$/.test(limit)) members.limit = Number(limit);
    else if (limit === '') delete members.limit;
  }
  return members;
}
