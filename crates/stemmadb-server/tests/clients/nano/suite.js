// Tests nano with a Stemma server: compares contents, not only the success of calls.
//
// STEMMA_URL: the server, with credentials.
'use strict';

const assert = require('node:assert/strict');
const crypto = require('node:crypto');
const { test, after } = require('node:test');
const nano = require('nano')(process.env.STEMMA_URL);

let made = 0;
const names = [];

async function fresh() {
  const name = `nano/${process.pid}-${made++}`;
  await nano.db.create(name);
  names.push(name);
  return nano.use(name);
}

after(async () => {
  for (const name of names) await nano.db.destroy(name).catch(() => {});
});

const status = (code) => (error) => (error.statusCode === code ? true : assert.fail(error.stack));

test('databases are created, listed, described and destroyed', async () => {
  const name = 'nano_a-b/c+1';
  assert.deepEqual(await nano.db.create(name), { ok: true });
  await assert.rejects(nano.db.create(name), status(412));
  assert.ok((await nano.db.list()).includes(name));
  const info = await nano.db.get(name);
  assert.deepEqual([info.db_name, info.doc_count], [name, 0]);
  await nano.db.compact(name);
  assert.deepEqual(await nano.db.destroy(name), { ok: true });
  await assert.rejects(nano.db.get(name), status(404));
  await assert.rejects(nano.db.create('Upper'), status(400));
  assert.equal((await nano.info()).couchdb, 'Welcome');
  assert.equal((await nano.uuids(3)).uuids.length, 3);
});

test('documents are written, read, changed and deleted', async () => {
  const db = await fresh();
  const first = await db.insert({ n: 1, text: 'größe' }, 'a/ü b');
  assert.deepEqual(await db.get('a/ü b'), { _id: 'a/ü b', _rev: first.rev, n: 1, text: 'größe' });
  const head = await db.head('a/ü b');
  assert.equal(head.etag, `"${first.rev}"`);
  const second = await db.insert({ _id: 'a/ü b', _rev: first.rev, n: 2 });
  await assert.rejects(db.insert({ _id: 'a/ü b', _rev: first.rev, n: 3 }), status(409));
  const info = await db.get('a/ü b', { revs: true, revs_info: true });
  assert.deepEqual([info._revisions.start, info._revs_info.length], [2, 2]);
  const { id } = await db.insert({ made: 'up' });
  assert.equal((await db.get(id)).made, 'up');
  assert.equal((await db.destroy('a/ü b', second.rev)).ok, true);
  await assert.rejects(db.get('a/ü b'), status(404));
  await db.insert({ made: 'down' }, { docName: 'x' });
  assert.equal((await db.get('x')).made, 'down');
});

test('documents are written and read in bulk', async () => {
  const db = await fresh();
  const docs = Array.from({ length: 30 }, (_, n) => ({ _id: `d${String(n).padStart(2, '0')}`, n }));
  const rows = await db.bulk({ docs });
  assert.deepEqual(rows.map((row) => row.id), docs.map((doc) => doc._id));
  const again = await db.bulk({ docs: [{ _id: 'd00', n: 5 }, { _id: 'new' }] });
  assert.deepEqual(again.map((row) => row.error || row.ok), ['conflict', true]);
  const fetched = await db.fetch({ keys: ['d03', 'nothing', 'd01'] });
  assert.deepEqual(fetched.rows.map((row) => row.error || row.doc.n), [3, 'not_found', 1]);
  const revs = await db.fetchRevs({ keys: ['d03'] });
  assert.equal(revs.rows[0].value.rev, rows[3].rev);
  const list = await db.list({ startkey: 'd10', limit: 3, include_docs: true });
  assert.deepEqual(list.rows.map((row) => row.doc.n), [10, 11, 12]);
  assert.deepEqual([list.total_rows, list.offset], [31, 10]);
});

