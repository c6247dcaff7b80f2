// The adapter: PouchDB's methods with an underscore, by calls of the native library.
'use strict';

const { allDocsKeysQuery, parseDoc, preprocessAttachments } = require('pouchdb-adapter-utils');
const errors = require('pouchdb-errors');
const { collectConflicts } = require('pouchdb-merge');
const { clone, filterChange } = require('pouchdb-utils');
const { acquire, destroy, release } = require('./stores.js');
const { edit, metadata, revisionTree } = require('./documents.js');

/** Changes that are read at once. */
const CHANGES_COUNT = 500;

/** PouchDB's error for an error of Stemma. */
function pouchError(error) {
  switch (error.code) {
    case 'Conflict':
      return errors.createError(errors.REV_CONFLICT);
    case 'NotFound':
      return errors.createError(errors.MISSING_DOC);
    case 'Invalid':
      return errors.createError(errors.BAD_REQUEST, error.message);
    case 'Forbidden':
      return errors.createError(errors.FORBIDDEN, error.message);
    default:
      return error;
  }
}

/** Passes the outcome of a promise to a callback, whose own errors are not errors of the promise. */
function answer(promise, callback) {
  promise.then(
    (value) => process.nextTick(callback, null, value),
    (error) => process.nextTick(callback, pouchError(error)),
  );
}

