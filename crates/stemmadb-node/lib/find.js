// Queries.
'use strict';

const { call } = require('./calls.js');
const { Iteration } = require('./iteration.js');
const { StemmaError } = require('./errors.js');

/** `'year'`, `'-year'`, an array of such, or Mango's form. */
function sortOrder(sort) {
  const key = (key) => (typeof key === 'string' && key.startsWith('-') ? { [key.slice(1)]: 'desc' } : key);
  return Array.isArray(sort) ? sort.map(key) : [key(sort)];
}

/**
 * A query. It runs when it is iterated over, or by one of its methods; each run reads the newest state.
 */
class Find {
  #handle;
  #query;
  #timeout;

  constructor(handle, selector = {}, options = {}) {
    const { sort, limit, skip, fields, after, timeout, ...others } = options ?? {};
    for (const name of Object.keys(others)) {
      throw new StemmaError('Invalid', `find has no option \`${name}\``, 'sort, limit, skip, fields, after, timeout');
    }
    this.#handle = handle;
    this.#query = { selector: selector ?? {} };
    if (sort !== undefined) this.#query.sort = sortOrder(sort);
    if (limit !== undefined) this.#query.limit = limit;
    if (skip !== undefined) this.#query.skip = skip;
    if (fields !== undefined) this.#query.fields = typeof fields === 'string' ? [fields] : fields;
    if (after !== undefined) this.#query.bookmark = after;
    this.#timeout = timeout;
  }

  #call(operation, parameters = {}) {
    return call(this.#handle, operation, { query: this.#query, timeout: this.#timeout, ...parameters });
  }

  #rows(operation, limit) {
    const query = limit === undefined ? this.#query : { ...this.#query, limit };
    return this.#call(operation, { query, rows: this.#query.fields ? 'values' : 'documents' });
  }

  #figure(figure, path) {
    return this.#call('figure', { figure, path });
  }

  [Symbol.asyncIterator]() {
    return new Iteration(this.#rows('rows'));
  }

  toArray() {
    return this.#rows('all');
  }

  async first() {
    const [row] = await this.#rows('all', Math.min(1, this.#query.limit ?? 1));
    return row;
  }

  async one() {
    const rows = await this.#rows('all', Math.min(2, this.#query.limit ?? 2));
    if (rows.length === 0) throw new StemmaError('NotFound', 'no document matches');
    if (rows.length > 1) throw new StemmaError('Invalid', 'more than one document matches', 'use first()');
    return rows[0];
  }

  page() {
    return this.#rows('page');
  }

  ids() {
    return this.#call('all', { rows: 'ids' });
  }

  count() {
    return this.#figure('count');
  }

  exists() {
    return this.#figure('exists');
  }

  distinct(path) {
    return this.#figure('distinct', path);
  }

  min(path) {
    return this.#figure('min', path);
  }

  max(path) {
    return this.#figure('max', path);
  }

  sum(path) {
    return this.#figure('sum', path);
  }

  average(path) {
    return this.#figure('average', path);
  }

  summary(path) {
    return this.#figure('summary', path);
  }

  async aggregate(figures) {
    const [row] = await this.#call('aggregate', { figures });
    return row ?? {};
  }

  groupBy(...paths) {
    return { aggregate: (figures) => this.#call('aggregate', { groupBy: paths.flat(), figures }) };
  }

  explain({ analyze = false } = {}) {
    return this.#call('explain', { analyze });
  }

  update(patch) {
    return this.#call('updateWhere', { patch });
  }

  delete() {
    return this.#call('deleteWhere');
  }
}

module.exports = { Find };
