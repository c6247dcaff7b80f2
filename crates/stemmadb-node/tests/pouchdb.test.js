// The adapter of PouchDB, also compared with PouchDB's adapter for memory.
'use strict';

const assert = require('node:assert/strict');
const path = require('node:path');
const test = require('node:test');

const { directory, rejection, server } = require('./support.js');

let PouchDB;
try {
  PouchDB = require('pouchdb-core');
  PouchDB.plugin(require('pouchdb-replication'));
  PouchDB.plugin(require('pouchdb-adapter-memory'));
  PouchDB.plugin(require('pouchdb-adapter-http'));
  PouchDB.plugin(require('pouchdb-adapter-stemma'));
} catch (error) {
  if (error.code !== 'MODULE_NOT_FOUND') throw error;
}
const skip = PouchDB ? false : 'PouchDB is not installed';

let count = 0;

function pouch(t, adapter = 'stemma') {
  const db = new PouchDB(`db-${++count}`, { adapter, memory: true });
  t.after(() => db.destroy().catch(() => {}));
  return db;
}

/** The bytes of a Buffer of PouchDB, which has a type. */
const bytes = (buffer) => [...buffer];

const hash = (letter) => letter.repeat(32);

/** A document with two branches and a deleted third one. */
async function branched(db) {
  const write = (ids, fields) =>
    db.bulkDocs(
      [{ _id: 'a', _rev: `${ids.length}-${hash(ids[0])}`, _revisions: { start: ids.length, ids: ids.map(hash) }, ...fields }],
      { new_edits: false },
    );
  await write(['a'], { n: 1 });
  await write(['b', 'a'], { n: 2 });
  await write(['c', 'a'], { n: 3 });
  await write(['d', 'a'], { n: 4 });
  await write(['e', 'd', 'a'], { _deleted: true });
  // Known already: nothing happens.
  await write(['b', 'a'], { n: 2 });
}

test('documents are put, read, changed and removed', { skip }, async (t) => {
  const db = pouch(t);
  const { rev } = await db.put({ _id: 'a', n: 1 });
  assert.match(rev, /^1-[0-9a-f]{32}$/);
  assert.deepEqual(await db.get('a'), { _id: 'a', _rev: rev, n: 1 });
  assert.equal((await rejection(db.put({ _id: 'a', n: 2 }))).status, 409);
  const second = await db.put({ _id: 'a', _rev: rev, n: 2 });
  assert.match(second.rev, /^2-/);
  assert.equal((await rejection(db.put({ _id: 'a', _rev: rev, n: 3 }))).name, 'conflict');
  await db.remove(await db.get('a'));
  const gone = await rejection(db.get('a'));
  assert.deepEqual([gone.status, gone.reason], [404, 'deleted']);
  assert.equal((await rejection(db.get('none'))).reason, 'missing');
  // A deleted document can be written again, without a revision.
  assert.match((await db.put({ _id: 'a', n: 4 })).rev, /^4-/);
  const { id } = await db.post({ n: 5 });
  assert.equal((await db.get(id)).n, 5);
  assert.equal((await rejection(db.put({ _id: '_wrong' }))).status, 400);
  assert.equal((await rejection(db.put({ _id: 'x', _wrong: 1 }))).name, 'doc_validation');
  const info = await db.info();
  assert.deepEqual([info.doc_count, info.adapter], [2, 'stemma']);
});

test('several documents at once, each with its outcome', { skip }, async (t) => {
  const db = pouch(t);
  const first = await db.bulkDocs([{ _id: 'a' }, { _id: 'b' }, { _id: 'c' }]);
  assert.deepEqual(first.map(({ ok, id }) => [ok, id]), [[true, 'a'], [true, 'b'], [true, 'c']]);
  const second = await db.bulkDocs([
    { _id: 'a', n: 1 },
    { _id: 'b', _rev: first[1].rev, n: 2 },
    { _id: 'c', _rev: first[2].rev, _deleted: true },
    { _id: '_local/x', n: 3 },
  ]);
  assert.deepEqual(second.map(({ status, ok, id }) => [status ?? ok, id]), [
    [409, 'a'],
    [true, 'b'],
    [true, 'c'],
    [true, '_local/x'],
  ]);
  const got = await db.bulkGet({ docs: [{ id: 'b' }, { id: 'none' }] });
  assert.deepEqual([got.results[0].docs[0].ok.n, got.results[1].docs[0].error.status], [2, 404]);
});

