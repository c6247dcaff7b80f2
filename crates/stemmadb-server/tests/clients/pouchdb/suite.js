// Tests PouchDB with a Stemma server: compares contents, not only the success of calls.
//
// STEMMA_URL: the server, with credentials. SUITE_DIR: directory for local databases.
'use strict';

const assert = require('node:assert/strict');
const crypto = require('node:crypto');
const path = require('node:path');
const { test, after } = require('node:test');
const PouchDB = require('pouchdb');
PouchDB.plugin(require('pouchdb-find'));

const server = process.env.STEMMA_URL;
const Local = PouchDB.defaults({ prefix: process.env.SUITE_DIR + path.sep });
let made = 0;
const opened = [];

function remote() {
  const db = new PouchDB(`${server}/pouch_${process.pid}_${made++}`);
  opened.push(db);
  return db;
}

function local() {
  const db = new Local(`local_${process.pid}_${made++}`);
  opened.push(db);
  return db;
}

after(async () => {
  for (const db of opened) await db.destroy().catch(() => {});
});

// Waits for a condition, not for a fixed time: checks it after each change of `db`, and periodically.
async function until(what, condition) {
  const deadline = Date.now() + 30000;
  for (;;) {
    if (await condition()) return;
    assert.ok(Date.now() < deadline, `waited in vain: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
}

async function contents(db) {
  const all = await db.allDocs({ include_docs: true, conflicts: true });
  return all.rows.map((row) => row.doc);
}

function documents(count) {
  return Array.from({ length: count }, (_, n) => ({
    _id: `doc-${String(n).padStart(4, '0')}`, n, text: `größe ${n} 日本 "q" \\ \n`, tags: ['a', { b: [n, null, 1.5] }], even: n % 2 === 0,
  }));
}

test('the server is accepted as CouchDB, and a database is created on first use', async () => {
  const db = remote();
  const info = await db.info();
  assert.equal(info.doc_count, 0);
  assert.equal(info.db_name, db.name.split('/').pop());
  assert.equal((await db.id()).length > 10, true);
});

test('documents are written, read, changed and deleted', async () => {
  const db = remote();
  const ids = ['plain', 'with space', 'a/b', 'ü%20?&=+#', '日本', '_design/x'];
  for (const id of ids) {
    const first = await db.put({ _id: id, n: 1, nested: { deep: [1, 2, { x: null }] } });
    const read = await db.get(id);
    assert.deepEqual(read, { _id: id, _rev: first.rev, n: 1, nested: { deep: [1, 2, { x: null }] } });
    const second = await db.put({ ...read, n: 2 });
    await assert.rejects(db.put({ ...read, n: 3 }), { status: 409, name: 'conflict' });
    const info = await db.get(id, { revs: true, revs_info: true });
    assert.deepEqual(info._revisions.ids.map((hash, at) => `${2 - at}-${hash}`), [second.rev, first.rev]);
    assert.equal(info._revs_info[0].status, 'available');
    await db.remove(id, second.rev);
    await assert.rejects(db.get(id), { status: 404, reason: 'deleted' });
  }
  await assert.rejects(db.get('never'), { status: 404, reason: 'missing' });
  await assert.rejects(db.put({ _id: '_underscore' }), { status: 400 });
  const { id } = await db.post({ made: 'up' });
  assert.equal((await db.get(id)).made, 'up');
});

test('documents are listed in order, by ranges, keys and pages', async () => {
  const db = remote();
  await db.bulkDocs(documents(50));
  const all = await db.allDocs();
  assert.equal(all.total_rows, 50);
  assert.deepEqual(all.rows.map((row) => row.id), documents(50).map((doc) => doc._id));
  const range = { startkey: 'doc-0010', endkey: 'doc-0014' };
  const ids = async (options) => (await db.allDocs(options)).rows.map((row) => row.id);
  assert.deepEqual(await ids(range), ['doc-0010', 'doc-0011', 'doc-0012', 'doc-0013', 'doc-0014']);
  assert.deepEqual(await ids({ ...range, inclusive_end: false, limit: 2, skip: 1 }), ['doc-0011', 'doc-0012']);
  assert.deepEqual(await ids({ startkey: 'doc-0003', descending: true, limit: 2 }), ['doc-0003', 'doc-0002']);
  const keys = await db.allDocs({ keys: ['doc-0002', 'nothing', 'doc-0001'], include_docs: true });
  assert.deepEqual(keys.rows.map((row) => row.error || row.doc.n), [2, 'not_found', 1]);
  assert.deepEqual((await contents(db)).map(({ _rev, ...doc }) => doc), documents(50));
});

test('a push transfers everything, and a second one nothing', async () => {
  const here = local();
  const there = remote();
  await here.bulkDocs(documents(230));
  await here.remove(await here.get('doc-0007'));
  const first = await here.replicate.to(there);
  assert.deepEqual([first.ok, first.docs_written, first.doc_write_failures], [true, 231 - 1, 0]);
  assert.deepEqual(await contents(there), await contents(here));
  await assert.rejects(there.get('doc-0007'), { status: 404, reason: 'deleted' });
  await here.put({ _id: 'late', n: 1 });
  const second = await here.replicate.to(there);
  assert.equal(second.docs_written, 1);
  const third = await here.replicate.to(there);
  assert.equal(third.docs_written, 0);
});

test('a pull transfers everything, including the revision trees', async () => {
  const there = remote();
  const here = local();
  await there.bulkDocs(documents(230));
  const doc = await there.get('doc-0003');
  await there.put({ ...doc, changed: true });
  await there.remove(await there.get('doc-0004'));
  const first = await here.replicate.from(there);
  assert.deepEqual([first.docs_written, first.doc_write_failures], [230, 0]);
  assert.deepEqual(await contents(here), await contents(there));
  const [ours, theirs] = await Promise.all([here, there].map((db) => db.get('doc-0003', { revs: true })));
  assert.deepEqual(ours, theirs);
  assert.equal((await here.replicate.from(there)).docs_read, 0);
});

test('two devices synchronize continuously through the server', async () => {
  const there = remote();
  const [one, two] = [local(), local()];
  const syncs = [one, two].map((db) => db.sync(there, { live: true, retry: true }));
  try {
    await one.bulkDocs(documents(20));
    await two.put({ _id: 'from two', n: 2 });
    await until('both have all', async () => (await one.info()).doc_count === 21 && (await two.info()).doc_count === 21);
    const doc = await two.get('doc-0001');
    await two.put({ ...doc, edited: 'by two' });
    await one.remove(await one.get('doc-0002'));
    await until('edits cross', async () => {
      const edited = await one.get('doc-0001');
      const gone = await two.get('doc-0002').then(() => false, () => true);
      return edited.edited === 'by two' && gone;
    });
    await until('all agree', async () => JSON.stringify(await contents(one)) === JSON.stringify(await contents(two)));
    assert.deepEqual(await contents(there), await contents(one));
  } finally {
    for (const sync of syncs) {
      const done = new Promise((resolve) => sync.on('complete', resolve));
      sync.cancel();
      await done;
    }
  }
});

test('conflicts are kept, have the same winner everywhere, and are resolved', async () => {
  const there = remote();
  const [one, two] = [local(), local()];
  const first = await one.put({ _id: 'plan', text: 'first' });
  await one.replicate.to(there);
  await two.replicate.from(there);
  await one.put({ _id: 'plan', _rev: first.rev, text: 'of one' });
  await two.put({ _id: 'plan', _rev: first.rev, text: 'of two' });
  await one.sync(there);
  await two.sync(there);
  await one.sync(there);
  const all = await Promise.all([one, two, there].map((db) => db.get('plan', { conflicts: true })));
  assert.deepEqual(all[0], all[1]);
  assert.deepEqual(all[0], all[2]);
  assert.equal(all[0]._conflicts.length, 1);
  const loser = await there.get('plan', { rev: all[0]._conflicts[0] });
  assert.deepEqual([all[0].text, loser.text].sort(), ['of one', 'of two']);
  const leaves = await there.get('plan', { open_revs: 'all' });
  assert.deepEqual(leaves.map((leaf) => leaf.ok._rev).sort(), [all[0]._rev, loser._rev].sort());
  await there.remove('plan', loser._rev);
  await two.sync(there);
  assert.equal((await two.get('plan', { conflicts: true }))._conflicts, undefined);
  assert.equal((await two.get('plan')).text, all[0].text);
});

test('attachments with any name and content replicate both ways', async () => {
  const there = remote();
  const [one, two] = [local(), local()];
  const large = crypto.randomBytes(1500000);
  const names = { 'text.txt': Buffer.from('an ocean'), 'a/b ü%.bin': large, empty: Buffer.alloc(0) };
  let rev = (await one.put({ _id: 'with files', n: 1 })).rev;
  for (const [name, content] of Object.entries(names)) {
    rev = (await one.putAttachment('with files', name, rev, content, 'application/octet-stream')).rev;
  }
  await one.replicate.to(there);
  for (const [name, content] of Object.entries(names)) {
    assert.ok((await there.getAttachment('with files', name)).equals(content), name);
  }
  // A change of the body alone does not change the files.
  await there.put({ ...(await there.get('with files')), n: 2 });
  await two.replicate.from(there);
  const doc = await two.get('with files', { attachments: true, binary: true });
  assert.equal(doc.n, 2);
  for (const [name, content] of Object.entries(names)) {
    assert.ok(doc._attachments[name].data.equals(content), name);
    assert.equal(doc._attachments[name].digest, 'md5-' + crypto.createHash('md5').update(content).digest('base64'));
  }
  await there.putAttachment('with files', 'own', (await there.get('with files'))._rev, Buffer.from('there'), 'text/plain');
  const stubs = (await there.get('with files'))._attachments;
  assert.deepEqual(Object.keys(stubs).sort(), [...Object.keys(names), 'own'].sort());
  assert.equal(stubs.own.digest, 'md5-' + crypto.createHash('md5').update('there').digest('base64'));
  await there.removeAttachment('with files', 'empty', (await there.get('with files'))._rev);
  await assert.rejects(there.getAttachment('with files', 'empty'), { status: 404 });
  const inline = await there.get('with files', { attachments: true });
  assert.equal(Buffer.from(inline._attachments['text.txt'].data, 'base64').toString(), 'an ocean');
});

test('replication is filtered by ids and by selectors', async () => {
  const there = remote();
  await there.bulkDocs(documents(60));
  const byIds = local();
  await byIds.replicate.from(there, { doc_ids: ['doc-0001', 'doc-0059', 'nothing'] });
  assert.deepEqual((await contents(byIds)).map((doc) => doc.n), [1, 59]);
  const bySelector = local();
  await bySelector.replicate.from(there, { selector: { n: { $gte: 50 }, even: true } });
  assert.deepEqual((await contents(bySelector)).map((doc) => doc.n), [50, 52, 54, 56, 58]);
});

test('the changes feed starts at any sequence and waits for more', async () => {
  const db = remote();
  await db.bulkDocs(documents(30));
  const all = await db.changes();
  assert.deepEqual(all.results.map((row) => row.id), documents(30).map((doc) => doc._id));
  const some = await db.changes({ limit: 10 });
  assert.equal(some.results.length, 10);
  const rest = await db.changes({ since: some.last_seq, include_docs: true });
  assert.deepEqual(rest.results.map((row) => row.doc.n), documents(30).slice(10).map((doc) => doc.n));
  const back = await db.changes({ descending: true, limit: 2 });
  assert.deepEqual(back.results.map((row) => row.id), ['doc-0029', 'doc-0028']);
  const seen = [];
  const since = (await db.info()).update_seq;
  const live = db.changes({ since, live: true, include_docs: true }).on('change', (row) => seen.push(row.doc.n));
  await db.put({ _id: 'later', n: 100 });
  await until('the first comes', () => seen.includes(100));
  await db.put({ _id: 'later still', n: 101 });
  await until('the second comes', () => seen.includes(101));
  const done = new Promise((resolve) => live.on('complete', resolve));
  live.cancel();
  await done;
  assert.deepEqual(seen, [100, 101]);
});

test('revisions are compared and read in bulk', async () => {
  const db = remote();
  const first = await db.put({ _id: 'a', n: 1 });
  const second = await db.put({ _id: 'a', _rev: first.rev, n: 2 });
  const difference = await db.revsDiff({ a: [first.rev, second.rev, '3-' + 'c'.repeat(32)], b: ['1-' + 'd'.repeat(32)] });
  assert.deepEqual(difference.a.missing, ['3-' + 'c'.repeat(32)]);
  assert.deepEqual(difference.b.missing, ['1-' + 'd'.repeat(32)]);
  const got = await db.bulkGet({ docs: [{ id: 'a', rev: second.rev }, { id: 'zz' }, { id: 'a' }], revs: true });
  assert.deepEqual(got.results.map((row) => row.id), ['a', 'zz', 'a']);
  assert.equal(got.results[0].docs[0].ok._revisions.ids.length, 2);
  assert.equal(got.results[1].docs[0].error.error, 'not_found');
  assert.equal(got.results[2].docs[0].ok.n, 2);
  const bulk = await db.bulkDocs([{ _id: 'a', n: 9 }, { _id: 'new', n: 1 }, { _id: 'a', _rev: second.rev, n: 3 }]);
  assert.deepEqual(bulk.map((row) => row.error || row.ok), ['conflict', true, true]);
  await db.bulkDocs([{ _id: 'a', _rev: '4-' + 'e'.repeat(32), n: 4, _revisions: { start: 4, ids: ['e'.repeat(32), bulk[2].rev.slice(2)] } }], { new_edits: false });
  assert.equal((await db.get('a')).n, 4);
});

test('local documents are not replicated', async () => {
  const db = remote();
  const id = '_local/check.point=/%2F';
  await db.put({ _id: id, seq: 1 });
  const read = await db.get(id);
  assert.equal(read.seq, 1);
  await db.put({ ...read, seq: 2 });
  assert.equal((await db.get(id)).seq, 2);
  assert.equal((await db.info()).doc_count, 0);
  assert.equal((await db.changes()).results.length, 0);
  await db.remove(await db.get(id));
  await assert.rejects(db.get(id), { status: 404 });
});

test('compaction and clean-up are accepted, and lose nothing', async () => {
  const db = remote();
  await db.bulkDocs(documents(40));
  await db.compact();
  await db.viewCleanup();
  assert.equal((await contents(db)).length, 40);
});

test('a database is destroyed and recreated empty', async () => {
  const db = remote();
  await db.put({ _id: 'a' });
  const name = db.name;
  await db.destroy();
  const again = new PouchDB(name);
  opened.push(again);
  assert.equal((await again.info()).doc_count, 0);
});

test('Mango: indexes, queries, pages, explanations', async () => {
  const db = remote();
  await db.bulkDocs(documents(60));
  assert.equal((await db.createIndex({ index: { fields: ['n'] } })).result, 'created');
  assert.equal((await db.createIndex({ index: { fields: ['n'] } })).result, 'exists');
  const made = await db.createIndex({ index: { fields: ['even', 'n'], ddoc: 'mine', name: 'both' } });
  assert.deepEqual([made.id, made.name, made.result], ['_design/mine', 'both', 'created']);
  const { indexes, total_rows } = await db.getIndexes();
  assert.deepEqual(indexes[0], { ddoc: null, name: '_all_docs', type: 'special', def: { fields: [{ _id: 'asc' }] } });
  assert.equal(total_rows, 3);
  assert.deepEqual(indexes.find((index) => index.name === 'both').def.fields, [{ even: 'asc' }, { n: 'asc' }]);
  const found = await db.find({ selector: { n: { $gte: 55 } }, sort: ['n'], fields: ['_id', 'n'] });
  assert.deepEqual(found.docs, [55, 56, 57, 58, 59].map((n) => ({ _id: `doc-00${n}`, n })));
  assert.equal(found.warning, undefined);
  const down = await db.find({ selector: { n: { $lt: 50 } }, sort: [{ n: 'desc' }], limit: 3, skip: 1 });
  assert.deepEqual(down.docs.map((doc) => doc.n), [48, 47, 46]);
  const or = await db.find({ selector: { $or: [{ n: 3 }, { 'tags.1.b.0': 5 }], even: false }, sort: ['n'] });
  assert.deepEqual(or.docs.map((doc) => doc.n), [3, 5]);
  const pages = [];
  let bookmark;
  for (;;) {
    const page = await db.find({ selector: { even: true, n: { $gt: 10 } }, sort: ['even', 'n'], limit: 7, bookmark, use_index: ['mine', 'both'] });
    if (page.docs.length === 0) break;
    pages.push(...page.docs.map((doc) => doc.n));
    bookmark = page.bookmark;
  }
  assert.deepEqual(pages, Array.from({ length: 24 }, (_, at) => 12 + 2 * at));
  const explained = await db.explain({ selector: { n: 5 } });
  assert.deepEqual([explained.dbname, explained.selector], [db.name.split('/').pop(), { n: { $eq: 5 } }]);
  assert.ok(explained.index.def.fields.length > 0);
  const stats = await db.find({ selector: { n: 5 }, execution_stats: true });
  assert.equal(stats.execution_stats.results_returned, 1);
  await db.deleteIndex({ ddoc: '_design/mine', name: 'both', type: 'json' });
  assert.equal((await db.getIndexes()).total_rows, 2);
  await assert.rejects(db.find({ selector: { n: { $nonsense: 1 } } }), { status: 400 });
});

test('a user whom an access rule restricts synchronizes the documents that the rule shows', async () => {
  const there = remote();
  const user = (name) => ({ name, type: 'user', roles: name === 'ada' ? ['sales'] : [], password: `${name}-password` });
  const users = new PouchDB(`${server}/_users`);
  for (const name of ['ada', 'bob']) await users.put({ _id: `org.couchdb.user:${name}`, ...user(name) });
  await there.bulkDocs([
    { _id: 'hers', owner: 'ada' }, { _id: 'his', owner: 'bob' }, { _id: 'for sales', owner: 'bob', team: 'sales' },
  ]);
  const rule = { $or: [{ owner: { $user: 'name' } }, { team: { $in: { $user: 'roles' } } }] };
  const security = { members: { names: ['ada', 'bob'], roles: [] }, access_rule: { selector: rule } };
  const headers = new Headers({ 'Content-Type': 'application/json' });
  assert.ok((await there.fetch('_security', { method: 'PUT', headers, body: JSON.stringify(security) })).ok);
  const as = (name) => {
    const url = new URL(there.name);
    [url.username, url.password] = [name, `${name}-password`];
    return new PouchDB(url.href, { skip_setup: true });
  };
  const ids = async (db) => (await db.allDocs()).rows.map((row) => row.id).sort();
  const [ada, bob] = [local(), local()];
  const syncs = [ada.sync(as('ada'), { live: true, retry: true }), bob.sync(as('bob'), { live: true, retry: true })];
  try {
    await until('each has what the rule shows', async () =>
      JSON.stringify([await ids(ada), await ids(bob)]) === '[["for sales","hers"],["for sales","his"]]');
    // Writes go up; what the rule shows comes down.
    await ada.put({ _id: 'new', owner: 'ada', team: 'sales' });
    await until('the write is on the server', async () => (await ids(there)).includes('new'));
    await there.put({ ...(await there.get('his')), team: 'sales' });
    await until('a document becomes visible', async () => (await ids(ada)).includes('his'));
    // A document that the rule hides leaves the replica, and returns when it is visible again.
    await there.put({ ...(await there.get('for sales')), team: 'support' });
    await until('a document becomes hidden', async () => !(await ids(ada)).includes('for sales'));
    assert.ok((await ids(bob)).includes('for sales'));
    await there.put({ ...(await there.get('for sales')), team: 'sales' });
    await until('it becomes visible again', async () => (await ids(ada)).includes('for sales'));
    await there.remove(await there.get('hers'));
    await until('a deletion arrives', async () => !(await ids(ada)).includes('hers'));
    assert.equal((await ids(there)).includes('his'), true);
  } finally {
    for (const sync of syncs) {
      const done = new Promise((resolve) => sync.on('complete', resolve));
      sync.cancel();
      await done;
    }
  }
  // A document that the rule does not let the user write is refused, and stays on the device.
  await bob.put({ _id: 'foreign', owner: 'ada' });
  const refused = await bob.replicate.to(as('bob'));
  assert.equal(refused.doc_write_failures, 1);
  await assert.rejects(there.get('foreign'), { status: 404 });
});

require('./views.js')({ remote, local });
