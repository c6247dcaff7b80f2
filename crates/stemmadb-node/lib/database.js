// Databases, their earlier states, and transactions.
'use strict';

const native = require('./calls.js');
const { StemmaError } = require('./errors.js');
const { Find } = require('./find.js');
const { Iteration } = require('./iteration.js');
const { View } = require('./view.js');

const { call } = native;

/** Documents that `insertMany` writes together: a flush for each, and a pause of the event loop of a millisecond. */
const BATCH_COUNT = 1000;

/** `(document)` or `(id, document)` as parameters. */
function given(first, second) {
  if (typeof first === 'string') {
    if (second === undefined) {
      throw new StemmaError('Invalid', 'the document is missing', 'write (id, document), or (document)');
    }
    return { id: first, document: second };
  }
  return { document: first };
}

/** A `Date` as the native library takes it. */
function point(at) {
  return at instanceof Date ? { ms: at.getTime() } : at;
}

/** What can be read: the newest state, an earlier one, or that of a transaction. */
class Reading {
  #handle;

  constructor(handle) {
    this.#handle = handle;
  }

  _call(operation, parameters) {
    return call(this.#handle, operation, parameters);
  }

  get _handle() {
    return this.#handle;
  }

  get(id) {
    return this._call('get', { id });
  }

  async getMany(ids) {
    return (await this._call('getMany', { ids })).map((document) => document ?? undefined);
  }

  find(selector, options) {
    return new Find(this.#handle, selector, options);
  }
}

/** A state of a database that doesn't change. */
class Snapshot extends Reading {
  /** The sequence as of which it reads; `null` for a remote database. */
  sequence() {
    return this._call('sequence');
  }
}

/** What can be written. */
class Writing extends Reading {
  async insert(first, second) {
    return this._call('insert', given(first, second));
  }

  async upsert(first, second) {
    return this._call('upsert', given(first, second));
  }

  async replace(document, { revision } = {}) {
    return this._call('replace', { document, revision });
  }

  update(id, patch, { revision } = {}) {
    return this._call('update', { id, patch, revision });
  }

  delete(id, revision) {
    return this._call('delete', { id, revision });
  }

  async insertMany(documents, { existing = 'error', batch = BATCH_COUNT } = {}) {
    if (!Number.isInteger(batch) || batch < 1) throw new StemmaError('Invalid', '`batch` is not a number from 1');
    let [count, rows, running] = [0, [], Promise.resolve(0)];
    // While a batch is written, the next is read.
    const write = async () => {
      const documents = rows;
      rows = [];
      count += await running;
      running = this._call('insertMany', { documents, existing });
      running.catch(() => {});
    };
    for await (const document of documents) {
      rows.push(document);
      if (rows.length >= batch) await write();
    }
    if (rows.length > 0) await write();
    return count + (await running);
  }
}

/** A transaction: what its function reads and writes. All of its writes are made at its end, or none. */
class Transaction extends Writing {}

/** A database. */
class Database extends Writing {
  #location;
  #isClosed = false;

  constructor(handle, location) {
    super(handle);
    this.#location = location;
  }

  get location() {
    return this.#location;
  }

  get closed() {
    return this.#isClosed;
  }

  close() {
    this.#isClosed = true;
    return this._call('close');
  }

  async [Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose')]() {
    await this.close();
  }

  sequence() {
    return this._call('sequence');
  }

  getRevision(id, revision) {
    return this._call('getRevision', { id, revision });
  }

  async transaction(work, { attempts = 100 } = {}) {
    for (let attempt = 1; ; attempt++) {
      const handle = await this._call('begin');
      let result;
      try {
        result = await work(new Transaction(handle));
      } catch (error) {
        await call(handle, 'end', { commits: false });
        throw error;
      }
      try {
        await call(handle, 'end', { commits: true });
        return result;
      } catch (error) {
        // Only the end finds that others changed what was read; a conflict within is the function's own.
        if (error.code !== 'Conflict' || attempt >= attempts) throw error;
      }
    }
  }

  async snapshot() {
    return new Snapshot(await this._call('snapshot'));
  }

  async asOf(at) {
    return new Snapshot(await this._call('asOf', { at: point(at) }));
  }

  async history(id) {
    const revisions = await this._call('history', { id });
    return revisions.map(({ time, ...revision }) => ({
      ...revision,
      time: time === undefined ? undefined : new Date(time),
    }));
  }

  differences(start, end, selector) {
    return this._call('differences', { start: point(start), end: point(end), selector });
  }

  keepHistory(keep) {
    return this._call('keepHistory', { keep });
  }

  undelete(id) {
    return this._call('undelete', { id });
  }

  changes({ since, documents = false, ids, selector, timeout } = {}) {
    return new Iteration(this._call('changes', { since, documents, ids, selector, timeout }));
  }

  watch(selector = {}, { timeout } = {}) {
    return new Iteration(this._call('watch', { selector, timeout }));
  }

  async attach(id, name, content, { contentType, revision } = {}) {
    const bytes = typeof content === 'string' ? Buffer.from(content) : content;
    if (!ArrayBuffer.isView(bytes)) throw new StemmaError('Invalid', 'the content of a file is a Buffer or a string');
    const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    return native.attach(this._handle, { id, name, contentType, revision }, buffer);
  }

  readFile(id, name) {
    return this._call('readFile', { id, name });
  }

  detach(id, name, { revision } = {}) {
    return this._call('detach', { id, name, revision });
  }

  createIndex(paths, { unique = false, name, language } = {}) {
    return this._call('createIndex', { paths, unique, name, language });
  }

  indexes() {
    return this._call('indexes');
  }

  dropIndex(name) {
    return this._call('dropIndex', { name });
  }

  requireSchema(collection, schema) {
    return this._call('requireSchema', { collection, schema });
  }

  addExpiration(path, { collection } = {}) {
    return this._call('addExpiration', { path, collection });
  }

  expire(id, after) {
    return this._call('expire', { id, after });
  }

  async defineView(name, definition) {
    await this._call('defineView', { name, definition });
    return this.view(name);
  }

  view(name) {
    return new View(this._handle, name);
  }

  views() {
    return this._call('views');
  }

  dropView(name) {
    return this._call('dropView', { name });
  }

  paths() {
    return this._call('paths');
  }

  info() {
    return this._call('info');
  }

  flush() {
    return this._call('flush');
  }

  backup(directory) {
    return this._call('backup', { directory: String(directory) });
  }

  check() {
    return this._call('check');
  }

  compact() {
    return this._call('compact');
  }
}

/** Opens a database. */
async function open(location, options = {}) {
  const { key, create = true, ...others } = options;
  const text = location instanceof URL && location.protocol === 'file:' ? require('node:url').fileURLToPath(location) : String(location);
  const secret = typeof key === 'string' ? { passphrase: key } : key ? { key: Buffer.from(key).toString('hex') } : {};
  const handle = await native.open({ location: text, existing: !create, ...secret, ...others });
  // The password stays out of `location`.
  return new Database(handle, text.replace(/^([a-z+]+:\/\/)[^/]*@/, '$1'));
}

module.exports = { Database, Snapshot, Transaction, open };