test('lists are those of the adapter for memory', { skip }, async (t) => {
  const dbs = [pouch(t), pouch(t, 'memory')];
  for (const db of dbs) {
    const docs = ['a', 'b', 'c', 'd', 'é'].map((_id, n) => ({ _id, _rev: `1-${hash('f')}`, n }));
    await db.bulkDocs(docs, { new_edits: false });
    const deletion = { _id: 'd', _rev: `2-${hash('e')}`, _revisions: { start: 2, ids: ['e', 'f'].map(hash) }, _deleted: true };
    await db.bulkDocs([deletion], { new_edits: false });
    await db.bulkDocs([{ _id: 'b', _rev: `1-${hash('0')}`, n: 9 }], { new_edits: false });
  }
  for (const options of [
    {},
    { include_docs: true, conflicts: true },
    { startkey: 'b', endkey: 'c' },
    { startkey: 'b', endkey: 'c', inclusive_end: false },
    { startkey: 'c', endkey: 'a', descending: true, include_docs: true },
    { startkey: 'c', endkey: 'a' },
    { descending: true, limit: 2, skip: 1 },
    { limit: 0 },
    { key: 'a', include_docs: true },
    { key: 'd' },
    { keys: ['c', 'none', 'd', 'a'], include_docs: true },
    { keys: [] },
  ]) {
    const [ours, theirs] = await Promise.all(dbs.map((db) => db.allDocs({ ...options })));
    assert.deepEqual(ours, theirs, JSON.stringify(options));
  }
});

test('branches are those of the adapter for memory', { skip }, async (t) => {
  const dbs = [pouch(t), pouch(t, 'memory')];
  for (const db of dbs) await branched(db);
  const same = async (read) => {
    const [ours, theirs] = await Promise.all(dbs.map(read));
    assert.deepEqual(ours, theirs);
    return ours;
  };
  const sorted = (results) => results.sort((one, other) => (one.ok._rev < other.ok._rev ? -1 : 1));
  assert.deepEqual((await same((db) => db.get('a', { conflicts: true })))._conflicts, [`2-${hash('b')}`]);
  await same((db) => db.get('a', { revs: true }));
  await same((db) => db.get('a', { rev: `2-${hash('b')}`, revs: true }));
  await same((db) => db.get('a', { rev: `2-${hash('d')}`, latest: true }));
  await same(async (db) => sorted(await db.get('a', { open_revs: 'all', revs: true })));
  const some = [`2-${hash('b')}`, `2-${hash('0')}`];
  // PouchDB returns them in the order in which they were read.
  const found = ({ ok, missing }) => JSON.stringify(ok?._rev ?? missing);
  await same(async (db) => (await db.get('a', { open_revs: some })).map(found).sort());
  await same((db) => db.revsDiff({ a: [`2-${hash('b')}`, `3-${hash('0')}`], none: [`1-${hash('0')}`] }));
  await same(async (db) => (await rejection(db.get('a', { rev: `3-${hash('0')}` }))).status);
  // The deleted branch is read, and the winner is replaced.
  await same((db) => db.get('a', { rev: `3-${hash('e')}` }));
  for (const db of dbs) await db.remove('a', `2-${hash('c')}`);
  assert.equal((await same(async (db) => (await db.get('a')).n)), 2);
});

test('replaced revisions can be read until they are removed', { skip }, async (t) => {
  const db = pouch(t);
  const first = await db.put({ _id: 'a', n: 1 });
  const second = await db.put({ _id: 'a', _rev: first.rev, n: 2 });
  assert.equal((await db.get('a', { rev: first.rev })).n, 1);
  const { _revs_info: revisions } = await db.get('a', { revs_info: true });
  assert.deepEqual(revisions.map(({ rev }) => rev), [second.rev, first.rev]);
  assert.equal(revisions[0].status, 'available');
  assert.deepEqual(await db.compact(), { ok: true });
  assert.equal((await db.get('a')).n, 2);
});

