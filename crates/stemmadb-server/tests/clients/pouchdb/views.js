// Map and reduce, filters and validations through PouchDB: compares contents, and queries every view in a local
// database too.
'use strict';

const assert = require('node:assert/strict');
const { test } = require('node:test');

const books = [
  { _id: 'solaris', author: 'Lem', year: 1961, sold: 5, tags: ['sea', 'moon'] },
  { _id: 'fiasco', author: 'Lem', year: 1986, sold: 2, tags: ['mind'] },
  { _id: 'picnic', author: 'Strugatsky', year: 1972, sold: 9, tags: ['zone'] },
  { _id: 'roadside', author: 'Zamyatin', year: 1920, sold: 1, tags: [], original: { _id: 'picnic' } },
  { _id: 'nobody', title: 'without author' },
];

const design = {
  _id: '_design/books',
  views: {
    lib: { names: 'exports.initial = function (name) { return name.charAt(0); };' },
    by_author: { map: 'function (doc) { if (doc.author) { emit([doc.author, doc.year], doc.sold); } }', reduce: '_sum' },
    by_tag: { map: 'function (doc) { (doc.tags || []).forEach(function (tag) { emit(tag); }); };', reduce: '_count' },
    stats: { map: 'function (doc) { if (doc.sold) emit(doc.year, doc.sold); }', reduce: '_stats' },
    longest: {
      map: 'function (doc) { if (doc.author) emit(doc.year, doc._id); }',
      reduce: 'function (keys, values, rereduce) { return values.reduce(function (a, b) { return a.length >= b.length ? a : b; }); }',
    },
    links: { map: 'function (doc) { if (doc.original) emit(doc._id, { _id: doc.original._id }); }' },
    mixed: { map: 'function (doc) { [null, true, 1, "a", "b", "c", ["a"], { a: 1 }].forEach(function (key) { if (doc._id === "fiasco") emit(key); }); }' },
  },
  filters: { lem: 'function (doc, req) { return doc.author === req.query.author; }' },
};

const bare = (answer) => answer.rows.map(({ id, key, value }) => ({ ...(id === undefined ? {} : { id }), key, value }));

module.exports = ({ remote, local }) => {
  async function both() {
    const pair = [remote(), local()];
    for (const db of pair) {
      await db.bulkDocs(books);
      await db.put({ ...design });
    }
    return pair;
  }

  test('views: rows and reductions are those of a local database', async () => {
    const [far, near] = await both();
    const questions = [
      ['by_author', { reduce: false }], ['by_author', {}], ['by_author', { group: true }], ['by_author', { group_level: 1 }],
      ['by_author', { reduce: false, startkey: ['Lem'], endkey: ['Lem', {}] }], ['by_author', { reduce: false, descending: true, limit: 2, skip: 1 }],
      ['by_author', { reduce: false, startkey: ['Lem', 1961], endkey: ['Lem', 1986], inclusive_end: false }],
      ['by_author', { startkey: ['Strugatsky'], endkey: ['Strugatsky', {}] }], ['by_author', { group: true, keys: [['Lem', 1986], ['Lem', 1961]] }],
      ['by_tag', { reduce: false, key: 'mind' }], ['by_tag', { group: true }], ['by_tag', { reduce: false, keys: ['zone', 'nothing', 'sea'] }],
      ['stats', {}], ['stats', { group: true }], ['longest', {}], ['longest', { group: true }], ['mixed', {}], ['mixed', { startkey: 1, endkey: 'b' }],
    ];
    for (const [view, options] of questions) {
      const [there, here] = await Promise.all([far, near].map((db) => db.query(`books/${view}`, options)));
      assert.deepEqual(bare(there), bare(here), `${view} ${JSON.stringify(options)}`);
      assert.equal(there.total_rows, here.total_rows);
    }
  });

  test('views: strings are in CouchDB order, unlike in a local PouchDB', async () => {
    const far = remote();
    await far.bulkDocs(['b', 'A', 'a', 'B', 'á', '_', '-', '1'].map((key, at) => ({ _id: `d${at}`, key })));
    await far.put({ _id: '_design/order', views: { keys: { map: 'function (doc) { emit(doc.key); }' } } });
    const rows = (await far.query('order/keys')).rows;
    assert.deepEqual(rows.map((row) => row.key), ['_', '-', '1', 'a', 'A', 'á', 'b', 'B']);
  });

  test('views: documents and linked documents are included', async () => {
    const [far] = await both();
    const linked = await far.query('books/links', { include_docs: true });
    assert.deepEqual(linked.rows.map((row) => [row.id, row.doc._id, row.doc.sold]), [['roadside', 'picnic', 9]]);
    const own = await far.query('books/by_tag', { reduce: false, key: 'sea', include_docs: true });
    assert.deepEqual(own.rows.map((row) => row.doc.author), ['Lem']);
  });

  test('views: changes are followed, and errors are reported', async () => {
    const [far] = await both();
    const sold = async () => (await far.query('books/by_author')).rows[0].value;
    assert.equal(await sold(), 17);
    await far.put({ ...(await far.get('fiasco')), sold: 12 });
    await far.remove(await far.get('picnic'));
    assert.equal(await sold(), 18);
    await assert.rejects(far.query('books/nothing'), { status: 404 });
    await assert.rejects(far.query('nothing/nothing'), { status: 404 });
    await assert.rejects(far.query('books/by_tag', { reduce: false, startkey: 'b', endkey: 'a' }), { name: 'query_parse_error' });
    await far.put({ _id: '_design/bad', views: { sum: { map: 'function (doc) { emit(1, "text"); }', reduce: '_sum' } } });
    // PouchDB turns the row with the error into an exception.
    await assert.rejects(far.query('bad/sum'));
    assert.equal((await far.query('bad/sum', { reduce: false })).rows.length, 4);
    await far.viewCleanup();
    assert.equal(await sold(), 18);
  });

  test('filters: replication and the feed through a function of a design document', async () => {
    const [far] = await both();
    const target = local();
    await target.replicate.from(far, { filter: 'books/lem', query_params: { author: 'Lem' } });
    assert.deepEqual((await target.allDocs()).rows.map((row) => row.id), ['fiasco', 'solaris']);
    const seen = await far.changes({ filter: '_view', view: 'books/links' });
    assert.deepEqual(seen.results.map((row) => row.id), ['roadside']);
  });

  test('validations: a document that a design document refuses is not written, by put or by push', async () => {
    const [far, near] = [remote(), local()];
    await far.put({ _id: '_design/guard', validate_doc_update: 'function (doc, old, user) { if (!doc.title) throw({ forbidden: "a title is needed" }); }' });
    await assert.rejects(far.put({ _id: 'a' }), { status: 403, reason: 'a title is needed' });
    await near.bulkDocs([{ _id: 'good', title: 'x' }, { _id: 'bad' }]);
    const pushed = await near.replicate.to(far);
    assert.equal(pushed.doc_write_failures, 1);
    assert.deepEqual((await far.allDocs({ startkey: 'a' })).rows.map((row) => row.id), ['good']);
  });
};
