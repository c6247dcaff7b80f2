// Tests PouchDB with a virtual database of a Stemma server: it looks like one database, also while its shards split.
//
// STEMMA_URL: the server, with credentials. SUITE_DIR: directory for local databases.
'use strict';

const assert = require('node:assert/strict');
const crypto = require('node:crypto');
const path = require('node:path');
const { test, after } = require('node:test');
const { isDeepStrictEqual } = require('node:util');
const PouchDB = require('pouchdb');
PouchDB.plugin(require('pouchdb-find'));

const server = process.env.STEMMA_URL;
const Local = PouchDB.defaults({ prefix: process.env.SUITE_DIR + path.sep });
let made = 0;
const opened = [];

async function request(method, url, body) {
  const { origin, username, password } = new URL(server);
  const headers = {
    authorization: 'Basic ' + Buffer.from(`${username}:${password}`).toString('base64'),
    'content-type': 'application/json',
  };
  const response = await fetch(origin + url, { method, headers, body: body && JSON.stringify(body) });
  return { status: response.status, body: await response.json() };
}

async function remote(shards = 3) {
  const name = `virtual_${process.pid}_${made++}`;
  assert.equal((await request('PUT', `/${name}?shards=${shards}`)).status, 201);
  const db = new PouchDB(`${server}/${name}`);
  opened.push(db);
  return Object.assign(db, { path: `/${name}` });
}

function local() {
  const db = new Local(`local_${process.pid}_${made++}`);
  opened.push(db);
  return db;
}

after(async () => {
  for (const db of opened) await db.destroy().catch(() => {});
});

async function until(what, condition) {
  const deadline = Date.now() + 60000;
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
  return Array.from({ length: count }, (_, n) => ({ _id: `doc-${String(n).padStart(4, '0')}`, n, text: `größe ${n}` }));
}

async function split(db, shard) {
  const started = await request('POST', `${db.path}/_shards`, { split: shard });
  assert.equal(started.status, 202, JSON.stringify(started.body));
}

async function untilMoved(db) {
  await until('the move ends', async () => (await request('GET', `${db.path}/_shards`)).body.move === null);
}

test('documents are written, read, listed and found', async () => {
  const db = await remote();
  const info = await db.info();
  assert.deepEqual([info.doc_count, info.db_name], [0, db.path.slice(1)]);
  for (const id of ['plain', 'with space', 'a/b', 'ü%20?&=+#', '日本', '_design/x']) {
    const first = await db.put({ _id: id, n: 1 });
    await db.put({ _id: id, _rev: first.rev, n: 2 });
    await assert.rejects(db.put({ _id: id, _rev: first.rev, n: 3 }), { status: 409, name: 'conflict' });
    await db.remove(await db.get(id));
    await assert.rejects(db.get(id), { status: 404, reason: 'deleted' });
  }
  const { id } = await db.post({ made: 'up' });
  await db.remove(await db.get(id));
  await db.bulkDocs(documents(50));
  const ids = async (options = {}) => (await db.allDocs(options)).rows.map((row) => row.id);
  assert.deepEqual(await ids(), documents(50).map((doc) => doc._id));
  assert.deepEqual(await ids({ startkey: 'doc-0003', descending: true, limit: 2 }), ['doc-0003', 'doc-0002']);
  const keys = await db.allDocs({ keys: ['doc-0002', 'nothing', 'doc-0001'], include_docs: true });
  assert.deepEqual(keys.rows.map((row) => row.error || row.doc.n), [2, 'not_found', 1]);
  const found = await db.find({ selector: { n: { $gt: 10 } }, sort: ['n'], fields: ['n'], limit: 3 });
  assert.deepEqual(found.docs, [{ n: 11 }, { n: 12 }, { n: 13 }]);
});

test('files are stored, and follow their documents to other shards', async () => {
  const db = await remote();
  const bytes = crypto.randomBytes(150000);
  for (let n = 0; n < 12; n++) await db.putAttachment(`d${n}`, 'f.bin', bytes, 'application/octet-stream');
  await split(db, 'shard-1');
  await untilMoved(db);
  for (let n = 0; n < 12; n++) assert.ok((await db.getAttachment(`d${n}`, 'f.bin')).equals(bytes));
});

test('pushes and pulls transfer everything once, also while shards split', async () => {
  const there = await remote();
  const here = local();
  await here.bulkDocs(documents(230));
  await here.remove(await here.get('doc-0007'));
  const first = await here.replicate.to(there);
  assert.deepEqual([first.ok, first.docs_written, first.doc_write_failures], [true, 230, 0]);
  assert.deepEqual(await contents(there), await contents(here));
  assert.equal((await here.replicate.to(there)).docs_written, 0);
  await split(there, 'shard-1');
  const copy = local();
  await copy.replicate.from(there);
  await untilMoved(there);
  await there.put({ _id: 'late', n: 1 });
  const doc = await there.get('doc-0003');
  await there.put({ ...doc, n: 'changed' });
  await copy.replicate.from(there);
  assert.deepEqual(await contents(copy), await contents(there));
  await assert.rejects(copy.get('doc-0007'), { status: 404 });
  assert.equal((await copy.replicate.from(there)).docs_written, 0);
});

test('two clients that sync live with it agree, with conflicts, while its shards split', async () => {
  const there = await remote(1);
  const [one, two] = [local(), local()];
  await one.put({ _id: 'same', by: 'one' });
  await two.put({ _id: 'same', by: 'two' });
  const syncs = [one, two].map((db) => db.sync(there, { live: true, retry: true, conflicts: true }));
  for (let n = 0; n < 60; n++) {
    await (n % 2 ? one : two).put({ _id: `live-${n}`, n });
    if (n === 20) await split(there, 'shard-1');
  }
  await untilMoved(there);
  await until('all agree', async () => {
    const expected = await contents(there);
    const same = async (db) => isDeepStrictEqual(await contents(db), expected);
    return (await there.info()).doc_count === 61 && (await same(one)) && (await same(two));
  });
  const conflicted = await there.get('same', { conflicts: true });
  assert.equal(conflicted._conflicts.length, 1);
  for (const sync of syncs) sync.cancel();
});

test('changes are followed', async () => {
  const db = await remote();
  await db.bulkDocs(documents(20));
  const all = await db.changes({ include_docs: true });
  assert.deepEqual(all.results.map((row) => row.doc.n).sort((a, b) => a - b), documents(20).map((doc) => doc.n));
  const followed = [];
  const feed = db.changes({ since: all.last_seq, live: true }).on('change', (row) => followed.push(row.id));
  await db.put({ _id: 'late' });
  await until('the change arrives', () => followed.includes('late'));
  feed.cancel();
  assert.deepEqual((await db.changes({ doc_ids: ['doc-0003'] })).results.map((row) => row.id), ['doc-0003']);
});