test('attachments', { skip }, async (t) => {
  const db = pouch(t);
  const data = Buffer.from([0, 1, 2, 255]);
  await db.put({ _id: 'a', _attachments: { 'a.bin': { content_type: 'application/x', data: data.toString('base64') } } });
  const stub = (await db.get('a'))._attachments['a.bin'];
  const digest = `md5-${require('node:crypto').createHash('md5').update(data).digest('base64')}`;
  assert.deepEqual(stub, { content_type: 'application/x', revpos: 1, digest, length: 4, stub: true });
  const read = await db.getAttachment('a', 'a.bin');
  assert.deepEqual([bytes(read), read.type], [bytes(data), 'application/x']);
  const { rev } = await db.putAttachment('a', 'b.txt', (await db.get('a'))._rev, Buffer.from('text'), 'text/plain');
  const full = await db.get('a', { attachments: true });
  assert.deepEqual([full._attachments['a.bin'].data, full._attachments['b.txt'].revpos], ['AAEC/w==', 2]);
  const binary = await db.get('a', { attachments: true, binary: true });
  assert.equal(binary._attachments['b.txt'].data.toString(), 'text');
  // A stub keeps the file, and what is not named is gone.
  const kept = await db.get('a');
  delete kept._attachments['a.bin'];
  await db.put({ ...kept, n: 1 });
  assert.deepEqual(Object.keys((await db.get('a'))._attachments), ['b.txt']);
  await db.removeAttachment('a', 'b.txt', (await db.get('a'))._rev);
  assert.equal((await rejection(db.getAttachment('a', 'b.txt'))).status, 404);
  assert.equal((await db.getAttachment('a', 'b.txt', { rev })).toString(), 'text');
  assert.notEqual((await rejection(db.put({ _id: 'x', _attachments: { a: { stub: true } } }))).status, undefined);
});

test('changes', { skip }, async (t) => {
  const dbs = [pouch(t), pouch(t, 'memory')];
  for (const db of dbs) {
    await branched(db);
    await db.bulkDocs([{ _id: 'b', _rev: `1-${hash('0')}`, n: 1 }, { _id: 'c', _rev: `1-${hash('0')}`, n: 2 }], { new_edits: false });
  }
  const plain = ({ results }) =>
    results.map(({ seq, changes, ...change }) => ({ ...change, changes: changes.map(({ rev }) => rev).sort() }));
  for (const options of [
    {},
    { include_docs: true, style: 'all_docs' },
    { include_docs: true, conflicts: true, descending: true },
    { limit: 2 },
    { doc_ids: ['b', 'none'] },
    { filter: (doc) => doc.n > 1, include_docs: true },
    { selector: { n: 1 } },
  ]) {
    const [ours, theirs] = await Promise.all(dbs.map(async (db) => plain(await db.changes({ ...options }))));
    assert.deepEqual(ours, theirs, JSON.stringify(options));
  }
  const [db] = dbs;
  const all = await db.changes();
  assert.equal(all.last_seq, (await db.info()).update_seq);
  const after = await db.changes({ since: all.results[0].seq });
  assert.deepEqual(after.results, all.results.slice(1));
});

test('live changes', { skip }, async (t) => {
  const db = pouch(t);
  await db.put({ _id: 'a' });
  const seen = [];
  const feed = db.changes({ live: true, since: 0, include_docs: true });
  const reached = new Promise((resolve) => {
    feed.on('change', ({ id, doc, deleted }) => {
      seen.push(deleted ? `-${id}` : id);
      assert.equal(doc._id, id);
      if (id === 'c') resolve();
    });
  });
  await db.put({ _id: 'b' });
  await db.remove(await db.get('b'));
  await db.put({ _id: 'c' });
  await reached;
  feed.cancel();
  assert.equal((await feed).status, 'cancelled');
  assert.deepEqual([seen[0], seen.at(-1)], ['a', 'c']);
  assert.ok(seen.includes('-b'));
  const limited = db.changes({ live: true, since: 0, limit: 1 });
  assert.equal((await limited).results.length, 0);
});

test('local documents', { skip }, async (t) => {
  const db = pouch(t);
  const { rev } = await db.put({ _id: '_local/x', n: 1 });
  assert.deepEqual(await db.get('_local/x'), { _id: '_local/x', _rev: rev, n: 1 });
  assert.equal((await rejection(db.put({ _id: '_local/x', n: 2 }))).status, 409);
  await db.put({ _id: '_local/x', _rev: rev, n: 2 });
  assert.equal((await rejection(db.put({ _id: '_local/x', _rev: rev, n: 3 }))).status, 409);
  await db.remove(await db.get('_local/x'));
  assert.equal((await rejection(db.get('_local/x'))).status, 404);
  assert.equal((await db.allDocs()).total_rows, 0);
});