test('files are attached, read, inlined and destroyed', async () => {
  const db = await fresh();
  const image = crypto.randomBytes(70000);
  const first = await db.attachment.insert('doc', 'a/image ü.png', image, 'image/png');
  assert.ok((await db.attachment.get('doc', 'a/image ü.png')).equals(image));
  const read = await db.get('doc', { attachments: true });
  assert.ok(Buffer.from(read._attachments['a/image ü.png'].data, 'base64').equals(image));
  await assert.rejects(db.attachment.insert('doc', 'late', image, 'image/png'), status(409));
  const several = [
    { name: 'one.txt', data: 'first', content_type: 'text/plain' },
    { name: 'two.bin', data: image, content_type: 'application/octet-stream' },
  ];
  const multi = await db.multipart.insert({ n: 1 }, several, 'multi');
  const doc = await db.get('multi');
  assert.deepEqual([doc.n, doc._rev], [1, multi.rev]);
  assert.deepEqual(Object.values(doc._attachments).map((file) => [file.content_type, file.length, file.revpos]), [
    ['text/plain', 5, 1],
    ['application/octet-stream', 70000, 1],
  ]);
  assert.equal(doc._attachments['two.bin'].digest, 'md5-' + crypto.createHash('md5').update(image).digest('base64'));
  assert.ok((await db.attachment.get('multi', 'two.bin')).equals(image));
  const related = await db.multipart.get('multi');
  assert.ok(related.includes(image) && related.includes('first'));
  const streamed = [];
  for await (const piece of db.attachment.getAsStream('multi', 'two.bin')) streamed.push(piece);
  assert.ok(Buffer.concat(streamed).equals(image));
  await db.attachment.destroy('doc', 'a/image ü.png', { rev: first.rev });
  await assert.rejects(db.attachment.get('doc', 'a/image ü.png'), status(404));
});

test('the changes feed is read completely, continuously, and in pages', async () => {
  const db = await fresh();
  await db.bulk({ docs: Array.from({ length: 12 }, (_, n) => ({ _id: `d${n}`, n })) });
  const all = await db.changes({ include_docs: true });
  assert.deepEqual(all.results.map((row) => row.doc.n), Array.from({ length: 12 }, (_, n) => n));
  const rows = [];
  await new Promise((resolve, reject) => {
    db.changesReader.get({ since: '0', batchSize: 5, includeDocs: true, timeout: 100 })
      .on('batch', (batch) => rows.push(...batch))
      .on('end', resolve)
      .on('error', reject);
  });
  assert.deepEqual(rows.map((row) => row.id), all.results.map((row) => row.id));
  const followed = [];
  const seen = new Promise((resolve, reject) => {
    db.changesReader.start({ since: all.last_seq, timeout: 5000 })
      .on('change', (row) => {
        followed.push(row.id);
        if (row.id === 'late') resolve();
      })
      // Stopping it aborts the pending request, which it reports as an error; a promise is settled only once.
      .on('error', reject);
  });
  await db.insert({ n: 100 }, 'late');
  await seen;
  db.changesReader.stop();
  assert.deepEqual(followed, ['late']);
  const spooled = await new Promise((resolve, reject) => {
    nano.use(db.config.db).changesReader.spool({ since: '0' }).on('batch', resolve).on('error', reject);
  });
  assert.equal(spooled.length, 13);
});

test('Mango finds, explains and declares', async () => {
  const db = await fresh();
  await db.bulk({ docs: Array.from({ length: 40 }, (_, n) => ({ _id: `d${n}`, n, kind: n % 4 ? 'few' : 'fourth' })) });
  const index = await db.createIndex({ index: { fields: ['kind', 'n'] }, name: 'by kind' });
  assert.deepEqual([index.result, index.name], ['created', 'by kind']);
  const found = await db.find({ selector: { kind: 'fourth', n: { $gt: 10 } }, sort: ['n'], fields: ['n'], limit: 3 });
  assert.deepEqual(found.docs, [{ n: 12 }, { n: 16 }, { n: 20 }]);
  const next = await db.find({ selector: { kind: 'fourth', n: { $gt: 10 } }, sort: ['n'], fields: ['n'], bookmark: found.bookmark });
  assert.deepEqual(next.docs.map((doc) => doc.n), [24, 28, 32, 36]);
  await assert.rejects(db.find({ selector: { n: { $nope: 1 } } }), status(400));
});

test('security documents are written and read', async () => {
  const db = await fresh();
  const security = { admins: { names: ['ada'], roles: [] }, members: { names: [], roles: ['staff'] } };
  await nano.request({ db: db.config.db, method: 'PUT', path: '_security', body: security });
  assert.deepEqual(await nano.request({ db: db.config.db, path: '_security' }), security);
});
