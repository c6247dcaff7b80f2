// JSON as text: tokens for highlighting, formatting that keeps every number as it is written, and parsing that does so
// too. JavaScript's own parser rounds numbers beyond 15 digits; a document must not change because it was looked at.

const TOKEN =
  /"(?:[^"\\\u0000-\u001f]|\\.)*"?|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|[{}[\],:]|\s+|[^\s"{}[\],:]+/g;

// The tokens of a text: { kind, text }, where kind is key, string, number, literal, mark, space or error.
export function tokens(text) {
  const found = [];
  for (const [part] of text.matchAll(TOKEN)) {
    const first = part[0];
    let kind = 'error';
    if (first === '"') kind = part.length > 1 && part.endsWith('"') ? 'string' : 'error';
    else if (/^\s/.test(first)) kind = 'space';
    else if ('{}[],:'.includes(first)) kind = 'mark';
    else if (/^-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?$/.test(part)) kind = 'number';
    else if (part === 'true' || part === 'false' || part === 'null') kind = 'literal';
    if (part === ':') {
      for (let at = found.length - 1; at >= 0; at -= 1) {
        if (found[at].kind === 'string') found[at].kind = 'key';
        if (found[at].kind !== 'space') break;
      }
    }
    found.push({ kind, text: part });
  }
  return found;
}

// A number that JavaScript can't hold, with its digits.
export class ExactNumber {
  constructor(text) {
    this.text = text;
  }

  toString() {
    return this.text;
  }
}

const number = (text) =>
  String(Number(text)) === text || Number(text).toString() === text.replace(/\.0+$/, '')
    ? Number(text)
    : new ExactNumber(text);

// Parses a text. Throws an Error with `line` and `column` if it is not JSON.
export function parse(text) {
  const parts = tokens(text);
  let at = 0;
  let offset = 0;
  const fail = (expected) => {
    const before = text.slice(0, offset).split('\n');
    const found = at < parts.length ? `found ${JSON.stringify(parts[at].text.slice(0, 20))}` : 'the text ends';
    const error = new Error(`Line ${before.length}: ${expected} expected, ${found}.`);
    error.line = before.length;
    error.column = before.at(-1).length + 1;
    throw error;
  };
  const next = () => {
    offset += parts[at].text.length;
    at += 1;
  };
  const space = () => {
    while (parts[at]?.kind === 'space') next();
  };
  const isMark = (mark) => parts[at]?.kind === 'mark' && parts[at].text === mark;
  const expect = (mark) => {
    if (!isMark(mark)) fail(`\`${mark}\``);
    next();
    space();
  };
  const string = () => {
    let value;
    try {
      value = JSON.parse(parts[at].text);
    } catch {
      fail('a valid string');
    }
    next();
    space();
    return value;
  };
  const members = (close, member) => {
    next();
    space();
    if (isMark(close)) return expect(close);
    for (;;) {
      member();
      if (isMark(close)) return expect(close);
      expect(',');
    }
  };
  const value = () => {
    const part = parts[at];
    if (isMark('{')) {
      const object = {};
      members('}', () => {
        if (parts[at]?.kind !== 'key') fail('a name in double quotes');
        const name = string();
        expect(':');
        Object.defineProperty(object, name, { value: value(), enumerable: true, writable: true, configurable: true });
      });
      return object;
    }
    if (isMark('[')) {
      const array = [];
      members(']', () => array.push(value()));
      return array;
    }
    if (part?.kind === 'string') return string();
    if (part?.kind !== 'number' && part?.kind !== 'literal') fail('a value');
    next();
    space();
    return part.kind === 'number' ? number(part.text) : JSON.parse(part.text);
  };
  space();
  const parsed = value();
  if (at < parts.length) fail('the end');
  return parsed;
}

// A value as text, with the digits of exact numbers. `indent`: spaces per level; 0 for one line.
export function stringify(value, indent = 0, level = 0) {
  if (value instanceof ExactNumber) return value.text;
  if (value === null || typeof value !== 'object') return JSON.stringify(value) ?? 'null';
  const isArray = Array.isArray(value);
  const parts = isArray
    ? value.map((item) => stringify(item, indent, level + 1))
    : Object.keys(value).map(
        (name) => `${JSON.stringify(name)}:${indent ? ' ' : ''}${stringify(value[name], indent, level + 1)}`,
      );
  const [open, close] = isArray ? '[]' : '{}';
  if (parts.length === 0) return open + close;
  if (!indent) return open + parts.join(',') + close;
  const line = `\n${' '.repeat(indent * (level + 1))}`;
  const flat = parts.join(', ');
  if (isArray && flat.length <= 60 && !flat.includes('\n') && !flat.includes('{')) return `[${flat}]`;
  return `${open}${line}${parts.join(`,${line}`)}\n${' '.repeat(indent * level)}${close}`;
}

// A text, indented; the same text if it is not JSON.
export function pretty(text) {
  try {
    return stringify(parse(text), 2);
  } catch {
    return text;
  }
}

// The value of an object's own field: documents may have fields such as `constructor`.
export const own = (object, name) => (object && Object.hasOwn(object, name) ? object[name] : undefined);

export const isObject = (value) =>
  value !== null && typeof value === 'object' && !Array.isArray(value) && !(value instanceof ExactNumber);

export const isSame = (left, right) => stringify(left) === stringify(right);