test('replicas that diverged agree', { skip }, async (t) => {
  for (const adapters of [['stemma', 'stemma'], ['stemma', 'memory'], ['memory', 'stemma']]) {
    const [one, other] = adapters.map((adapter) => pouch(t, adapter));
    await one.put({ _id: 'a', n: 1 });
    await one.put({ _id: 'file', _attachments: { 'f.txt': { content_type: 'text/plain', data: Buffer.from('text') } } });
    assert.equal((await one.replicate.to(other)).docs_written, 2);
    assert.equal((await one.replicate.to(other)).docs_written, 0);
    assert.equal((await other.getAttachment('file', 'f.txt')).toString(), 'text');
    for (const [db, n] of [[one, 2], [other, 3]]) await db.put({ ...(await db.get('a')), n });
    await other.remove(await other.get('file'));
    // Each direction writes what the other reads: what one sync overtakes is the next one's.
    for (let times = 0; times < 2; times++) await one.sync(other);
    const [ours, theirs] = await Promise.all([one, other].map((db) => db.get('a', { conflicts: true, revs: true })));
    assert.deepEqual(ours, theirs);
    assert.equal(ours._conflicts.length, 1);
    assert.equal((await rejection(one.get('file'))).reason, 'deleted');
    // The conflict is resolved on one side.
    await one.remove('a', ours._conflicts[0]);
    await one.replicate.to(other);
    assert.equal((await other.get('a', { conflicts: true }))._conflicts, undefined);
  }
});

test('replicas follow each other', { skip }, async (t) => {
  const [one, other] = [pouch(t), pouch(t)];
  const sync = one.sync(other, { live: true });
  const arrival = (db, id) =>
    new Promise((resolve) => {
      const feed = db.changes({ live: true, since: 0 });
      feed.on('change', (change) => {
        if (change.id !== id) return;
        feed.cancel();
        resolve();
      });
    });
  const arrived = Promise.all([arrival(other, 'a'), arrival(one, 'b')]);
  await Promise.all([one.put({ _id: 'a' }), other.put({ _id: 'b' })]);
  await arrived;
  sync.cancel();
  await sync.catch(() => {});
});

test('a server is a replica, too', { skip: skip || !process.env.STEMMA_BIN }, async (t) => {
  const [one, remote] = [pouch(t), new PouchDB((await server(t)).http)];
  await branched(one);
  await one.put({ _id: 'file', _attachments: { 'f.txt': { content_type: 'text/plain', data: Buffer.from('text') } } });
  await remote.put({ _id: 'b', n: 1 });
  const { push, pull } = await one.sync(remote);
  assert.deepEqual([push.ok, pull.docs_written], [true, 1]);
  await one.sync(remote);
  assert.equal((await one.get('b')).n, 1);
  assert.equal((await remote.getAttachment('file', 'f.txt')).toString(), 'text');
  const [ours, theirs] = await Promise.all([one, remote].map((db) => db.get('a', { conflicts: true, revs: true })));
  assert.deepEqual(ours, theirs);
  // Revisions that the server makes are successors of ours, and the other way round.
  await remote.put({ ...theirs, _conflicts: undefined, _revisions: undefined, n: 5 });
  await one.sync(remote);
  await one.put({ ...(await one.get('a')), n: 6 });
  await one.sync(remote);
  assert.equal((await remote.get('a')).n, 6);
});

test('a database is a directory that objects of one name share', { skip }, async (t) => {
  const name = path.join(directory(t), 'books');
  const create = () => new PouchDB(name, { adapter: 'stemma' });
  const [one, other] = [create(), create()];
  await one.put({ _id: 'a', n: 1 });
  assert.equal((await other.get('a')).n, 1);
  await one.close();
  await other.put({ _id: 'b' });
  await other.close();
  const { open } = require('stemmadb');
  const db = await open(`${name}.stemma`);
  assert.deepEqual(await db.find({ n: 1 }).ids(), ['a']);
  await db.close();
  const again = create();
  assert.equal((await again.info()).doc_count, 2);
  assert.equal(await again.id(), await again.id());
  await again.destroy();
  assert.equal((await create().info()).doc_count, 0);
  await create().destroy();
});
