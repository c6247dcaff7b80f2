// Materialized views.
'use strict';

const { call } = require('./calls.js');

/**
 * A materialized view: rows by key, which are updated when they are asked for. Rows are chosen by `key`, `keys`,
 * `prefix` (the first elements of keys that are arrays), or from `start` up to, but without, `end`.
 */
class View {
  #handle;

  constructor(handle, name) {
    this.#handle = handle;
    this.name = name;
  }

  #call(operation, options, parameters) {
    return call(this.#handle, operation, { name: this.name, options, ...parameters });
  }

  rows({ documents = false, ...options } = {}) {
    return this.#call('viewRows', options, { documents });
  }

  reduce(options = {}) {
    return this.#call('viewReduce', options);
  }

  groups({ level, ...options } = {}) {
    return this.#call('viewGroups', options, { level });
  }
}

module.exports = { View };