function StemmaPouch(options, ready) {
  const api = this;
  const name = options.name;
  const opened = acquire(name, options);
  const call = async (operation, parameters) =>
    (await (await opened).database)._call(`replica.${operation}`, parameters);
  const info = () => call('info');

  api._remote = false;
  api.type = () => 'stemma';
  api._id = (callback) => answer(info().then(({ id }) => id), callback);
  api._info = (callback) =>
    answer(
      info().then(({ documents, sequence }) => ({ doc_count: documents, update_seq: sequence, backend_adapter: 'stemma' })),
      callback,
    );

  async function read(id, { rev, latest, revs_info: withInfo }) {
    const found = await call('get', { id, revision: rev, stored: Boolean(withInfo) });
    const { branches, stored } = found;
    let { document } = found;
    if (latest && rev) {
      // The newest revision of the branch that has it.
      const branch = branches.find(({ revisions }) => revisions.includes(rev));
      if (branch && branch.revisions[0] !== rev) {
        ({ document } = await call('get', { id, revision: branch.revisions[0] }));
      }
    }
    if (!document) throw errors.createError(errors.MISSING_DOC, 'missing');
    if (!rev && document._deleted) throw errors.createError(errors.MISSING_DOC, 'deleted');
    return { doc: document, metadata: metadata(id, branches, stored), ctx: { revision: document._rev } };
  }

  api._get = (id, opts, callback) => answer(read(id, opts), callback);

  async function content(id, attachment, stub, revision, { binary }) {
    const bytes = await call('file', { id, name: attachment, revision });
    if (!bytes) throw errors.createError(errors.MISSING_DOC);
    // PouchDB's Buffers have their type, as a Blob does.
    return binary ? Object.assign(bytes, { type: stub.content_type }) : bytes.toString('base64');
  }

  api._getAttachment = (id, attachment, stub, opts, callback) => {
    answer(content(id, attachment, stub, opts.ctx.revision, opts), callback);
  };

  /** Puts the contents of files into a document. */
  async function withContents(document, { binary }) {
    for (const [attachment, stub] of Object.entries(document._attachments ?? {})) {
      stub.data = await content(document._id, attachment, stub, document._rev, { binary });
      delete stub.stub;
      delete stub.length;
    }
  }

  async function write({ docs }, { new_edits: isNew }) {
    const results = new Array(docs.length);
    const edits = [];
    const places = [];
    const parsed = [];
    docs.forEach((doc, at) => {
      if (doc._id?.startsWith('_local/')) return;
      const parent = doc._rev;
      try {
        const one = parseDoc(clone(doc), isNew, options);
        if (one.error) throw one;
        parsed.push({ at, parent, one });
      } catch (error) {
        results[at] = error;
      }
    });
    const [failure] = results.filter(Boolean);
    // As other adapters do: one wrong document refuses the request.
    if (failure) throw failure;
    await new Promise((resolve, reject) => {
      const done = (error) => (error ? reject(error) : resolve());
      preprocessAttachments(parsed.map(({ one }) => one), 'base64', done);
    });
    for (const { at, parent, one } of parsed) {
      edits.push(edit(one, parent, isNew));
      places.push({ at, id: one.metadata.id });
    }
    const written = edits.length ? await call('write', { edits }) : [];
    written.forEach((result, n) => {
      const { at, id } = places[n];
      const { revision } = result;
      results[at] = revision ? { ok: true, id, rev: revision } : Object.assign(pouchError(result), { id });
    });
    for (const [at, doc] of docs.entries()) {
      if (!results[at]) results[at] = await (doc._deleted ? removeLocal(doc) : putLocal(doc)).catch((error) => pouchError(error));
    }
    return results;
  }

  api._bulkDocs = (request, opts, callback) => answer(write(request, opts), callback);

  function row({ id, revision, branches, document }, opts) {
    const found = { id, key: id, value: { rev: revision } };
    if (opts.include_docs) {
      found.doc = document;
      const conflicts = opts.conflicts ? collectConflicts(metadata(id, branches)) : [];
      if (conflicts.length) found.doc._conflicts = conflicts;
    }
    return found;
  }

  /** The row of one key, which may be a deleted document if that was asked for. */
  async function single(opts) {
    const { branches, document } = await call('get', { id: opts.key });
    if (!document || (document._deleted && opts.deleted !== 'ok')) return [];
    if (document._deleted) {
      return [{ id: opts.key, key: opts.key, value: { rev: document._rev, deleted: true }, doc: null }];
    }
    return [row({ id: opts.key, revision: document._rev, branches, document }, opts)];
  }

  async function list(opts) {
    const { key, startkey: start, endkey: end, limit, skip = 0, descending, inclusive_end: includesEnd } = opts;
    const isEmpty = limit === 0 || (start !== undefined && end !== undefined && (descending ? start < end : start > end));
    const { total, rows } = await call('list', {
      start,
      end,
      excludesEnd: includesEnd === false,
      descending: Boolean(descending),
      documents: Boolean(opts.include_docs),
      conflicts: Boolean(opts.include_docs && opts.conflicts),
      skip,
      limit: isEmpty || key !== undefined ? 0 : limit,
    });
    let found = rows.map((listed) => row(listed, opts));
    if (key !== undefined && limit !== 0) found = (await single(opts)).slice(skip);
    if (opts.include_docs && opts.attachments) {
      for (const { doc } of found) if (doc) await withContents(doc, opts);
    }
    const result = { total_rows: total, offset: opts.skip, rows: found };
    if (opts.update_seq) result.update_seq = (await info()).sequence;
    return result;
  }

  api._allDocs = (opts, callback) => {
    answer('keys' in opts ? allDocsKeysQuery(api, opts) : list(opts), callback);
  };

  /** Reads changes after `since`, and passes those that the filter lets through to `take`, which says whether to go on. */
  async function changesAfter(opts, filter, take) {
    const ids = opts.doc_ids;
    let since = opts.descending ? 0 : opts.since;
    for (;;) {
      const limit = opts.descending ? undefined : CHANGES_COUNT;
      const { last, rows } = await call('changes', { since, limit, ids, descending: Boolean(opts.descending) });
      for (const { sequence, branches, document } of rows) {
        if (opts.cancelled) return sequence;
        since = opts.descending ? since : sequence;
        const change = opts.processChange(document, metadata(document._id, branches), opts);
        change.seq = sequence;
        const passes = filter(change);
        if (typeof passes === 'object') throw passes;
        if (!passes) continue;
        if (opts.include_docs && opts.attachments) await withContents(change.doc, opts);
        if (!take(change)) return sequence;
      }
      if (opts.descending || rows.length < CHANGES_COUNT) return Math.max(since, last);
    }
  }

  async function finite(opts) {
    const results = [];
    let count = 0;
    const last = await changesAfter(opts, filterChange(opts), (change) => {
      count++;
      if (opts.return_docs) results.push(change);
      opts.onChange(change);
      return !(opts.limit > 0 && count >= opts.limit);
    });
    return { results, last_seq: last };
  }

  /** Passes on changes until it is cancelled or has as many as it may. */
  async function continuous(opts) {
    const database = await (await opened).database;
    const results = [];
    let count = 0;
    const take = (change) => {
      count++;
      if (opts.return_docs) results.push(change);
      opts.onChange(change);
      return !(opts.limit > 0 && count >= opts.limit);
    };
    // It only wakes: what is new is read with branches and documents.
    const feed = database.changes({ since: opts.since });
    opts.wake = () => feed.return();
    const filter = filterChange(opts);
    while (!opts.cancelled) {
      opts.since = await changesAfter(opts, filter, take);
      if (opts.cancelled || (opts.limit > 0 && count >= opts.limit)) break;
      let next;
      do {
        next = await feed.next();
      } while (!next.done && next.value.sequence <= opts.since);
      if (next.done) break;
    }
    await feed.return();
    return { results, last_seq: opts.since };
  }

  api._changes = (given) => {
    const opts = clone(given);
    const run = opts.continuous ? continuous(opts) : finite(opts);
    run.then(
      (result) => opts.cancelled || opts.complete(null, result),
      (error) => opts.cancelled || (error.code === 'Closed' && opts.continuous) || opts.complete(pouchError(error)),
    );
    return {
      cancel() {
        opts.cancelled = true;
        opts.wake?.();
      },
    };
  };

  async function tree(id) {
    const { branches } = await call('get', { id });
    if (branches.length === 0) throw errors.createError(errors.MISSING_DOC);
    return revisionTree(branches);
  }

  api._getRevisionTree = (id, callback) => answer(tree(id), callback);

  // Stemma decides itself when it removes replaced revisions: `compact` removes all of them at once.
  api._doCompaction = (id, revisions, callback) => process.nextTick(callback);
  api._compact = (opts, callback) => {
    const compacted = opened.then(async ({ database }) => (await database).compact());
    answer(compacted.then(() => ({ ok: true })), callback);
  };

  const generation = (rev) => (rev ? Number(rev.split('-')[1]) : 0);

  async function getLocal(id) {
    const found = await call('localGet', { id });
    if (!found) throw errors.createError(errors.MISSING_DOC);
    return { ...found.body, _id: id, _rev: `0-${found.generation}` };
  }

  async function putLocal({ _id: id, _rev: rev, _revisions, ...body }) {
    const written = await call('localPut', { id, expected: generation(rev), body });
    return { ok: true, id, rev: `0-${written}` };
  }

  async function removeLocal({ _id: id, _rev: rev }) {
    await call('localDelete', { id, expected: generation(rev) });
    return { ok: true, id, rev: '0-0' };
  }

  const local = (work) => (document, opts, callback) => answer(work(document), callback ?? opts);
  api._getLocal = (id, callback) => answer(getLocal(id), callback);
  api._putLocal = local(putLocal);
  api._removeLocal = local(removeLocal);

  api._close = (callback) => answer(opened.then(release), callback);
  api._destroy = (opts, callback) => answer(opened.then(destroy).then(() => ({ ok: true })), callback);

  answer(opened.then(() => api), ready);
}

StemmaPouch.valid = () => true;
StemmaPouch.use_prefix = false;

module.exports = { StemmaPouch };
